//! Slots: the pages of a region's CMem, with reference counts over tables of pages.
//!
//! A region that processes share has a slot for each page, with the page's number. Private memory of a process takes
//! slots from the region's pool when its pages are first evicted. After a fork both processes refer to the slots of
//! pages that neither has written since; a page that one of them writes gets a slot of its own.

use alloc::vec::Vec;

use super::memory::ViewId;

#[derive(Debug)]
pub struct Slots {
    kind: SlotKind,
    count: u32,
    /// Whether no slot was written since the region was created.
    fresh: bool,
}

#[derive(Debug)]
enum SlotKind {
    /// Each page has the slot whose number equals the page's.
    Own,
    /// A page takes any free slot when it is first evicted.
    Pool {
        references: Vec<u16>,
        /// The last two views that got the content of each slot: hints, which may be outdated.
        holders: Vec<[ViewId; 2]>,
        free: Vec<u32>,
        next: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the slot: the page of the region, from the region's start.
    pub slot: u32,
    /// Whether the slot is known to hold zeros.
    pub zeroed: bool,
}

pub(crate) const REFERENCES_MAX: u16 = u16::MAX;

impl Slots {
    /// Slots of shared memory, one for each page. `fresh` states that no slot was written since the region was created.
    pub fn own(count: u32, fresh: bool) -> Slots {
        Slots { kind: SlotKind::Own, count, fresh }
    }

    /// A pool of `count` slots. `fresh` states that no slot was written since the region was created.
    pub fn pool(count: u32, fresh: bool) -> Slots {
        let kind = SlotKind::Pool { references: Vec::new(), holders: Vec::new(), free: Vec::new(), next: 0 };
        Slots { kind, count, fresh }
    }

    /// Whether each page has the slot whose number equals the page's.
    pub fn is_own(&self) -> bool {
        matches!(self.kind, SlotKind::Own)
    }

    /// Whether no slot was written since the region was created, so that unused slots hold zeros.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Number of slots in use; in shared memory all slots.
    pub fn used(&self) -> u32 {
        match &self.kind {
            SlotKind::Own => self.count,
            SlotKind::Pool { free, next, .. } => next - free.len() as u32,
        }
    }

    #[inline]
    pub fn take(&mut self, page: u32) -> Option<Slot> {
        match &mut self.kind {
            SlotKind::Own => (page < self.count).then_some(Slot { slot: page, zeroed: self.fresh }),
            SlotKind::Pool { references, holders, free, next } => {
                if let Some(slot) = free.pop() {
                    references[slot as usize] = 1;
                    return Some(Slot { slot, zeroed: false });
                }
                let slot = *next;
                if slot >= self.count {
                    return None;
                }
                *next += 1;
                references.push(1);
                holders.push([ViewId(0); 2]);
                Some(Slot { slot, zeroed: self.fresh })
            }
        }
    }

    pub(crate) fn has_free(&self) -> bool {
        match &self.kind {
            SlotKind::Own => true,
            SlotKind::Pool { free, next, .. } => !free.is_empty() || *next < self.count,
        }
    }

    /// Sets the size of a pool to `count` after growth. A pool never shrinks.
    pub fn grow(&mut self, count: u32) {
        if let SlotKind::Pool { .. } = self.kind {
            self.count = self.count.max(count);
        }
    }

    #[inline]
    pub fn is_shared(&self, slot: u32) -> bool {
        match &self.kind {
            SlotKind::Own => false,
            SlotKind::Pool { references, .. } => {
                references.get(slot as usize).is_some_and(|count| *count > 1)
            }
        }
    }

    /// The views most likely to have the content of a slot, the likeliest first.
    #[inline]
    pub(crate) fn holders(&self, slot: u32) -> [ViewId; 2] {
        match &self.kind {
            SlotKind::Own => [ViewId(0); 2],
            SlotKind::Pool { holders, .. } => holders.get(slot as usize).copied().unwrap_or([ViewId(0); 2]),
        }
    }

    /// Records that a view has the content of a slot now, or will have it soon.
    #[inline]
    pub(crate) fn set_holder(&mut self, slot: u32, view: ViewId) {
        if let SlotKind::Pool { holders, .. } = &mut self.kind
            && let Some(holders) = holders.get_mut(slot as usize)
            && holders[0] != view
        {
            *holders = [view, holders[0]];
        }
    }

