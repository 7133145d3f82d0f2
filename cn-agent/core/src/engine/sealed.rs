//! Sealed regions: their content never changes, so writes are refused before they reach the cache or a memory node.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Engine, EngineError};

/// Address ranges of sealed regions, ascending, not overlapping.
#[derive(Debug, Default)]
pub(super) struct SealedRanges(Vec<Range<u64>>);

impl SealedRanges {
    fn add(&mut self, range: Range<u64>) {
        let at = self.0.partition_point(|other| other.start < range.start);
        match self.0.get_mut(at).filter(|other| other.start == range.start) {
            Some(same) => *same = range,
            None => self.0.insert(at, range),
        }
    }

    /// Checks that a write of the `bytes` bytes from `hpa` on touches no sealed region.
    #[inline]
    pub fn check(&self, hpa: u64, bytes: u64) -> Result<(), EngineError> {
        if self.0.is_empty() || !touches(&self.0, hpa, bytes) {
            Ok(())
        } else {
            Err(EngineError::Sealed(hpa))
        }
    }

    pub fn take_over(&mut self, others: &mut SealedRanges) {
        others.0.drain(..).for_each(|range| self.add(range));
    }
}

/// Whether any of the `bytes` bytes from `hpa` on lies in one of `ranges`, which are ascending and do not overlap.
pub fn touches(ranges: &[Range<u64>], hpa: u64, bytes: u64) -> bool {
    let end = hpa.saturating_add(bytes);
    let first = ranges.partition_point(|range| range.end <= hpa);
    bytes > 0 && ranges.get(first).is_some_and(|range| range.start < end)
}

impl Engine {
    /// Refuses writes to the `bytes` bytes from `hpa` on, until [`unseal`](Self::unseal).
    pub fn seal(&mut self, hpa: u64, bytes: u64) {
        self.sealed.add(hpa..hpa.saturating_add(bytes));
    }

    /// Permits writes again to the sealed range that begins at `hpa`, if there is one; called when its region is
    /// detached.
    pub fn unseal(&mut self, hpa: u64) {
        self.sealed.0.retain(|range| range.start != hpa);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_touches_what_it_reaches() {
        let ranges = [100..150, 150..160, 200..210];
        for (hpa, bytes, touched) in [
            (0, 100, false),
            (0, 101, true),
            (99, 1, false),
            (149, 1, true),
            (160, 40, false),
            (160, 41, true),
            (209, 1, true),
            (210, u64::MAX, false),
            (0, u64::MAX, true),
            (120, 0, false),
        ] {
            assert_eq!(touches(&ranges, hpa, bytes), touched, "{bytes} from {hpa}");
        }
        assert!(!touches(&[], 0, u64::MAX));
    }

    #[test]
    fn what_is_sealed_stays_so_when_another_engine_takes_it_over() {
        let (mut sealed, mut more) = (SealedRanges::default(), SealedRanges::default());
        sealed.add(4096..8192);
        more.add(64..128);
        sealed.take_over(&mut more);
        assert_eq!((sealed.check(64, 64), more.check(0, u64::MAX)), (Err(EngineError::Sealed(64)), Ok(())));
        assert_eq!(
            (sealed.check(8128, 64), sealed.check(8192, 64)),
            (Err(EngineError::Sealed(8128)), Ok(()))
        );
    }
}
