//! Copies of pages that another view has here: after a fork, views refer to the same slots, and a page that one of them has
//! as CMem has it need not be fetched for another.
//!
//! Children that go through the memory of one parent want the same pages at about the same time. Fetched for each of them, a
//! page crosses the link as often as there are children; copied, about once.

use super::clean::Begun;
use super::page_buffers::Use;
use super::*;

impl Pager {
    /// A buffer with what a shared slot holds, as a page that was fetched into it, if another view has it here. Views have a
    /// slot at the same page, or not at all.
    pub(super) fn copy(&mut self, view: ViewId, page: u32, slot: u32, io: &mut Io<'_>) -> Option<BufferId> {
        if !self.slots.is_shared(slot) {
            return None;
        }
        // Whoever had the last one most likely has its neighbour.
        let first = self.donor;
        let others = (0..self.views.len() as u16).filter(|other| *other != first.0).map(ViewId);
        let mut views = core::iter::once(first).chain(others).filter(|other| *other != view);
        views.find_map(|other| self.copy_of(other, view, page, slot, io))
    }

    fn copy_of(
        &mut self,
        other: ViewId,
        view: ViewId,
        page: u32,
        slot: u32,
        io: &mut Io<'_>,
    ) -> Option<BufferId> {
        let entry = self.look(other, page).filter(|entry| entry.slot() == Some(slot))?;
        let from = match (entry.state(), entry.buffer()) {
            (State::Clean, None) if !entry.is(Flags::ZAPPED) => None,
            // A twin, or a page about to come or just gone: what the slot holds, whatever has become of the page.
            (State::Staged | State::Dirty | State::Cleaning | State::Dropping, Some(buffer)) => Some(buffer),
            _ => return None,
        };
        let room = self.buffers.room() > ahead::ROOM_FOR_DEMAND;
        let purpose = Use::Fetch { view: Some(view), page, mapping: None, write: false };
        let buffer = room.then(|| self.buffers.take(purpose)).flatten()?;
        let copied = match from {
            Some(from) => {
                self.buffers.copy(from, buffer);
                Ok(())
            }
            None => io.memory.snapshot(other, page, self.buffers.page_mut(buffer)),
        };
        match copied {
            Ok(()) => {
                (self.donor, self.counters.copied) = (other, self.counters.copied + 1);
                return Some(buffer);
            }
            Err(MemoryError::Absent) => self.discarded(other, page..page + 1),
            Err(_) => {}
        }
        self.buffers.give(buffer);
        None
    }

    /// A page has arrived in its slot, from `sent`: views that have the same content at the same page, and no slot for it, refer
    /// to that one from now on. A child has what its parent had in memory at the fork; sent for each of them, it would take
    /// up a slot as often, and the link.
    pub(super) fn share_sent(&mut self, view: ViewId, page: u32, slot: u32, sent: BufferId, io: &mut Io<'_>) {
        if self.slots.is_own() || self.views.len() < 2 {
            return;
        }
        for other in (0..self.views.len() as u16).map(ViewId).filter(|other| *other != view) {
            let here = self.look(other, page).is_some_and(|entry| {
                entry.state() == State::Dirty && entry.slot().is_none() && entry.buffer().is_none()
            });
            // Looked at before it is protected, which its process would notice, and again when it cannot change any more.
            if here
                && self.is_droppable(other)
                && self.is_alike(other, page, sent, io)
                && self.protect(other, page..page + 1, io) == Begun::Yes
                && self.is_alike(other, page, sent, io)
                && self.slots.share(slot)
            {
                self.set(other, page, Entry::absent(slot).to(State::Clean));
                self.counters.shared += 1;
            }
        }
    }

    /// Whether a page that is there has the content of a buffer.
    fn is_alike(&mut self, view: ViewId, page: u32, like: BufferId, io: &mut Io<'_>) -> bool {
        let Some(buffer) = self.buffers.take(Use::Twin) else { return false };
        let copied = io.memory.snapshot(view, page, self.buffers.page_mut(buffer)).is_ok();
        let alike = copied && self.buffers.page(buffer) == self.buffers.page(like);
        self.buffers.give(buffer);
        alike
    }
}
