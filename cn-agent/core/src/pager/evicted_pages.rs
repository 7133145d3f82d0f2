//! A second chance: evicted pages stay in their buffers as long as the reserve has room for them.
//!
//! Such a page is in [`PageState::Staged`], like one fetched ahead, and is installed the same way. It equals CMem, so
//! nothing is lost when its buffer is freed.

use super::page_buffers::BufferUse;
use super::*;

impl PageHistory {
    /// Returns the history of a page that is fetched or zero-filled.
    pub(super) fn of(entry: Entry) -> PageHistory {
        match entry.is(Flags::RECENT) {
            true => PageHistory::Remembered { proven: entry.is(Flags::PROVEN) },
            false => PageHistory::New,
        }
    }

    /// Returns the history of a page that is installed before the first touch.
    pub(super) fn ahead(self) -> PageHistory {
        if self == PageHistory::New { PageHistory::Ahead } else { self }
    }
}

impl Pager {
    /// Copies a clean page that is about to be evicted, if there is a buffer and the page is likely to be used again.
    ///
    /// # Errors
    /// The page is absent: its program has discarded it.
    pub(super) fn copy_to_keep(
        &mut self,
        PageRef { view, page }: PageRef,
        heat: Heat,
        entry: Entry,
        io: &mut Io<'_>,
    ) -> Result<Option<BufferId>, MemoryError> {
        // A page of zeros is installed as quickly without a copy.
        if entry.slot().is_none() {
            return Ok(None);
        }
        let room = self.buffers.room() > read_ahead::ROOM_FOR_DEMAND;
        let Some(buffer) = room.then(|| self.buffers.take(BufferUse::Kept { page, heat })).flatten() else {
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

    /// Whether the program has discarded, without an announcement, a page that counts as resident; if so, the page
    /// reads as zeros from now on. Pages that leave by order are looked at before it ([`may_leave`](Self::may_leave)),
    /// many at a time, and not here.
    pub(super) fn was_given_back(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) -> bool {
        let given = !io.memory.drops_by_order() && !io.memory.is_present(view, page);
        if given {
            self.discarded(view, page..page + 1);
        }
        given
    }

    /// Keeps an evicted page in its buffer, for as long as there is room.
    pub(super) fn keep_evicted(&mut self, of: PageRef) {
        if self.kept.len() >= self.kept_entries_max() {
            self.kept.begin_pass();
        }
        if self.kept.has_pass() {
            // Entries of pages that are not kept any more are removed, so that the queue stays bounded.
            let views = &self.views;
            self.kept.retain_some(|of| {
                let view = views[usize::from(of.view.0)].as_ref();
                let view = view.filter(|view| of.page < view.table.len());
                view.is_some_and(|view| view.table.get(of.page).state() == PageState::Staged)
            });
        }
        self.kept.push_back(of);
        self.trim_kept();
    }

    /// Number of entries in the queue of kept pages from which on stale ones are removed.
    pub(super) fn kept_entries_max(&self) -> usize {
        4 * self.reserve_pages() as usize + 64
    }

    /// Frees the pages that have been kept longest, until the others fit into the room that resident pages leave.
    #[inline]
    pub(super) fn trim_kept(&mut self) {
        let held = self.bounded() + self.coming - self.leaving.min(self.bounded());
        let room = self.options.limit.saturating_sub(held).min(self.reserve_pages()) as usize;
        while self.buffers.kept_count() > room {
            let Some(of) = self.kept.pop_front() else { break };
            let Some(entry) = self.entry_of(of.view, of.page) else { continue };
            if let (PageState::Staged, Some(buffer)) = (entry.state(), entry.buffer())
                && let BufferUse::Kept { heat, .. } = self.buffers.purpose(buffer)
            {
                self.buffers.give(buffer);
                self.remember(of, entry.with_buffer(None), heat.was_proven());
            }
        }
    }

    /// Marks an evicted page as absent and no longer kept, and records for its next fault whether it was in the proven
    /// queue.
    pub(super) fn remember(&mut self, of: PageRef, entry: Entry, proven: bool) {
        let left = entry.forgotten().to(PageState::Absent).with(Flags::RECENT);
        self.set(of.view, of.page, if proven { left.with(Flags::PROVEN) } else { left });
        if let ForgottenPage::Page(PageRef { view, page }) = self.order.record_evicted(of)
            && let Some(view) = self.view(view).filter(|view| page < view.table.len())
        {
            view.table.set(page, view.table.get(page).forgotten());
        }
    }
}
