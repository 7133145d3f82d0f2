//! Sizes of single accesses, with the numbers of accesses that belong to them.

/// Bytes of a line, as in CXL and in a processor's cache.
pub const LINE: usize = 64;
/// Bytes of a page, the unit of page faults.
pub const PAGE: usize = 4096;
/// Bytes of a stretch, the largest single access.
pub const STRETCH: usize = 1 << 20;

/// Size of a single access. An access with index `n` begins at `n` times this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessUnit {
    /// 64 bytes.
    Line,
    /// 4 KiB.
    Page,
    /// 1 MiB.
    Stretch,
}

impl AccessUnit {
    pub fn bytes(self) -> usize {
        match self {
            AccessUnit::Line => LINE,
            AccessUnit::Page => PAGE,
            AccessUnit::Stretch => STRETCH,
        }
    }

    /// Name of the size in the names of patterns.
    pub fn name(self) -> &'static str {
        match self {
            AccessUnit::Line => "64",
            AccessUnit::Page => "4k",
            AccessUnit::Stretch => "1m",
        }
    }

    /// Number of accesses in flight where `depth` lines would be: fewer of the larger units, of which each is several
    /// frames (a page three at an MTU of 1500), so that the rings on the path hold them.
    pub fn in_flight(self, depth: usize) -> usize {
        match self {
            AccessUnit::Line => depth,
            AccessUnit::Page => depth.div_ceil(4),
            AccessUnit::Stretch => depth.div_ceil(32),
        }
    }

    /// Minimum number of timed accesses of a pattern, whatever time they take.
    pub(crate) fn timed_min(self) -> u64 {
        match self {
            AccessUnit::Line | AccessUnit::Page => 20,
            AccessUnit::Stretch => 5,
        }
    }

    /// Number of accesses before the timed ones: they warm caches and wake sleeping threads.
    pub(crate) fn warm(self) -> u64 {
        match self {
            AccessUnit::Line | AccessUnit::Page => 10,
            AccessUnit::Stretch => 1,
        }
    }

    /// Maximum number of accesses in one call that has several in flight: so many that filling and draining the
    /// window takes a small part of the time.
    pub(crate) fn call_max(self) -> usize {
        match self {
            AccessUnit::Line => 4096,
            AccessUnit::Page => 1024,
            AccessUnit::Stretch => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_each_unit_are_in_flight() {
        let in_flight =
            |depth| [AccessUnit::Line, AccessUnit::Page, AccessUnit::Stretch].map(|u| u.in_flight(depth));
        assert_eq!(in_flight(128), [128, 32, 4]);
        assert_eq!(in_flight(1), [1, 1, 1]);
    }
}
