//! Reads whose answer has to be in one piece, and whose data waits in its blocks until all of it is there: no copy of ours,
//! and the kernel takes it from where the agent has put it.

use cxloe_client::ring::DATA_BYTES;

use super::part::{State, Way};
use super::{Output, PARTS_MAX, Requests};

/// The longest such read: even with what its first and last line have beyond it, it never takes the whole area.
pub(super) const HELD_MAX: u64 = DATA_BYTES as u64 / 2;

impl Requests {
    /// The data of this part has come; that of the others of its request may not have.
    pub(super) fn hold(&mut self, tag: u16, at: u16, output: &mut Output) {
        if let (Some(part), Some(slot)) =
            (&mut self.parts[usize::from(tag)], &mut self.slots[usize::from(at)])
        {
            part.state = State::Held;
            slot.parts -= 1;
        }
        self.settle(at, output);
    }

    /// The parts that a request holds, none of which is on its way.
    fn held(&self, at: u16) -> Vec<u16> {
        let is_held = |tag: &u16| self.part(*tag).is_some_and(|p| p.slot == at && p.state == State::Held);
        (0..PARTS_MAX as u16).filter(is_held).collect()
    }

    /// Has what a request holds sent, in its order.
    pub(super) fn send_held(&mut self, at: u16, output: &mut Output) {
        let mut held = self.held(at);
        held.sort_unstable_by_key(|tag| self.part(*tag).map(|part| part.offset));
        for tag in held {
            if let Some(part) = &mut self.parts[usize::from(tag)] {
                part.state = State::Sending;
                output.data(tag, part.at(), part.length as usize);
            }
        }
    }

    /// Gives up what a request holds, which has failed.
    pub(super) fn free_held(&mut self, at: u16) {
        if self.slots[usize::from(at)].as_ref().is_some_and(|slot| slot.way == Way::HeldRead) {
            self.held(at).into_iter().for_each(|tag| self.free_part(tag));
        }
    }
}
