//! For how long no manager has been heard, across restarts: a memory node that is started anew goes on counting where it
//! was, or restarting it would authorise everybody for another day.
//!
//! The time that a process runs is counted by a clock that nobody sets. The time between two processes is known by the
//! wall clock alone; where that was set back, it counts as none, and what was counted before still does.

use cxloe_daemon::Remembered;
use serde::{Deserialize, Serialize};

/// How often it is kept, in milliseconds: what a restart may lose where the wall clock was set back.
pub const KEEP_EVERY_MS: u64 = 60_000;

/// When a manager was heard last, as it is kept. Its default is that of a node that has not run before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// When this was kept: milliseconds since the Unix epoch; 0: never.
    pub kept_ms: u64,
    /// For how many milliseconds no manager had been heard then.
    pub silent_ms: u64,
}

impl Heard {
    /// For how many milliseconds no manager has been heard at `now_ms` of the wall clock, as far as this tells.
    pub fn silent_at(self, now_ms: u64) -> u64 {
        if self.kept_ms == 0 { 0 } else { self.silent_ms.saturating_add(now_ms.saturating_sub(self.kept_ms)) }
    }
}

impl Remembered for Heard {
    const REMEDY: &str =
        "remove it, and compute nodes are served for a day from the next start on, also without a manager";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_goes_on_while_no_process_runs_and_no_clock_shortens_it() {
        let kept = Heard { kept_ms: 1_000_000, silent_ms: 5_000 };
        assert_eq!(kept.silent_at(1_000_000), 5_000);
        assert_eq!(kept.silent_at(1_700_000), 705_000);
        assert_eq!(kept.silent_at(10), 5_000, "the clock was set back");
        assert_eq!(kept.silent_at(u64::MAX), u64::MAX - 1_000_000 + 5_000);
        assert_eq!(Heard::default().silent_at(u64::MAX), 0, "it has not run before");
        assert_eq!(Heard { kept_ms: 1, silent_ms: u64::MAX }.silent_at(9), u64::MAX);
    }
}
