//! Which lines have a read on its way, so that no second request overtakes it: a later write of the same
//! line waits (R7 lets the memory node read again), and a second read waits for the first one's data.
//!
//! An open-addressing table from page of CMem to a mask of its 64 lines. Its size follows from the windows, so it
//! never grows. Before it stands a small one, which is enough for the usual window: pages are as good as random, so each
//! would be looked for in a place of the large table that no cache has, which a read has to wait for.

use alloc::boxed::Box;
use alloc::vec;

/// Marks a free slot; no page has this number, because pages of CMem take 36 bits and there are fewer than 2^28 memory
/// nodes.
const FREE: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Slot {
    page: u64,
    mask: u64,
}

/// Pages that the small table has room for: more than are usually on their way at once, and few enough for it to stay in
/// the fastest cache.
const SMALL_PAGES: usize = 128;

/// The lines that are being read.
pub(super) struct InFlight {
    /// Pages whose reads began when few were on their way.
    small: Table,
    /// All others.
    large: Table,
}

impl InFlight {
    /// With room for reads on `pages` pages at once.
    pub fn new(pages: usize) -> InFlight {
        Self::of_tables(SMALL_PAGES, pages)
    }

    fn of_tables(small: usize, large: usize) -> InFlight {
        InFlight { small: Table::new(small), large: Table::new(large) }
    }

    /// Whether any of `lines` of `page` is being read.
    #[inline]
    pub fn overlaps(&self, page: u64, lines: u64) -> bool {
        self.small.overlaps(page, lines) || self.large.overlaps(page, lines)
    }

    /// Notes a read of `lines`. `false` if the table is full.
    #[inline]
    pub fn start(&mut self, page: u64, lines: u64) -> bool {
        let is_in_large = self.large.used > 0 && self.large.find(page).is_ok();
        (!is_in_large && self.small.start(page, lines)) || self.large.start(page, lines)
    }

    /// Notes the end of a read of `lines`.
    #[inline]
    pub fn finish(&mut self, page: u64, lines: u64) {
        if !self.small.finish(page, lines) {
            self.large.finish(page, lines);
        }
    }

    /// Pages with a read on its way.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.small.used + self.large.used
    }
}

struct Table {
    slots: Box<[Slot]>,
    mask: usize,
    used: usize,
}

impl Table {
    fn new(pages: usize) -> Table {
        let size = (pages * 2).next_power_of_two().max(16);
        Table { slots: vec![Slot { page: FREE, mask: 0 }; size].into_boxed_slice(), mask: size - 1, used: 0 }
    }

    #[inline]
    fn home(&self, page: u64) -> usize {
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

    /// `false` if the table is full.
    #[inline]
    fn start(&mut self, page: u64, lines: u64) -> bool {
        match self.find(page) {
            Ok(at) => self.slots[at].mask |= lines,
            Err(_) if self.used * 2 >= self.slots.len() => return false,
            Err(at) => {
                self.slots[at] = Slot { page, mask: lines };
                self.used += 1;
            }
        }
        true
    }

    /// `false` if nothing is known of the page.
    #[inline]
    fn finish(&mut self, page: u64, lines: u64) -> bool {
        let Ok(mut hole) = self.find(page) else { return false };
        self.slots[hole].mask &= !lines;
        if self.slots[hole].mask != 0 {
            return true;
        }
        self.used -= 1;
        // Close the gap, so that searches still find what lies behind it.
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
            // Both tables are used.
            let mut table = InFlight::of_tables(16, 64);
            let mut model: HashMap<u64, u64> = HashMap::new();
            for (start, page, lines) in ops {
                // Pages far apart and close together, to make them collide.
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
