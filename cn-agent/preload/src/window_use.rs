//! Records of the use of a window's pages: which are taken, and how many may still be committed.

use std::ops::Range;

use crate::ranges::Ranges;

#[derive(Debug)]
pub struct WindowUse {
    /// Pages that are committed or reserved.
    pub taken: Ranges<'static>,
    /// Pages of `taken` that do not count as committed.
    reserved: Ranges<'static>,
    /// Pages of `reserved` that may be touched; a page takes up room in the region only after it has been touched.
    touchable: Ranges<'static>,
    pub committed: usize,
    /// Maximum number of committed pages.
    pub committed_max: usize,
    /// Number of reserved pages.
    pub idle: usize,
    /// Number of pages that do not belong to the window any more.
    pub lost: usize,
}

impl WindowUse {
    /// Records of a window in which the pages in `taken` belong to no caller. The other two bitmaps are
    /// empty.
    pub fn new(
        taken: Ranges<'static>,
        [reserved, touchable]: [Ranges<'static>; 2],
        committed_max: usize,
    ) -> WindowUse {
        WindowUse { taken, reserved, touchable, committed: 0, committed_max, idle: 0, lost: 0 }
    }

    /// Commits pages, free or not; returns `false`, and changes nothing, if that would exceed the limit.
    pub fn commit(&mut self, pages: Range<usize>) -> bool {
        let idle = self.reserved.count(pages.clone());
        let more = pages.len() - self.taken.count(pages.clone()) + idle;
        if self.committed + more > self.committed_max {
            return false;
        }
        self.taken.set(pages.clone(), true);
        self.reserved.set(pages.clone(), false);
        self.touchable.set(pages, false);
        self.idle -= idle;
        self.committed += more;
        true
    }

    /// Commits those of these pages that must not be touched yet; returns `false`, and changes nothing, if that would
    /// exceed the limit.
    pub fn commit_reserved(&mut self, pages: Range<usize>) -> bool {
        let more = self.reserved.count(pages.clone()) - self.touchable.count(pages.clone());
        if self.committed + more > self.committed_max {
            return false;
        }
        let mut at = pages.start;
        while let Some(reserved) = self.next_untouchable(at..pages.end) {
            at = reserved.end;
            self.commit(reserved);
        }
        true
    }

    /// Takes `count` free pages as reserved ones; they may be touched if they are `touchable`.
    pub fn take_reserved(&mut self, count: usize, touchable: bool) -> Option<usize> {
        let first = self.taken.take(count, 1)?;
        self.reserved.set(first..first + count, true);
        self.touchable.set(first..first + count, touchable);
        self.idle += count;
        Some(first)
    }

    /// Turns pages, free or not, into reserved ones; they may be touched if they are `touchable`.
    pub fn reserve(&mut self, pages: Range<usize>, touchable: bool) {
        let (taken, idle) = (self.taken.count(pages.clone()), self.reserved.count(pages.clone()));
        self.committed -= taken - idle;
        self.idle += pages.len() - idle;
        self.taken.set(pages.clone(), true);
        self.reserved.set(pages.clone(), true);
        self.touchable.set(pages, touchable);
    }

    /// Removes pages from the counts of committed and reserved pages. Their bits in `taken` do not change.
    pub fn uncount(&mut self, pages: Range<usize>) {
        let idle = self.reserved.count(pages.clone());
        self.committed -= self.taken.count(pages.clone()) - idle;
        self.idle -= idle;
        self.reserved.set(pages.clone(), false);
        self.touchable.set(pages, false);
    }

    /// The first run of reserved pages in a range that must not be touched.
    pub fn next_untouchable(&self, within: Range<usize>) -> Option<Range<usize>> {
        let mut at = within.start;
        while let Some(reserved) = self.reserved.next_used(at..within.end) {
            match self.touchable.next_used(reserved.clone()) {
                None => return Some(reserved),
                Some(touchable) if touchable.start > reserved.start => {
                    return Some(reserved.start..touchable.start);
                }
                Some(touchable) => at = touchable.end,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 256;

    fn window_use(committed_max: usize) -> WindowUse {
        let ranges = || Ranges::new(Box::leak(vec![0; Ranges::words(PAGES)].into_boxed_slice()), PAGES, 0);
        WindowUse::new(ranges(), [ranges(), ranges()], committed_max)
    }

    #[test]
    fn memory_that_counts_when_touched_is_not_committed_before() {
        let mut used = window_use(50);
        assert!(used.commit(0..20));
        assert_eq!(used.take_reserved(100, true), Some(20));
        used.reserve(120..200, false);
        assert_eq!((used.committed, used.idle), (20, 180));
        assert_eq!(used.next_untouchable(0..PAGES), Some(120..200));
        assert_eq!(used.next_untouchable(0..120), None);
        // Pages that may be touched keep their state when they are made accessible; the others count as
        // committed.
        assert!(used.commit_reserved(110..130));
        assert_eq!((used.committed, used.idle), (30, 170));
        assert!(!used.commit_reserved(130..160), "20 pages are left");
        assert_eq!((used.committed, used.idle, used.next_untouchable(0..PAGES)), (30, 170, Some(130..200)));
        assert!(used.commit(100..110), "claimed as memory, they count");
        assert_eq!((used.committed, used.idle), (40, 160));
        used.uncount(0..200);
        used.taken.give(0..200);
        assert_eq!((used.committed, used.idle, used.next_untouchable(0..PAGES)), (0, 0, None));
    }
}
