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

    /// Settles the states of all pages of a view that was added with the predecessor's table.
    pub fn take_over(&mut self, view: ViewId, memory: &mut dyn Memory) {
        let unsettled = self.take_over_known(view);
        self.settle(view, &unsettled, memory);
    }

    /// Like [`take_over`](Self::take_over), but leaves out the pages whose state can be determined only by examining
    /// the memory, and returns them. [`settle`](Self::settle) must follow before any fault of the view is handled, and
    /// before the view ends.
    pub fn take_over_known(&mut self, view: ViewId) -> Vec<u32> {
        let mut unsettled = Vec::new();
        let Some(pages) = self.view(view).map(|view| view.table.len()) else { return unsettled };
        for page in 0..pages {
            let entry = self.entry(view, page);
            let known = entry.slot().filter(|slot| self.slots.adopt(page, *slot));
            let nowhere = known.is_none() && entry.slot().is_some();
            let settled = entry.with_slot(known).with_buffer(None);
            let settled = match entry.state() {
                // The page cannot have the slot that its entry names, so the page's content is unknown.
                _ if nowhere => settled.to(PageState::Lost),
                PageState::Absent => settled.to(PageState::Absent),
                PageState::Cleaning if entry.is(Flags::ZAPPED) => {
                    known.into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT)
                }
                // The page has no slot now: it is unknown whether the zeros have arrived.
                PageState::Zeroing => settled.with_slot(None).to(PageState::Absent),
                PageState::Lost => settled.to(PageState::Lost),
                PageState::Clean => settled.to(PageState::Clean),
                PageState::Dirty | PageState::Cleaning => settled.to(PageState::Dirty),
                // The state stays in the table, in case that this agent is killed before it settles the page.
                PageState::Fetching | PageState::Staged | PageState::Dropping | PageState::Installing => {
                    unsettled.push(page);
                    settled
                }
            };
            self.set(view, page, settled);
            if settled.state().is_resident() && unsettled.last() != Some(&page) {
                self.record_resident(view, page, PageHistory::New);
            }
        }
        unsettled
    }

    /// Settles the pages that [`take_over_known`](Self::take_over_known) returned.
    pub fn settle(&mut self, view: ViewId, pages: &[u32], memory: &mut dyn Memory) {
        for page in pages.iter().copied() {
            let entry = self.entry(view, page);
            // Where memory is prepared for pages, a page that was being fetched may be only partly filled, so it is
            // removed. Nothing is lost even if it was complete: it was installed write-protected, so CMem has all of
            // its content.
            let half = memory.makes_ready()
                && matches!(entry.state(), PageState::Fetching | PageState::Staged)
                && memory.is_present(view, page);
            let stays =
                half && memory.drop_pages(view, core::slice::from_ref(&(page..page + 1))) != Ok(Drop::Done);
            let settled = match entry.state() {
                _ if stays => entry.to(PageState::Lost),
                PageState::Fetching | PageState::Staged | PageState::Dropping if entry.is(Flags::ZAPPED) => {
                    entry.slot().into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT)
                }
                // The page equals CMem: it was installed just before the predecessor died, or not removed yet.
                PageState::Fetching | PageState::Staged | PageState::Dropping
                    if memory.is_present(view, page) =>
                {
                    entry.to(PageState::Clean)
                }
                PageState::Fetching | PageState::Staged | PageState::Dropping => entry.to(PageState::Absent),
                PageState::Installing if !memory.is_present(view, page) => entry.to(PageState::Absent),
                PageState::Installing => entry.to(PageState::Dirty),
                _ => continue,
            };
            self.set(view, page, settled);
            if settled.state().is_resident() {
                self.record_resident(view, page, PageHistory::New);
            }
        }
    }
}
