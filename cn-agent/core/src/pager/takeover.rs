//! Continuation of a pager whose agent, the predecessor, was killed.
//!
//! The predecessor wrote its tables before it acted on them; actions that were interrupted are settled by examining
//! the pages. Twins are lost with the predecessor, so dirty pages are sent whole. The caller has to wake waiting
//! threads, which then fault again.

use super::*;

impl Pager {
    /// Begins a takeover: the predecessor's views are added one by one, and slots are assigned only when all are
    /// known.
    pub fn expect_more(&mut self) {
        self.complete = false;
    }

    /// Ends a takeover: all views of the predecessor have been added.
    pub fn complete(&mut self) {
        if !core::mem::replace(&mut self.complete, true) {
            self.slots.adopted();
        }
    }

    /// Settles a view that was added with the predecessor's table.
    pub fn take_over(&mut self, view: ViewId, memory: &mut dyn Memory) {
        let Some(pages) = self.view(view).map(|view| view.table.len()) else { return };
        for page in 0..pages {
            let entry = self.entry(view, page);
            let known = entry.slot().filter(|slot| self.slots.adopt(page, *slot));
            let nowhere = known.is_none() && entry.slot().is_some();
            let settled = entry.with_slot(known).with_buffer(None);
            // Where memory is prepared for pages, the page of a fetch may be partially filled. If it was installed it
            // was write-protected, so CMem has all of its content.
            let half = memory.makes_ready()
                && matches!(entry.state(), PageState::Fetching | PageState::Staged)
                && memory.is_present(view, page);
            let stays =
                half && memory.drop_pages(view, core::slice::from_ref(&(page..page + 1))) != Ok(Drop::Done);
            let settled = match entry.state() {
                _ if stays => settled.to(PageState::Lost),
                // The page cannot have that slot: its content is unknown.
                _ if nowhere => settled.to(PageState::Lost),
                PageState::Absent => settled.to(PageState::Absent),
                PageState::Fetching | PageState::Staged | PageState::Dropping | PageState::Cleaning
                    if entry.is(Flags::ZAPPED) =>
                {
                    known.into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT)
                }
                // The page equals CMem: it was installed just before the predecessor died, or not removed yet.
                PageState::Fetching | PageState::Staged | PageState::Dropping
                    if memory.is_present(view, page) =>
                {
                    settled.to(PageState::Clean)
                }
                PageState::Fetching | PageState::Staged | PageState::Dropping => {
                    settled.to(PageState::Absent)
                }
                // The page has no slot now: it is unknown whether the zeros have arrived.
                PageState::Zeroing => settled.with_slot(None).to(PageState::Absent),
                PageState::Lost => settled.to(PageState::Lost),
                PageState::Installing if !memory.is_present(view, page) => settled.to(PageState::Absent),
                PageState::Clean => settled.to(PageState::Clean),
                PageState::Installing | PageState::Dirty | PageState::Cleaning => {
                    settled.to(PageState::Dirty)
                }
            };
            self.set(view, page, settled);
            if settled.state().is_resident() {
                self.record_resident(view, page, PageHistory::New);
            }
        }
    }
}
