//! Pages of the window in use: one bit each, kept outside the window, so that giving back a page does not fetch it.
//!
//! The lowest range that fits is taken. Free pages contain zeros: a caller discards pages before it gives them back.

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// Bitmap of the pages of a window.
#[derive(Debug)]
pub struct Ranges<'a> {
    used: &'a mut [u64],
    pages: usize,
    /// Number of the first page among all pages of the process, for alignment.
    first: usize,
    /// Lower bound of the free pages.
    lowest: usize,
}

impl<'a> Ranges<'a> {
    /// Number of 64-bit words that the bitmap of `pages` pages takes.
    pub fn words(pages: usize) -> usize {
        pages.div_ceil(BITS)
    }

    /// Creates a bitmap in which all pages are free. `used` contains zeros; `first` is the number of the
    /// first page among all pages of the process.
    ///
    /// # Panics
    /// If the length of `used` is not [`words`](Self::words).
    pub fn new(used: &'a mut [u64], pages: usize, first: usize) -> Ranges<'a> {
        assert_eq!(used.len(), Self::words(pages), "a bit for each page");
        let mut ranges = Ranges { used, pages, first, lowest: 0 };
        // Bits behind the last page are marked as used.
        ranges.fill(pages..ranges.used.len() * BITS, true);
        ranges
    }

    /// Takes `count` pages in a row; the number of the first among all pages of the process is a multiple of `align`, a
    /// power of two.
    pub fn take(&mut self, count: usize, align: usize) -> Option<usize> {
        let start = self.find(count, align)?;
        self.fill(start..start + count, true);
        if start == self.lowest {
            self.lowest = start + count;
        }
        Some(start)
    }

    /// Takes the pages of a range, if all of them are free.
    pub fn take_at(&mut self, pages: Range<usize>) -> bool {
        if pages.end > self.pages || self.find_used(&pages, true).is_some() {
            return false;
        }
        self.fill(pages, true);
        true
    }

    /// Frees the pages of a range, all of which are in use.
    pub fn give(&mut self, pages: Range<usize>) {
        debug_assert!(self.find_used(&pages, false).is_none(), "pages {pages:?} are given back twice");
        self.lowest = self.lowest.min(pages.start);
        self.fill(pages, false);
    }

    /// Marks pages as used or free, whatever they were.
    pub fn set(&mut self, pages: Range<usize>, used: bool) {
        if !used {
            self.lowest = self.lowest.min(pages.start);
        }
        self.fill(pages, used);
    }

    /// Number of used pages in a range.
    pub fn count(&self, within: Range<usize>) -> usize {
        let (mut at, mut count) = (within.start, 0);
        while let Some(used) = self.next_used(at..within.end) {
            at = used.end;
            count += used.len();
        }
        count
    }

    /// The first run of used pages in a range.
    pub fn next_used(&self, within: Range<usize>) -> Option<Range<usize>> {
        let start = self.find_used(&within, true)?;
        let rest = start..within.end;
        Some(start..self.find_used(&rest, false).unwrap_or(rest.end))
    }

    fn find(&mut self, count: usize, align: usize) -> Option<usize> {
        debug_assert!(count > 0 && align.is_power_of_two());
        self.lowest = self.find_used(&(self.lowest..self.pages), false)?;
        let mut start = self.aligned(self.lowest, align)?;
        loop {
            let end = start.checked_add(count).filter(|end| *end <= self.pages)?;
            match self.find_used(&(start..end), true) {
                None => return Some(start),
                Some(used) => {
                    start = self.aligned(self.find_used(&(used..self.pages), false)?, align)?;
                }
            }
        }
    }

    fn aligned(&self, page: usize, align: usize) -> Option<usize> {
        Some((self.first + page).checked_next_multiple_of(align)? - self.first)
    }

    /// The first page of a range whose bit is `used`.
    fn find_used(&self, pages: &Range<usize>, used: bool) -> Option<usize> {
        let flip = if used { 0 } else { u64::MAX };
        let mut page = pages.start;
        while page < pages.end {
            let bits = (self.used[page / BITS] ^ flip) >> (page % BITS);
            if bits != 0 {
                return Some(page + bits.trailing_zeros() as usize).filter(|found| *found < pages.end);
            }
            page = (page / BITS + 1) * BITS;
        }
        None
    }

    fn fill(&mut self, pages: Range<usize>, used: bool) {
        let mut page = pages.start;
        while page < pages.end {
            let offset = page % BITS;
            let count = (BITS - offset).min(pages.end - page);
            let mask = (u64::MAX >> (BITS - count)) << offset;
            let word = &mut self.used[page / BITS];
            *word = if used { *word | mask } else { *word & !mask };
            page += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum RangesStep {
        Take {
            count: usize,
            align: u32,
        },
        Grow {
            which: usize,
            by: usize,
        },
        /// Gives back the part of a taken range that begins and ends this many pages into it.
        Give {
            which: usize,
            from: usize,
            to: usize,
        },
    }

    fn steps() -> impl Strategy<Value = RangesStep> {
        prop_oneof![
            (1_usize..100, 0_u32..5).prop_map(|(count, align)| RangesStep::Take { count, align }),
            (any::<usize>(), 1_usize..50).prop_map(|(which, by)| RangesStep::Grow { which, by }),
            (any::<usize>(), 0_usize..100, 1_usize..100).prop_map(|(which, from, to)| RangesStep::Give {
                which,
                from,
                to
            }),
        ]
    }

    proptest! {
        /// Tests against a model with one boolean for each page.
        #[test]
        fn the_lowest_range_that_fits(
            pages in 1_usize..400,
            first in 0_usize..1000,
            steps in prop::collection::vec(steps(), 0..100),
        ) {
            let mut words = vec![0; Ranges::words(pages)];
            let mut ranges = Ranges::new(&mut words, pages, first);
            let mut model = vec![false; pages];
            let mut held: Vec<Range<usize>> = Vec::new();
            for step in steps {
                match step {
                    RangesStep::Take { count, align } => {
                        let align = 1 << align;
                        let fits = |start: &usize| {
                            start + count <= pages && !model[*start..start + count].contains(&true)
                        };
                        let expected = (0..pages).filter(|page| (first + page).is_multiple_of(align)).find(fits);
                        prop_assert_eq!(ranges.take(count, align), expected);
                        if let Some(start) = expected {
                            model[start..start + count].fill(true);
                            held.push(start..start + count);
                        }
                    }
                    RangesStep::Grow { which, by } if !held.is_empty() => {
                        let which = which % held.len();
                        let more = held[which].end..held[which].end + by;
                        let free = more.end <= pages && !model[more.clone()].contains(&true);
                        prop_assert_eq!(ranges.take_at(more.clone()), free);
                        if free {
                            model[more.clone()].fill(true);
                            held[which].end = more.end;
                        }
                    }
                    RangesStep::Give { which, from, to } if !held.is_empty() => {
                        let range = held.swap_remove(which % held.len());
                        let start = (range.start + from).min(range.end - 1);
                        let end = (start + to).min(range.end);
                        ranges.give(start..end);
                        model[start..end].fill(false);
                        prop_assert_eq!(ranges.count(0..pages), model.iter().filter(|used| **used).count());
                        ranges.set(start..end, true);
                        prop_assert_eq!(ranges.count(start..end), end - start);
                        ranges.set(start..end, false);
                        held.extend([range.start..start, end..range.end].into_iter().filter(|r| !r.is_empty()));
                    }
                    _ => {}
                }
                let mut found = Vec::new();
                let mut at = 0;
                while let Some(used) = ranges.next_used(at..pages) {
                    at = used.end;
                    found.extend(used);
                }
                let expected: Vec<usize> = (0..pages).filter(|page| model[*page]).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
