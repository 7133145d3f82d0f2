//! Lines with a read in flight, so that no second request overtakes the read: a later write of the same line waits
//! (R7 allows the memory node to read again), and a second read waits for the first one's data.
//!
//! An open-addressing table from page of CMem to a mask of its 64 lines. The table's size follows from the windows,
//! so it never grows. A small table in front of it suffices for the usual window: page numbers are effectively
//! random, so each access to the large table would miss the CPU's caches.

use alloc::boxed::Box;
use alloc::vec;

/// Mark of a free slot. No page has this number: pages of CMem take 36 bits, and there are fewer than 2^28 memory
/// nodes.
const FREE: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Slot {
    page: u64,
    mask: u64,
}

/// Slots of the small table: more than the pages usually in flight, and few enough for the table to stay in the L1
/// cache.
const SMALL_PAGES: usize = 128;

pub(super) struct InFlight {
    /// Pages whose reads began while the small table had room.
    small: TagTable,
    /// Pages whose reads began while the small table was full.
    large: TagTable,
}

impl InFlight {
    /// A table with room for reads on `pages` pages at once.
    pub fn new(pages: usize) -> InFlight {
        Self::of_tables(SMALL_PAGES, pages)
    }

    fn of_tables(small: usize, large: usize) -> InFlight {
        InFlight { small: TagTable::new(small), large: TagTable::new(large) }
    }

    /// Whether any line of `page` that the mask `lines` selects is being read.
    #[inline]
    pub fn overlaps(&self, page: u64, lines: u64) -> bool {
        self.small.overlaps(page, lines) || self.large.overlaps(page, lines)
    }

    /// Records a read of `lines`; `false` if the table is full.
    #[inline]
    pub fn start(&mut self, page: u64, lines: u64) -> bool {
        // A page that is in one of the tables stays there, so that its lines are in one mask.
        let is_in_large = self.large.used > 0 && self.large.find(page).is_ok();
        (!is_in_large && self.small.start(page, lines)) || self.large.start(page, lines)
    }

    #[inline]
    pub fn finish(&mut self, page: u64, lines: u64) {
        if !self.small.finish(page, lines) {
            self.large.finish(page, lines);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.small.used + self.large.used
    }
}

struct TagTable {
    slots: Box<[Slot]>,
    mask: usize,
    used: usize,
}

impl TagTable {
    fn new(pages: usize) -> TagTable {
        let size = (pages * 2).next_power_of_two().max(16);
        TagTable {
            slots: vec![Slot { page: FREE, mask: 0 }; size].into_boxed_slice(),
            mask: size - 1,
            used: 0,
        }
    }

    #[inline]
    fn home(&self, page: u64) -> usize {
        // Fibonacci hashing: the multiplier, 2^64 divided by the golden ratio, spreads neighbouring pages.
        (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize & self.mask
    }

    #[inline]
    fn find(&self, page: u64) -> Result<usize, usize> {
        let mut at = self.home(page);
        loop {
            match self.slots[at].page {
                p if p == page => return Ok(at),
                FREE => return Err(at),
                _ => at = (at + 1) & self.mask,
            }
        }
    }

    #[inline]
    fn overlaps(&self, page: u64, lines: u64) -> bool {
        self.used > 0 && self.find(page).is_ok_and(|at| self.slots[at].mask & lines != 0)
    }

    /// Adds a read; `false` if the table is full.
    #[inline]
    fn start(&mut self, page: u64, lines: u64) -> bool {
        match self.find(page) {
            Ok(at) => self.slots[at].mask |= lines,
            // The table is kept at most half full, so that searches are short and always reach a free slot.
            Err(_) if self.used * 2 >= self.slots.len() => return false,
            Err(at) => {
                self.slots[at] = Slot { page, mask: lines };
                self.used += 1;
            }
        }
        true
    }

    /// Removes a read; `false` if the page is not in the table.
    #[inline]
    fn finish(&mut self, page: u64, lines: u64) -> bool {
        let Ok(mut hole) = self.find(page) else { return false };
        self.slots[hole].mask &= !lines;
        if self.slots[hole].mask != 0 {
            return true;
        }
        self.used -= 1;
        // Later entries move into the gap, so that searches still find them. An entry whose search begins after the gap
        // does not move.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let page = self.slots[at].page;
            if page == FREE {
                break;
            }
            let home = self.home(page);
            if (at.wrapping_sub(home) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = Slot { page: FREE, mask: 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((any::<bool>(), 0_u64..40, 1_u64..16), 0..400)) {
            // The small table is so small that both tables are used.
            let mut table = InFlight::of_tables(16, 64);
            let mut model: HashMap<u64, u64> = HashMap::new();
            for (start, page, lines) in ops {
                // Some page numbers are far apart and others close together, so that they collide.
                let page = if page % 2 == 0 { page } else { page << 30 };
                let present = model.get(&page).copied().unwrap_or(0);
                prop_assert_eq!(table.overlaps(page, lines), present & lines != 0);
                if start {
                    prop_assert!(table.start(page, lines));
                    *model.entry(page).or_default() |= lines;
                } else {
                    table.finish(page, lines);
                    if let Some(mask) = model.get_mut(&page) {
                        *mask &= !lines;
                        if *mask == 0 {
                            model.remove(&page);
                        }
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
