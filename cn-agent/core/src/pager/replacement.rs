//! Which page leaves memory next.
//!
//! Nobody tells the pager which resident pages are used: an access to a page that is there is no fault. So pages are
//! judged by whether they come back. A page that was not here lately enters a small queue, *young*; what leaves memory
//! is remembered for a while, and what comes back meanwhile enters the large queue, *proven*, where it stays long. A
//! scan passes through the small queue and leaves the large one as it is. (The idea is 2Q's, without its hits.)
//!
//! Queues hold page numbers and are never searched: a page that has left otherwise is passed over when its turn comes.

use alloc::collections::VecDeque;

use super::memory::ViewId;

/// The young queue's share of resident pages: one in this many.
const YOUNG_SHARE: u32 = 4;

/// A page of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// The view.
    pub view: ViewId,
    /// The page.
    pub page: u32,
}

/// What is remembered of a page that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Nothing is forgotten.
    Nothing,
    /// This page is no longer remembered.
    Page(PageRef),
}

/// The queues.
#[derive(Debug, Default)]
pub struct Replacement {
    young: VecDeque<PageRef>,
    proven: VecDeque<PageRef>,
    recent: VecDeque<PageRef>,
    limit: u32,
}

impl Replacement {
    /// For up to `limit` resident pages.
    pub fn new(limit: u32) -> Replacement {
        Replacement { limit, ..Replacement::default() }
    }

    /// Changes how many pages there may be.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes room for all there may be, so that nothing is allocated later.
    pub fn reserve(&mut self) {
        let most = self.limit as usize * 2 + 64;
        [&mut self.young, &mut self.proven, &mut self.recent]
            .into_iter()
            .for_each(|queue| queue.reserve(most));
    }

    /// A page has come; `recent`: it is remembered.
    #[inline]
    pub fn entered(&mut self, page: PageRef, recent: bool) {
        if recent { self.proven.push_back(page) } else { self.young.push_back(page) }
    }

    /// The page whose turn it is. The caller looks whether it is still there, and calls again if not.
    #[inline]
    pub fn next(&mut self) -> Option<PageRef> {
        let share = (self.limit / YOUNG_SHARE).max(1) as usize;
        if self.young.len() > share || self.proven.is_empty() {
            self.young.pop_front().or_else(|| self.proven.pop_front())
        } else {
            self.proven.pop_front()
        }
    }

    /// A page cannot leave now; its turn comes again.
    #[inline]
    pub fn spared(&mut self, page: PageRef, recent: bool) {
        self.entered(page, recent);
    }

    /// A page has left and is to be remembered; which one is forgotten for it.
    #[inline]
    pub fn left(&mut self, page: PageRef) -> Forget {
        self.recent.push_back(page);
        if self.recent.len() > (self.limit / 2).max(1) as usize {
            return self.recent.pop_front().map_or(Forget::Nothing, Forget::Page);
        }
        Forget::Nothing
    }

    /// How many entries the queues of resident pages have, stale ones included.
    pub fn entries(&self) -> usize {
        self.young.len() + self.proven.len()
    }

    /// Keeps only entries of pages that `is_here` knows; for when stale ones have become many.
    pub fn clean(&mut self, mut is_here: impl FnMut(PageRef) -> bool) {
        self.young.retain(|page| is_here(*page));
        self.proven.retain(|page| is_here(*page));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const PAGES: u32 = 4096;
    const LIMIT: u32 = PAGES / 2;

    fn page(page: u32) -> PageRef {
        PageRef { view: ViewId(0), page }
    }

    /// The share of accesses that find their page.
    fn hit_rate(accesses: impl Iterator<Item = u32>) -> f64 {
        let mut queue = Replacement::new(LIMIT);
        let (mut here, mut recent) = (HashSet::new(), HashSet::new());
        let (mut hits, mut count) = (0, 0);
        for access in accesses {
            count += 1;
            if here.contains(&access) {
                hits += 1;
                continue;
            }
            if here.len() as u32 == LIMIT {
                let victim = queue.next().unwrap().page;
                assert!(here.remove(&victim));
                recent.insert(victim);
                if let Forget::Page(old) = queue.left(page(victim)) {
                    recent.remove(&old.page);
                }
            }
            queue.entered(page(access), recent.remove(&access));
            here.insert(access);
        }
        f64::from(hits) / f64::from(count)
    }

    /// Page ranks by Zipf's law with exponent 1.
    fn zipf(seed: u64) -> impl Iterator<Item = u32> {
        let total: f64 = (1..=PAGES).map(|rank| 1.0 / f64::from(rank)).sum();
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for rank in 1..=PAGES {
            sum += 1.0 / f64::from(rank) / total;
            sums.push(sum);
        }
        let mut random = StdRng::seed_from_u64(seed);
        std::iter::repeat_with(move || {
            let at = random.random::<f64>();
            sums.partition_point(|sum| *sum < at) as u32
        })
    }

    /// The same for pages that leave in the order in which they came.
    fn hit_rate_in_order(accesses: impl Iterator<Item = u32>) -> f64 {
        let (mut here, mut queue) = (HashSet::new(), VecDeque::new());
        let (mut hits, mut count) = (0, 0);
        for access in accesses {
            count += 1;
            if !here.insert(access) {
                hits += 1;
                continue;
            }
            queue.push_back(access);
            if queue.len() as u32 > LIMIT {
                here.remove(&queue.pop_front().unwrap());
            }
        }
        f64::from(hits) / f64::from(count)
    }

    #[test]
    fn pages_in_frequent_use_stay() {
        let (rate, in_order) = (hit_rate(zipf(1).take(400_000)), hit_rate_in_order(zipf(1).take(400_000)));
        assert!(rate > in_order + 0.01, "{rate} {in_order}");
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used() {
        let scan = PAGES..PAGES + 200_000;
        let mixed = zipf(2).take(200_000).zip(scan).flat_map(|(used, scanned)| [used, scanned]);
        let rate = hit_rate(mixed) * 2.0;
        assert!(rate > 0.70, "{rate}");
    }
}
