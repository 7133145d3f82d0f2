//! A fork: the child's view starts as a copy of its parent's.
//!
//! The kernel shares resident pages copy-on-write, with their protection. The pager shares pages that are only in
//! CMem: both views refer to the same slots, and a page that one of the processes writes gets a slot of its own when
//! it is evicted. The parent's dirty pages are resident in the child too, and are sent whole when evicted.

use super::*;

impl Pager {
    /// Adds the view of a forked child, whose entries are stored in `table`.
    ///
    /// # Errors
    /// [`PagerFull`]: the limit of views is reached.
    pub fn forked(&mut self, parent: ViewId, table: PageTable) -> Result<ViewId, PagerFull> {
        let child = self.add_view(table, false)?;
        self.counters.forks += 1;
        let pages = self.view(parent).map_or(0, |view| view.table.len());
        let room = self.view(child).map_or(0, |view| view.table.len());
        for page in 0..pages.min(room) {
            let entry = self.entry(parent, page);
            let slot = entry.slot().filter(|slot| self.slots.share(*slot));
            let shared = slot.is_some() == entry.slot().is_some();
            let inherited = Entry::absent(slot.unwrap_or(NO_SLOT));
            // The page was discarded during its eviction: the content of its slot is unused. The next access, or the
            // next attempt to send the page, shows whether it is still resident.
            let zapped = entry.is(Flags::ZAPPED);
            let inherited = match entry.state() {
                PageState::Fetching | PageState::Dropping if zapped => {
                    slot.into_iter().for_each(|slot| self.slots.give(slot));
                    let none = Entry::absent(NO_SLOT);
                    if entry.state() == PageState::Dropping { none.to(PageState::Dirty) } else { none }
                }
                PageState::Zeroing => inherited,
                PageState::Absent | PageState::Fetching | PageState::Staged | PageState::Dropping
                    if shared =>
                {
                    inherited
                }
                PageState::Clean if shared => inherited.to(PageState::Clean),
                PageState::Lost => inherited.to(PageState::Lost),
                // The slot's reference count is at its maximum: this view gets no reference, and the page counts as
                // lost.
                PageState::Absent | PageState::Fetching | PageState::Staged | PageState::Dropping => {
                    inherited.to(PageState::Lost)
                }
                PageState::Clean | PageState::Dirty | PageState::Cleaning | PageState::Installing => {
                    slot.into_iter().for_each(|slot| self.slots.give(slot));
                    Entry::absent(NO_SLOT).to(PageState::Dirty)
                }
            };
            self.set(child, page, inherited);
            if inherited.state().is_resident() {
                self.record_resident(child, page, PageHistory::of(entry));
            }
        }
        Ok(child)
    }
}
