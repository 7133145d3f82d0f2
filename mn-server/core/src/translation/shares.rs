//! Sealed memory that CNs other than its owner may read: ranges of a reader's CMem that stand for ranges of the owner's.
//!
//! The mapping remains the owner's: a reader gets only mappings that are sealed, and only as long as the
//! owner has them. Each worker has its own copy of the list and renews it when it purges its TLB, so that no
//! request takes a lock.

use std::sync::{Arc, Mutex, PoisonError};

use super::entry::CnId;

/// Range of a reader's CMem that stands for a range of the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    pub reader: CnId,
    pub first: u64,
    pub count: u64,
    pub owner: CnId,
    pub owner_first: u64,
}

#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<Arc<[Share]>>);

impl Shares {
    /// Replaces the list. A worker uses the new list when it has passed the generation that the caller begins next.
    pub fn set(&self, mut shares: Vec<Share>) {
        shares.sort_unstable();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shares.into();
    }

    /// List of shares, sorted by reader and extent.
    pub fn current(&self) -> Arc<[Share]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the CN may read memory of another.
    pub fn has_reader(&self, cn: CnId) -> bool {
        let shares = self.current();
        let first = shares.partition_point(|share| share.reader < cn);
        shares.get(first).is_some_and(|share| share.reader == cn)
    }
}

/// Owner and owner's CMem extent that a reader's CMem extent stands for; `shares` are sorted.
#[inline]
pub(super) fn find(shares: &[Share], reader: CnId, extent: u64) -> Option<(CnId, u64)> {
    let behind = shares.partition_point(|share| (share.reader, share.first) <= (reader, extent));
    let share = shares.get(behind.checked_sub(1)?)?;
    let at = extent.checked_sub(share.first).filter(|at| *at < share.count)?;
    (share.reader == reader).then_some((share.owner, share.owner_first + at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_stands_for_its_range_alone() {
        let shares = Shares::default();
        let share = |reader, first, owner_first| Share { reader, first, count: 3, owner: 9, owner_first };
        shares.set(vec![share(7, 20, 100), share(5, 20, 200), share(7, 4, 300)]);
        let all = shares.current();
        for (reader, extent, expected) in [
            (5, 19, None),
            (5, 20, Some((9, 200))),
            (5, 22, Some((9, 202))),
            (5, 23, None),
            (6, 21, None),
            (7, 4, Some((9, 300))),
            (7, 7, None),
            (7, 21, Some((9, 101))),
            (8, 21, None),
        ] {
            assert_eq!(find(&all, reader, extent), expected, "{reader} {extent}");
        }
        assert_eq!(find(&[], 5, 20), None);
        assert!(
            shares.has_reader(5) && shares.has_reader(7) && !shares.has_reader(6) && !shares.has_reader(9)
        );
    }
}
