//! A fork: the child's view starts as a copy of its parent's.
//!
//! The kernel shares resident pages copy-on-write, with their protection. The pager shares pages that are only in
//! CMem: both views refer to the same slots, and a page that one of the processes writes gets a slot of its own when
//! it is evicted. The parent's dirty pages are resident in the child too, and are sent whole when evicted.
//!
//! The copy is a walk ([`walk`]): the parent's entries do not change until the child has all of them, so
//! the child gets them as they were when the fork was reported.

use super::*;

impl Pager {
    /// Adds the view of a forked child, whose entries are stored in `table`: all of them once the child is not
    /// [being copied](Self::is_copying) any more, whatever the table held before.
    ///
    /// # Errors
    /// [`PagerFull`]: the limit of views is reached.
    pub fn forked(&mut self, parent: ViewId, table: PageTable) -> Result<ViewId, PagerFull> {
        let child = self.add_view(table, false)?;
        self.counters.forks += 1;
        self.begin_walk(Walk::Fork { parent, child, next: 0 });
        Ok(child)
    }

    /// Copies the entries of some pages, from page `next` on; returns the page at which to continue.
    pub(super) fn copy_some(&mut self, parent: ViewId, child: ViewId, next: u32) -> Option<u32> {
        let evicts = self.options.evict;
        let Pager { views, slots, order, counters, walks, .. } = self;
        let views = &*views;
        let view = |view: ViewId| views.get(usize::from(view.0)).and_then(Option::as_ref);
        let (of_parent, of_child) = (view(parent)?, view(child)?);
        let pages = of_parent.table.len().min(of_child.table.len());
        let until = pages.min(next.saturating_add(walks.step));
        let words = of_parent.table.words(next..until).zip(of_child.table.words(next..until));
        // Each page takes a few instructions: what concerns all pages of the step follows after the loop.
        let (nowhere, mut resident) = (Entry::absent(NO_SLOT), 0);
        for (page, (from, to)) in (next..until).zip(words) {
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
        let mut fixed = false;
        if let Some(view) = self.view_mut(child) {
            view.resident += resident;
            // Pages of the child cannot be removed before it has joined.
            fixed = !view.droppable;
        }
        self.fixed += if fixed { resident } else { 0 };
        if evicts && resident > 0 {
            self.clean_queues(resident as usize);
        }
        if until < pages {
            return Some(until);
        }
        if evicts {
            self.trim_kept();
        }
        None
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
