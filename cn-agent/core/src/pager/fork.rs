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
        let evicts = self.options.evict;
        let views = &self.views;
        let (slots, order, counters) = (&mut self.slots, &mut self.order, &mut self.counters);
        let view = |view: ViewId| views.get(usize::from(view.0)).and_then(Option::as_ref);
        let (Some(of_parent), Some(of_child)) = (view(parent), view(child)) else { return Ok(child) };
        // Threads of all processes of the space wait meanwhile, so each page is a few instructions: what concerns all
        // of the child's pages follows after the loop.
        let (nowhere, mut resident) = (Entry::absent(NO_SLOT), 0);
        for (page, (from, to)) in (0..).zip(of_parent.table.words().zip(of_child.table.words())) {
            let entry = from.get();
            if entry == nowhere {
                to.set(nowhere);
                continue;
            }
            let inherited = inherited(entry, slots);
            to.set(inherited);
            if inherited.state().is_resident() {
                resident += 1;
                let known = PageHistory::of(entry);
                counters.refaulted += u64::from(matches!(known, PageHistory::Remembered { .. }));
                if evicts {
                    order.add_resident(PageRef { view: child, page }, known, false);
                }
            }
        }
        self.resident += resident;
        // Pages of the child cannot be removed before it has joined.
        self.fixed += resident;
        if let Some(view) = self.view_mut(child) {
            view.resident = resident;
        }
        if evicts && resident > 0 {
            self.trim_kept();
            self.clean_queues(resident as usize);
        }
        Ok(child)
    }
}

/// Entry of a child's page whose parent's is `entry`. The child's reference to a slot is counted.
#[inline]
fn inherited(entry: Entry, slots: &mut Slots) -> Entry {
    let slot = entry.slot().filter(|slot| slots.share(*slot));
    let shared = slot.is_some() == entry.slot().is_some();
    let inherited = Entry::absent(slot.unwrap_or(NO_SLOT));
    // The page was discarded during its eviction: the content of its slot is unused. The next access, or the next
    // attempt to send the page, shows whether it is still resident.
    let zapped = entry.is(Flags::ZAPPED);
    match entry.state() {
        PageState::Fetching | PageState::Dropping if zapped => {
            slot.into_iter().for_each(|slot| slots.give(slot));
            let none = Entry::absent(NO_SLOT);
            if entry.state() == PageState::Dropping { none.to(PageState::Dirty) } else { none }
        }
        PageState::Zeroing => inherited,
        PageState::Absent | PageState::Fetching | PageState::Staged | PageState::Dropping if shared => {
            inherited
        }
        PageState::Clean if shared => inherited.to(PageState::Clean),
        PageState::Lost => inherited.to(PageState::Lost),
        // The slot's reference count is at its maximum: this view gets no reference, and the page counts as lost.
        PageState::Absent | PageState::Fetching | PageState::Staged | PageState::Dropping => {
            inherited.to(PageState::Lost)
        }
        PageState::Clean | PageState::Dirty | PageState::Cleaning | PageState::Installing => {
            slot.into_iter().for_each(|slot| slots.give(slot));
            Entry::absent(NO_SLOT).to(PageState::Dirty)
        }
    }
}
