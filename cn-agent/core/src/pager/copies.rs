//! Copies of pages that another view (another process's table of pages) has. After a fork, views refer to the same
//! slots; if the page of one view equals CMem, the page need not be fetched for another view.
//!
//! Children that go through the memory of one parent need the same pages at about the same time. If each child fetched
//! them, a page would cross the link once for each child; with copies, about once in total.

use super::clean::CleanResult;
use super::page_buffers::BufferUse;
use super::*;

/// Copy of a page of another view, in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageCopy {
    /// Page that the copy is for, at which the other view has it too.
    pub page: u32,
    pub buffer: BufferId,
    /// View whose page has to be unchanged after the copy. `None` if the copy was made from a buffer that holds the
    /// slot's content whatever happens to the page.
    of: Option<ViewId>,
}

impl Pager {
    /// Returns a buffer with the content of a shared slot, like a fetched page, if another view has that content.
    pub(super) fn copy(&mut self, view: ViewId, page: u32, slot: u32, io: &mut Io<'_>) -> Option<BufferId> {
        let copy = self.begin_copy(view, page, slot, io)?;
        if self.is_good(copy, &mut RecentRecords::default(), io) {
            return Some(copy.buffer);
        }
        self.buffers.give(copy.buffer);
        None
    }

    /// Like [`copy`](Self::copy), but it is still to be found out whether the copy [is good](Self::is_good). Views that
    /// share a slot have it at the same page.
    pub(super) fn begin_copy(
        &mut self,
        view: ViewId,
        page: u32,
        slot: u32,
        io: &mut Io<'_>,
    ) -> Option<PageCopy> {
        if !self.slots.is_shared(slot) {
            return None;
        }
        // The views that got the page last keep it longest, and the one from which the last page was copied most likely
        // has this one too. With many processes, a look at the tables of all of them would take as long as a fetch.
        let [last, before] = self.slots.holders(slot);
        let mut others = [last, before, self.donor].into_iter().filter(|other| *other != view);
        let copy = others.find_map(|other| self.copy_of(other, view, page, slot, io));
        // The page will be copied or fetched for this view.
        self.slots.set_holder(slot, view);
        copy
    }

    /// Whether a copy has the slot's content. `recent` keeps the records of neighbours for further copies, all of which
    /// must have been made before the first of these calls.
    pub(super) fn is_good(&mut self, copy: PageCopy, recent: &mut RecentRecords, io: &mut Io<'_>) -> bool {
        let PageCopy { page, of, .. } = copy;
        let is_unchanged = |other| io.memory.shows_protection() && recent.of(other, page, io) == (true, true);
        let good = of.is_none_or(is_unchanged);
        self.counters.copied += u64::from(good);
        good
    }

    fn copy_of(
        &mut self,
        other: ViewId,
        view: ViewId,
        page: u32,
        slot: u32,
        io: &mut Io<'_>,
    ) -> Option<PageCopy> {
        let entry = self.entry_of(other, page).filter(|entry| entry.slot() == Some(slot))?;
        let (from, of) = match (entry.state(), entry.buffer()) {
            (PageState::Clean, None) if !entry.is(Flags::ZAPPED) => (None, Some(other)),
            // The buffer is a twin, or belongs to a page that is about to be installed or was just evicted: it holds
            // the slot's content, even if the page has changed.
            (PageState::Staged | PageState::Dirty | PageState::Cleaning, Some(buffer)) => {
                (Some(buffer), None)
            }
            // The buffer was filled from the page, so it holds the slot's content if the page has not
            // changed.
            (PageState::Dropping, Some(buffer)) => (Some(buffer), Some(other)),
            _ => return None,
        };
        let room = self.buffers.room() > read_ahead::ROOM_FOR_DEMAND;
        let purpose = BufferUse::Fetch { view: Some(view), page, mapping: None, write: false };
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
                self.donor = other;
                return Some(PageCopy { page, buffer, of });
            }
            Err(MemoryError::Absent) => self.discarded(other, page..page + 1),
            Err(_) => {}
        }
        self.buffers.give(buffer);
        None
    }

    /// Handles the end of a page's write to its slot from buffer `sent`. Views that have the same content at the same
    /// page, and no slot for it, refer to this slot from now on. After a fork, a child has the same resident pages as
    /// its parent; sending them for each child would take as many slots and transfers.
    pub(super) fn share_sent(&mut self, view: ViewId, page: u32, slot: u32, sent: BufferId, io: &mut Io<'_>) {
        if self.slots.is_own() || self.views.len() < 2 {
            return;
        }
        for other in (0..self.views.len() as u16).map(ViewId).filter(|other| *other != view) {
            let here = self.entry_of(other, page).is_some_and(|entry| {
                entry.state() == PageState::Dirty && entry.slot().is_none() && entry.buffer().is_none()
            });
            // The contents are compared before protection, which delays the process's writes, and again once the page
            // cannot change.
            if here
                && self.is_droppable(other)
                && self.is_alike(other, page, sent, io)
                && self.protect(other, page..page + 1, io) == CleanResult::Yes
                && self.is_alike(other, page, sent, io)
                && self.slots.share(slot)
            {
                self.set(other, page, Entry::absent(slot).to(PageState::Clean));
                self.counters.shared += 1;
            }
        }
    }

    /// Whether a resident page has the content of a buffer.
    fn is_alike(&mut self, view: ViewId, page: u32, like: BufferId, io: &mut Io<'_>) -> bool {
        let Some(buffer) = self.buffers.take(BufferUse::Scratch) else { return false };
        let copied = io.memory.snapshot(view, page, self.buffers.page_mut(buffer)).is_ok();
        let alike = copied && self.buffers.page(buffer) == self.buffers.page(like);
        self.buffers.give(buffer);
        alike
    }
}
