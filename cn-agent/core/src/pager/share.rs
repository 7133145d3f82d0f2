//! Which share of pages is written while they are in memory, as far as those that have left lately say.
//!
//! A page that comes write-protected and is written costs a fault of its own, as much as a third of fetching it. One that comes
//! writable and is not written costs a comparison when it leaves. So where more than a few of the pages that leave have been
//! written, those that come are made writable at once.

/// Pages that count: the older one is, the less it does.
const LATELY: u32 = 64;
/// A page that was written, in the unit of [`Share`].
const WHOLE: u32 = 1 << 16;
/// From where on it pays: one in so many.
const LIKELY: u32 = 8;

/// A share of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// One more page has left.
    #[inline]
    pub fn add(&mut self, written: bool) {
        self.0 -= self.0.div_ceil(LATELY);
        if written {
            self.0 += WHOLE / LATELY;
        }
    }

    /// Whether the next page will be written often enough for it to come writable.
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
        let mut share = Share::default();
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
        assert_eq!(share, Share::default());
    }
}
