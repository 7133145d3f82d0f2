//! Parameters of a trial, the same for all peers.

use std::time::Duration;

use super::pattern::Pattern;
use super::trace::AccessTrace;
use super::unit::{AccessUnit, LINE, STRETCH};

#[derive(Debug)]
pub struct Plan {
    /// Patterns to measure, in the order of [`Pattern::ALL`]; with [`Pattern::Trace`] if there is a trace.
    pub patterns: Vec<Pattern>,
    /// Size of the memory in bytes, a multiple of [`BLOCK`](super::pattern::BLOCK).
    pub bytes: usize,
    /// Maximum number of single operations of a pattern.
    pub operations: u64,
    /// Approximate duration of a pattern; the pattern ends earlier if it completes `operations` operations.
    pub each: Duration,
    /// Number of lines in flight where many are, and in an access of a trace that needs several; see
    /// [`AccessUnit::in_flight`].
    pub depth: usize,
    /// Trace to be replayed, all of it in each trial.
    pub trace: Option<AccessTrace>,
}

impl Plan {
    /// True if peers that can do so measure this pattern.
    pub fn has(&self, pattern: Pattern) -> bool {
        self.patterns.contains(&pattern) && self.omission(pattern).is_none()
    }

    /// Reason why no peer measures this pattern in a memory of this size; `None` if they do.
    pub fn omission(&self, pattern: Pattern) -> Option<&'static str> {
        let is_stretch = pattern.read_shape().is_some_and(|shape| shape.unit == AccessUnit::Stretch);
        (is_stretch && self.bytes < STRETCH).then_some("the memory is smaller than 1 MiB: --size")
    }

    pub(crate) fn lines(&self) -> u64 {
        (self.bytes / LINE) as u64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Plan for all patterns except the trace, in a memory of `bytes` bytes.
    pub fn plan(bytes: usize, each: Duration) -> Plan {
        let patterns = Pattern::ALL.into_iter().filter(|pattern| *pattern != Pattern::Trace).collect();
        Plan { patterns, bytes, operations: 20_000, each, depth: 128, trace: None }
    }

    #[test]
    fn a_small_memory_has_no_stretches() {
        let small = plan(STRETCH - 65536, Duration::ZERO);
        assert!(!small.has(Pattern::Stream1m) && small.omission(Pattern::Stream1m).is_some());
        assert!(small.has(Pattern::Stream4k) && !small.has(Pattern::Trace));
        assert!(plan(STRETCH, Duration::ZERO).has(Pattern::Stream1m));
    }
}
