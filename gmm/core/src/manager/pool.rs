//! Free extents of one memory node's pool, as runs. Allocation takes the lowest run that is long enough, so that
//! regions stay in few pieces; freeing merges neighbouring runs.

use std::collections::BTreeMap;

use cxloe_fabric::model::{ExtentRun, Extents};

/// Free extents as runs: first extent of each run, and its length. Runs are never adjacent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FreeExtents {
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl FreeExtents {
    pub fn all(count: u64) -> Self {
        Self { runs: (count > 0).then_some((0, count)).into_iter().collect(), count }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn extents(&self) -> Extents {
        self.runs.iter().map(|(&first, &count)| ExtentRun { first, count }).collect()
    }

    /// Allocates `count` extents: from the lowest run that holds them all, or else the lowest ones. Returns
    /// `None`, without any change, if fewer are free.
    pub fn take(&mut self, count: u64) -> Option<Extents> {
        if count == 0 || count > self.count() {
            return None;
        }
        let whole = self.runs.iter().find(|&(_, &len)| len >= count).map(|(&first, _)| first);
        let mut taken = Extents::default();
        let mut wanted = count;
        while wanted > 0 {
            let (first, len) = match whole {
                Some(first) => (first, self.runs.remove(&first)?),
                None => self.runs.pop_first()?,
            };
            let part = len.min(wanted);
            if part < len {
                self.runs.insert(first + part, len - part);
            }
            taken.push(ExtentRun { first, count: part });
            wanted -= part;
        }
        self.count -= count;
        Some(taken)
    }

    /// Returns the number of runs in which [`take`](Self::take) would allocate `count` extents.
    pub(super) fn runs_of(&self, count: u64) -> u64 {
        if self.runs.values().any(|len| *len >= count) {
            return 1;
        }
        let (mut left, mut runs) = (count, 0);
        for len in self.runs.values() {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(*len);
            runs += 1;
        }
        runs
    }

    /// Allocates exactly this run.
    ///
    /// # Errors
    /// An error if part of the run is allocated; the run is then unchanged.
    pub(super) fn take_run(&mut self, run: ExtentRun) -> Result<(), ()> {
        let end = run.first.checked_add(run.count).ok_or(())?;
        let (&first, &len) = self.runs.range(..=run.first).next_back().ok_or(())?;
        if run.count == 0 || end > first + len {
            return Err(());
        }
        self.runs.remove(&first);
        if first < run.first {
            self.runs.insert(first, run.first - first);
        }
        if end < first + len {
            self.runs.insert(end, first + len - end);
        }
        self.count -= run.count;
        Ok(())
    }

    /// Allocates those of the extents that are free, and ignores the others.
    pub(super) fn withhold(&mut self, extents: &Extents) {
        for run in extents.runs() {
            while let Some(free) = self.free_within(*run)
                && self.take_run(free).is_ok()
            {}
        }
    }

    /// Returns true if every extent of the run is free.
    pub(super) fn is_free(&self, run: ExtentRun) -> bool {
        self.free_within(run) == Some(run)
    }

    /// Returns the lowest free extents of the run that follow each other.
    pub(super) fn free_within(&self, run: ExtentRun) -> Option<ExtentRun> {
        let end = run.first.saturating_add(run.count);
        let below = self.runs.range(..run.first).next_back();
        let below = below.filter(|&(&first, &len)| first + len > run.first);
        let (&first, &len) = below.or_else(|| self.runs.range(run.first..end).next())?;
        let (first, end) = (first.max(run.first), end.min(first + len));
        (first < end).then_some(ExtentRun { first, count: end - first })
    }

    pub fn give(&mut self, extents: &Extents) {
        for run in extents.runs() {
            let (mut first, mut end) = (run.first, run.first + run.count);
            if let Some((&before, &len)) = self.runs.range(..first).next_back()
                && before + len == first
            {
                self.runs.remove(&before);
                first = before;
            }
            if let Some(len) = self.runs.remove(&end) {
                end += len;
            }
            self.runs.insert(first, end - first);
            self.count += run.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_long_run_is_preferred_to_pieces() {
        let mut free = FreeExtents::all(10);
        let low = free.take(2).unwrap();
        let _gap = free.take(2).unwrap();
        free.give(&low);
        assert_eq!(free.take(3).unwrap().runs(), [ExtentRun { first: 4, count: 3 }]);
        let rest = free.take(5).unwrap();
        assert_eq!(rest.runs(), [ExtentRun { first: 0, count: 2 }, ExtentRun { first: 7, count: 3 }]);
        assert_eq!(free.count(), 0);
        assert!(free.take(1).is_none());
    }

    #[test]
    fn a_run_that_is_not_all_free_is_not_taken() {
        let mut free = FreeExtents::all(8);
        free.take_run(ExtentRun { first: 2, count: 2 }).unwrap();
        let before = free.clone();
        for (first, count) in [(1, 2), (2, 1), (3, 4), (7, 2), (8, 1), (5, 0), (u64::MAX, 2)] {
            assert!(free.take_run(ExtentRun { first, count }).is_err(), "{first}+{count}");
        }
        assert_eq!(free, before);
    }

    #[test]
    fn of_a_run_that_is_partly_free_the_free_extents_are_withheld() {
        let mut free = FreeExtents::all(1 << 36);
        let taken = [(2, 2), (6, 1), (9, 3)].map(|(first, count)| ExtentRun { first, count });
        taken.into_iter().for_each(|run| free.take_run(run).unwrap());
        assert!(
            free.is_free(ExtentRun { first: 4, count: 2 }) && free.is_free(ExtentRun { first: 4, count: 1 })
        );
        for (first, count) in [(3, 2), (4, 3), (5, 4), (6, 1), (9, 3), ((1 << 36) - 1, 2), (u64::MAX, 2)] {
            assert!(!free.is_free(ExtentRun { first, count }), "{first}+{count}");
        }
        free.withhold(
            &[ExtentRun { first: 1, count: 10 }, ExtentRun { first: 3, count: 2 }].into_iter().collect(),
        );
        let left = [ExtentRun { first: 0, count: 1 }, ExtentRun { first: 12, count: (1 << 36) - 12 }];
        assert_eq!((free.extents().runs(), free.count()), (&left[..], (1 << 36) - 11));
        free.withhold(&[ExtentRun { first: 13, count: u64::MAX }].into_iter().collect());
        assert_eq!(free.count(), 2);
    }

    proptest! {
        /// In any order of allocation and freeing: no extent is allocated twice or lost, and runs are merged.
        #[test]
        fn taking_and_giving_conserves_extents(steps in prop::collection::vec((any::<bool>(), 1u64..20, any::<prop::sample::Index>()), 1..80)) {
            const POOL: u64 = 64;
            let mut free = FreeExtents::all(POOL);
            let mut held: Vec<Extents> = Vec::new();
            for (take, count, pick) in steps {
                if take {
                    let enough = count <= free.count();
                    let taken = free.take(count);
                    prop_assert_eq!(taken.is_some(), enough);
                    held.extend(taken);
                } else if !held.is_empty() {
                    let back = held.swap_remove(pick.index(held.len()));
                    free.give(&back);
                }
                let mut seen: Vec<u64> = held.iter().flat_map(Extents::iter).chain(free.extents().iter()).collect();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..POOL).collect::<Vec<_>>());
            }
            held.iter().for_each(|extents| free.give(extents));
            prop_assert_eq!(free, FreeExtents::all(POOL));
        }
    }
}
