//! Pages that a leg misses: one bit each, and their number, so that neither the next page nor the end of a fill is
//! searched for in a whole region.

use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Debug, Default)]
pub(super) struct MissedPages {
    /// One bit for each 4 KiB page; without words for a leg in sync that misses no page.
    words: Vec<u64>,
    /// Number of bits that are set.
    count: u64,
    /// Index of the word at which the search for the next page begins.
    from: usize,
}

impl MissedPages {
    /// None of the `pages` pages of a leg.
    pub fn none(pages: u64) -> MissedPages {
        MissedPages { words: vec![0; pages.div_ceil(64) as usize], count: 0, from: 0 }
    }

    /// All `pages` pages of a leg.
    pub fn all(pages: u64) -> MissedPages {
        let mut words = vec![u64::MAX; pages.div_ceil(64) as usize];
        if let Some(last) = words.last_mut().filter(|_| !pages.is_multiple_of(64)) {
            *last = (1 << (pages % 64)) - 1;
        }
        MissedPages { words, count: pages, from: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn contains(&self, page: u64) -> bool {
        self.words.get(page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Adds a page; a leg in sync, which has no words, goes on missing none.
    pub fn insert(&mut self, page: u64) {
        if let Some(word) = self.words.get_mut(page as usize / 64) {
            self.count += u64::from(*word >> (page % 64) & 1 == 0);
            *word |= 1 << (page % 64);
        }
    }

    /// Removes and returns a page, in the order of pages; after the last one, the search begins again with the first.
    pub fn take(&mut self) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let (before, after) = self.words.split_at(self.from);
        let has_any = |word: &u64| *word != 0;
        let at = match after.iter().position(has_any) {
            Some(at) => self.from + at,
            None => before.iter().position(has_any)?,
        };
        let bit = self.words[at].trailing_zeros();
        self.words[at] &= self.words[at] - 1;
        self.count -= 1;
        self.from = at;
        Some(at as u64 * 64 + u64::from(bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_taken_once() {
        for pages in [1, 63, 64, 65, 200] {
            let mut missed = MissedPages::all(pages);
            assert!(missed.contains(pages - 1) && !missed.contains(pages));
            for page in 0..pages {
                assert_eq!(missed.take(), Some(page), "of {pages}");
                assert!(!missed.contains(page));
            }
            assert!(missed.is_empty());
            assert_eq!(missed.take(), None);
        }
    }

    #[test]
    fn a_page_that_is_missed_again_behind_the_search_is_taken() {
        let mut missed = MissedPages::none(300);
        [290, 5, 5, 131].into_iter().for_each(|page| missed.insert(page));
        assert_eq!(missed.take(), Some(5));
        assert_eq!(missed.take(), Some(131));
        missed.insert(5);
        assert_eq!((missed.take(), missed.take(), missed.take()), (Some(290), Some(5), None));
    }

    #[test]
    fn a_leg_in_sync_misses_nothing() {
        let mut missed = MissedPages::default();
        missed.insert(3);
        assert!(missed.is_empty() && !missed.contains(3));
        assert_eq!(missed.take(), None);
    }
}
