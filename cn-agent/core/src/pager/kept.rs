//! A second chance: what has left memory is kept in its buffer for as long as there is room among the pages kept free.
//!
//! Such a page is in [`State::Staged`], like one fetched ahead, and comes back the same way. It is as CMem has it, so nothing
//! is lost when its buffer is given up.

use super::page_buffers::Use;
use super::*;

impl Known {
    /// What an entry says of a page that comes from its memory node, or from nowhere.
    pub(super) fn of(entry: Entry) -> Known {
        match entry.is(Flags::RECENT) {
            true => Known::Remembered { proven: entry.is(Flags::PROVEN) },
            false => Known::New,
        }
    }
}

impl Pager {
    /// A copy of a clean page that is about to leave, if there is a buffer for it and it is worth one.
    ///
    /// # Errors
    /// It is not there: its program has given it back.
    pub(super) fn copy_to_keep(
        &mut self,
        PageRef { view, page }: PageRef,
        heat: Heat,
        entry: Entry,
        io: &mut Io<'_>,
    ) -> Result<Option<BufferId>, MemoryError> {
        // Zeros come as quickly from nowhere.
        if entry.slot().is_none() {
            return Ok(None);
        }
        let room = self.buffers.room() > ahead::ROOM_FOR_DEMAND;
        let Some(buffer) = room.then(|| self.buffers.take(Use::Kept { page, heat })).flatten() else {
            return if self.was_given_back(view, page, io) { Err(MemoryError::Absent) } else { Ok(None) };
        };
        match io.memory.snapshot(view, page, self.buffers.page_mut(buffer)) {
            Ok(()) => Ok(Some(buffer)),
            Err(error) => {
                self.buffers.give(buffer);
                if error == MemoryError::Absent {
                    self.discarded(view, page..page + 1);
                    return Err(error);
                }
                Ok(None)
            }
        }
    }

    /// Whether the program has given a page back that is taken to be in memory, which nobody may have been told: then it is
    /// zeros from now on, not what it was.
    pub(super) fn was_given_back(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) -> bool {
        let given = !io.memory.is_present(view, page);
        if given {
            self.discarded(view, page..page + 1);
        }
        given
    }

    /// A page that has left memory is in its buffer.
    pub(super) fn keep_for_a_while(&mut self, of: PageRef) {
        if self.kept.len() >= self.kept_entries_max() {
            let views = &self.views;
            self.kept.retain(|of| {
                let view = views[usize::from(of.view.0)].as_ref();
                view.is_some_and(|view| view.table.get(of.page).state() == State::Staged)
            });
        }
        self.kept.push_back(of);
        self.trim_kept();
    }

    /// Entries of the queue of kept pages at most, stale ones included.
    pub(super) fn kept_entries_max(&self) -> usize {
        4 * self.reserve_pages() as usize + 64
    }

    /// Gives up what was kept for longest, as far as its room is wanted for pages in memory.
    #[inline]
    pub(super) fn trim_kept(&mut self) {
        let held = self.bounded() + self.coming - self.leaving.min(self.bounded());
        let room = self.options.limit.saturating_sub(held).min(self.reserve_pages()) as usize;
        while self.buffers.kept() > room {
            let Some(of) = self.kept.pop_front() else { break };
            let entry = self.entry(of.view, of.page);
            if let (State::Staged, Some(buffer)) = (entry.state(), entry.buffer())
                && let Use::Kept { heat, .. } = self.buffers.purpose(buffer)
            {
                self.buffers.give(buffer);
                self.remember(of, entry.with_buffer(None), heat.was_proven());
            }
        }
    }

    /// A page is nowhere here any more: how it stands if it comes again.
    pub(super) fn remember(&mut self, of: PageRef, entry: Entry, proven: bool) {
        let left = entry.forgotten().to(State::Absent).with(Flags::RECENT);
        self.set(of.view, of.page, if proven { left.with(Flags::PROVEN) } else { left });
        if let Forget::Page(PageRef { view, page }) = self.order.left(of)
            && let Some(view) = self.view(view).filter(|view| page < view.table.len())
        {
            view.table.set(page, view.table.get(page).forgotten());
        }
    }
}
