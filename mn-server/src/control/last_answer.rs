//! Time since a manager's last answer, counted across restarts of the memory node. Otherwise each restart would
//! authorise all mappings for another day.
//!
//! Within a process the time is measured by a monotonic clock, between two processes by the wall clock. If the wall
//! clock was set back, the time between two processes counts as 0, and the time counted before is kept.

use cxloe_daemon::NodeState;
use serde::{Deserialize, Serialize};

/// Interval at which the time is stored, in milliseconds: a restart loses at most this if the wall clock was set back.
pub const KEEP_EVERY_MS: u64 = 60_000;

/// Stored time since a manager's last answer. The default is that of a node that has not run before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastAnswer {
    /// Time of storing, in milliseconds since the Unix epoch; 0: never stored.
    pub kept_ms: u64,
    /// Milliseconds since a manager's last answer, at the time of storing.
    pub silent_ms: u64,
}

impl LastAnswer {
    /// Milliseconds since a manager's last answer, at `now_ms` of the wall clock.
    pub fn silent_at(self, now_ms: u64) -> u64 {
        if self.kept_ms == 0 { 0 } else { self.silent_ms.saturating_add(now_ms.saturating_sub(self.kept_ms)) }
    }
}

impl NodeState for LastAnswer {
    const REMEDY: &str =
        "remove it, and compute nodes are served for a day from the next start on, also without a manager";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_goes_on_while_no_process_runs_and_no_clock_shortens_it() {
        let kept = LastAnswer { kept_ms: 1_000_000, silent_ms: 5_000 };
        assert_eq!(kept.silent_at(1_000_000), 5_000);
        assert_eq!(kept.silent_at(1_700_000), 705_000);
        assert_eq!(kept.silent_at(10), 5_000, "the clock was set back");
        assert_eq!(kept.silent_at(u64::MAX), u64::MAX - 1_000_000 + 5_000);
        assert_eq!(LastAnswer::default().silent_at(u64::MAX), 0, "it has not run before");
        assert_eq!(LastAnswer { kept_ms: 1, silent_ms: u64::MAX }.silent_at(9), u64::MAX);
    }
}
