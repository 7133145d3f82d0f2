//! Share of pages that are written while resident, estimated from recently evicted ones.
//!
//! A page that is installed write-protected and then written costs a further fault, which takes a third of the time of
//! a fetch. A page that is installed writable and not written costs a comparison when evicted. So if more than a few of
//! the evicted pages were written, pages are installed writable from the start.

/// Length of the moving average, in pages.
const LATELY: u32 = 64;
/// Weight of a written page, in the unit of [`PageShare`].
const WHOLE: u32 = 1 << 16;
/// Pages are installed writable if at least one evicted page in this many was written.
const LIKELY: u32 = 8;

/// Moving average of the share of pages that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageShare(u32);

impl PageShare {
    #[inline]
    pub fn add(&mut self, written: bool) {
        self.0 -= self.0.div_ceil(LATELY);
        if written {
            self.0 += WHOLE / LATELY;
        }
    }

    /// Whether pages are written often enough to be installed writable.
    #[inline]
    pub fn is_likely(self) -> bool {
        self.0 >= WHOLE / LIKELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_follows_what_leaves() {
        let mut share = PageShare::default();
        let mut pages = |written: fn(u32) -> bool, count: u32| {
            (0..count).for_each(|page| share.add(written(page)));
            share.is_likely()
        };
        assert!(!pages(|_| false, 10), "nothing is known");
        assert!(pages(|page| page % 4 == 0, 200));
        assert!(!pages(|_| false, 200), "who reads only is believed soon");
        assert!(!pages(|page| page % 32 == 0, 1000), "a few are none");
        assert!(pages(|_| true, 20));
        assert!(pages(|_| true, 100_000) && share.0 <= WHOLE + LATELY);
        (0..100_000).for_each(|_| share.add(false));
        assert_eq!(share, PageShare::default());
    }
}