    /// Adds a reference to a slot; `false` at the limit.
    #[inline]
    pub fn share(&mut self, slot: u32) -> bool {
        let SlotKind::Pool { references, .. } = &mut self.kind else { return true };
        match references.get_mut(slot as usize) {
            Some(count) if *count > 0 && *count < REFERENCES_MAX => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes a reference to a slot; removing the last one frees the slot.
    #[inline]
    pub fn give(&mut self, slot: u32) {
        let SlotKind::Pool { references, free, .. } = &mut self.kind else {
            // The slot's old content is not used any more, but is not zeros either.
            self.fresh = false;
            return;
        };
        let Some(count) = references.get_mut(slot as usize).filter(|count| **count > 0) else { return };
        *count -= 1;
        if *count == 0 {
            free.push(slot);
        }
    }

    /// Counts a reference to `slot` that a predecessor's table has for `page`; `false` if `page` cannot have that
    /// slot, or if the slot has the maximum number of references.
    pub fn adopt(&mut self, page: u32, slot: u32) -> bool {
        match &mut self.kind {
            SlotKind::Own => slot == page && slot < self.count,
            SlotKind::Pool { references, holders, free, next } => {
                if slot >= self.count {
                    return false;
                }
                if slot >= *next {
                    references.resize(slot as usize + 1, 0);
                    holders.resize(slot as usize + 1, [ViewId(0); 2]);
                    *next = slot + 1;
                }
                free.clear();
                let count = &mut references[slot as usize];
                let more = count.checked_add(1);
                // A reference beyond the maximum cannot be counted, so it is refused: an uncounted one would
                // remain after the slot is freed.
                *count = more.unwrap_or(*count);
                more.is_some()
            }
        }
    }

    /// Ends the adoption: slots without references are free, and no slot is known to hold zeros.
    pub fn adopted(&mut self) {
        self.fresh = false;
        if let SlotKind::Pool { references, free, .. } = &mut self.kind {
            free.clear();
            free.extend((0..references.len() as u32).filter(|slot| references[*slot as usize] == 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_counts_references() {
        let mut slots = Slots::pool(2, true);
        let [a, b] = [9, 4].map(|page| slots.take(page).unwrap());
        assert_eq!((a, b), (Slot { slot: 0, zeroed: true }, Slot { slot: 1, zeroed: true }));
        assert_eq!(slots.take(5), None);
        assert!(slots.share(0) && slots.is_shared(0) && !slots.is_shared(1));
        slots.give(0);
        assert!(!slots.is_shared(0));
        assert_eq!(slots.take(5), None);
        slots.give(0);
        assert_eq!(
            slots.take(5),
            Some(Slot { slot: 0, zeroed: false }),
            "what was written before is not zero"
        );
        assert_eq!(slots.used(), 2);
        slots.give(7);
    }

    #[test]
    fn a_pool_grows_with_its_region() {
        let mut slots = Slots::pool(1, true);
        assert_eq!(slots.take(0).map(|taken| taken.slot), Some(0));
        assert!(!slots.has_free());
        slots.grow(2);
        slots.grow(1);
        assert!(slots.has_free(), "it never shrinks");
        assert_eq!((slots.take(0), slots.take(0)), (Some(Slot { slot: 1, zeroed: true }), None));
    }

    #[test]
    fn a_page_of_shared_memory_has_its_own() {
        let mut slots = Slots::own(8, false);
        assert_eq!(slots.take(7), Some(Slot { slot: 7, zeroed: false }));
        assert_eq!(slots.take(8), None);
        slots.give(7);
        assert!(!slots.is_shared(7));
    }

    #[test]
    fn references_of_a_predecessor_are_counted() {
        let mut slots = Slots::pool(8, true);
        assert!([5, 2, 5].iter().all(|slot| slots.adopt(0, *slot)) && !slots.adopt(0, 8));
        slots.adopted();
        assert!(slots.is_shared(5) && !slots.is_shared(2));
        let mut free: Vec<_> = std::iter::from_fn(|| slots.take(0)).map(|taken| taken.slot).collect();
        free.sort_unstable();
        assert_eq!(free, [0, 1, 3, 4, 6, 7]);
    }

    #[test]
    fn no_reference_is_adopted_that_is_not_counted() {
        let mut slots = Slots::pool(1, false);
        assert!((0..REFERENCES_MAX).all(|_| slots.adopt(0, 0)) && !slots.adopt(0, 0));
        slots.adopted();
        (1..REFERENCES_MAX).for_each(|_| slots.give(0));
        assert_eq!(slots.take(0), None, "one reference is left");
    }

    #[test]
    fn a_slot_names_the_views_that_got_it_last() {
        let mut slots = Slots::pool(8, true);
        assert!(slots.adopt(0, 5));
        for view in [3, 4, 4, 3, 9] {
            slots.set_holder(5, ViewId(view));
        }
        assert_eq!((slots.holders(5), slots.holders(7)), ([ViewId(9), ViewId(3)], [ViewId(0); 2]));
        slots.set_holder(7, ViewId(1));
    }

    #[test]
    fn a_page_with_its_own_slot_adopts_no_other() {
        let mut slots = Slots::own(8, false);
        assert!(slots.adopt(3, 3) && !slots.adopt(3, 4) && !slots.adopt(8, 8));
    }
}
