//! Reads that must be answered in one chunk. Their data stays in its blocks until all of it has arrived; the kernel
//! sends the data from there, without a copy.

use cxloe_client::ring::DATA_BYTES;

use super::part::{DataHandling, PartState};
use super::{Output, PARTS_MAX, Requests};

/// Longest read in bytes whose data is held in its blocks: even with the rest of its first and last line, the read
/// never takes the whole data area.
pub(super) const HELD_MAX: u64 = DATA_BYTES as u64 / 2;

impl Requests {
    /// Keeps the data of the part `tag` until the other parts of its request are complete.
    pub(super) fn hold(&mut self, tag: u16, at: u16, output: &mut Output) {
        if let (Some(part), Some(slot)) =
            (&mut self.parts[usize::from(tag)], &mut self.slots[usize::from(at)])
        {
            part.state = PartState::Held;
            slot.parts -= 1;
        }
        self.settle(at, output);
    }

    /// Numbers of the parts of the request `at` whose data has arrived and is held.
    fn held(&self, at: u16) -> Vec<u16> {
        let is_held = |tag: &u16| self.part(*tag).is_some_and(|p| p.slot == at && p.state == PartState::Held);
        (0..PARTS_MAX as u16).filter(is_held).collect()
    }

    /// Sends the held parts of the request `at`, in order.
    pub(super) fn send_held(&mut self, at: u16, output: &mut Output) {
        let mut held = self.held(at);
        held.sort_unstable_by_key(|tag| self.part(*tag).map(|part| part.offset));
        for tag in held {
            if let Some(part) = &mut self.parts[usize::from(tag)] {
                part.state = PartState::Sending;
                output.data(tag, part.at(), part.length as usize);
            }
        }
    }

    /// Frees the held parts of the request `at`, which has failed.
    pub(super) fn free_held(&mut self, at: u16) {
        if self.slots[usize::from(at)].as_ref().is_some_and(|slot| slot.way == DataHandling::HeldRead) {
            self.held(at).into_iter().for_each(|tag| self.free_part(tag));
        }
    }
}
