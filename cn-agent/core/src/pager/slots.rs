//! Slots: the pages of a region's CMem, and how many tables of pages refer to each.
//!
//! A region that processes share has a slot for each page, the one of the same number. Memory that belongs to one
//! process takes slots as its pages leave for the first time, from those the region has; after a fork both processes
//! refer to the slots of pages neither has written since, and a page that one of them writes gets a slot of its own.

use alloc::vec::Vec;

/// The slots of a region.
#[derive(Debug)]
pub struct Slots {
    kind: Kind,
    count: u32,
    /// Never written since the region was created.
    fresh: bool,
}

#[derive(Debug)]
enum Kind {
    /// The page's own.
    Own,
    /// Any.
    Pool { references: Vec<u16>, free: Vec<u32>, next: u32 },
}

/// A slot for a page's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which.
    pub slot: u32,
    /// It is known to hold zeros.
    pub zeroed: bool,
}

/// References to a slot at most.
pub const REFERENCES_MAX: u16 = u16::MAX;

impl Slots {
    /// Each page its own; `fresh` when none was written since the region was created.
    pub fn own(count: u32, fresh: bool) -> Slots {
        Slots { kind: Kind::Own, count, fresh }
    }

    /// A pool of `count`; `fresh` when none was written since the region was created.
    pub fn pool(count: u32, fresh: bool) -> Slots {
        Slots { kind: Kind::Pool { references: Vec::new(), free: Vec::new(), next: 0 }, count, fresh }
    }

    /// Whether each page has its own.
    pub fn is_own(&self) -> bool {
        matches!(self.kind, Kind::Own)
    }

    /// Whether slots that no page refers to hold zeros, each page having its own.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Slots in use; all, where each page has its own.
    pub fn used(&self) -> u32 {
        match &self.kind {
            Kind::Own => self.count,
            Kind::Pool { free, next, .. } => next - free.len() as u32,
        }
    }

    /// A slot for `page`, if there is one.
    #[inline]
    pub fn take(&mut self, page: u32) -> Option<Slot> {
        match &mut self.kind {
            Kind::Own => (page < self.count).then_some(Slot { slot: page, zeroed: self.fresh }),
            Kind::Pool { references, free, next } => {
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
                Some(Slot { slot, zeroed: self.fresh })
            }
        }
    }

    /// Whether there is one for another page.
    pub fn has_free(&self) -> bool {
        match &self.kind {
            Kind::Own => true,
            Kind::Pool { free, next, .. } => !free.is_empty() || *next < self.count,
        }
    }

    /// The region has grown: a pool has `count` slots from now on, if that is more.
    pub fn grow(&mut self, count: u32) {
        if let Kind::Pool { .. } = self.kind {
            self.count = self.count.max(count);
        }
    }

    /// Whether others refer to the slot as well.
    #[inline]
    pub fn is_shared(&self, slot: u32) -> bool {
        match &self.kind {
            Kind::Own => false,
            Kind::Pool { references, .. } => references.get(slot as usize).is_some_and(|count| *count > 1),
        }
    }

    /// One reference more; `false` when there cannot be.
    #[inline]
    pub fn share(&mut self, slot: u32) -> bool {
        let Kind::Pool { references, .. } = &mut self.kind else { return true };
        match references.get_mut(slot as usize) {
            Some(count) if *count > 0 && *count < REFERENCES_MAX => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// One reference less; the last frees it.
    #[inline]
    pub fn give(&mut self, slot: u32) {
        let Kind::Pool { references, free, .. } = &mut self.kind else {
            // What it holds is nobody's, but not zero.
            self.fresh = false;
            return;
        };
        let Some(count) = references.get_mut(slot as usize).filter(|count| **count > 0) else { return };
        *count -= 1;
        if *count == 0 {
            free.push(slot);
        }
    }

    /// Counts a reference to `slot` found in the table of a predecessor for `page`; `false` when that page cannot have it.
    pub fn adopt(&mut self, page: u32, slot: u32) -> bool {
        match &mut self.kind {
            Kind::Own => slot == page && slot < self.count,
            Kind::Pool { references, free, next } => {
                if slot >= self.count {
                    return false;
                }
                if slot >= *next {
                    references.resize(slot as usize + 1, 0);
                    *next = slot + 1;
                }
                free.clear();
                let count = &mut references[slot as usize];
                *count = count.saturating_add(1);
                true
            }
        }
    }

    /// After the last [`adopt`](Self::adopt): what nobody refers to is free, and no slot is known to hold zeros.
    pub fn adopted(&mut self) {
        self.fresh = false;
        if let Kind::Pool { references, free, .. } = &mut self.kind {
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
    fn a_page_with_its_own_slot_adopts_no_other() {
        let mut slots = Slots::own(8, false);
        assert!(slots.adopt(3, 3) && !slots.adopt(3, 4) && !slots.adopt(8, 8));
    }
}
