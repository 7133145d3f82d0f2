//! Behaviour of one of several managers when it cannot take part in the election, or cannot lead: the pause
//! before the next attempt, and whether the setback is logged. The module does no I/O. No setback ends the
//! process, which ends only by a signal.

use std::time::Duration;

/// Pause between two reads of the leader's key, and after a setback that passes by itself.
pub const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Maximum pause after a request that etcd refused.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Minimum and maximum pause after this manager won the election and could not lead: the pause lets other
/// managers win.
const FAILED_PAUSE_MIN: Duration = Duration::from_secs(1);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Minimum time between two entries of the log about setbacks of one kind, in milliseconds.
const SAY_MS: u64 = 60_000;

/// Reason for which this manager neither leads nor follows a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setback {
    /// etcd does not answer, or has no quorum.
    Away,
    /// etcd refuses this manager's requests, or the leader's key has content that no manager writes.
    Refused,
    /// The lead is lost; the store is intact.
    Deposed,
    /// The store or a service of the leader cannot be used.
    Failed,
}

/// Reaction to a setback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Time until the next attempt.
    pub pause: Duration,
    pub log: bool,
}

/// Setbacks of one manager since its last success.
#[derive(Debug, Default)]
pub struct Candidacy {
    /// Kind of the last setback, and the number of consecutive setbacks of this kind.
    last: Option<(Setback, u32)>,
    /// Kind and time of the last setback that was logged.
    said: Option<(Setback, u64)>,
    /// True if a setback since the last success was logged.
    logged: bool,
}

impl Candidacy {
    /// Returns the reaction to a setback at `now_ms`, which is the time by any monotonic clock.
    pub fn after(&mut self, setback: Setback, now_ms: u64) -> Step {
        let before = self.last.filter(|(last, _)| *last == setback).map_or(0, |(_, count)| count);
        self.last = Some((setback, before.saturating_add(1)));
        let grown = |min: Duration, max: Duration| min.saturating_mul(1 << before.min(16)).min(max);
        let pause = match setback {
            Setback::Away | Setback::Deposed => LOOK_PAUSE,
            Setback::Refused => grown(LOOK_PAUSE, REFUSED_PAUSE_MAX),
            Setback::Failed => grown(FAILED_PAUSE_MIN, FAILED_PAUSE_MAX),
        };
        // Every loss of the lead is logged, because every gain of the lead was logged, too.
        let due = |(said, at_ms): (Setback, u64)| {
            said != setback || setback == Setback::Deposed || now_ms.saturating_sub(at_ms) >= SAY_MS
        };
        let log = self.said.is_none_or(due);
        if log {
            self.said = Some((setback, now_ms));
            self.logged = true;
        }
        Step { pause, log }
    }

    /// Notes that this manager follows or leads. Returns true if this ends a setback that was logged.
    pub fn succeed(&mut self) -> bool {
        self.last = None;
        std::mem::take(&mut self.logged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Setback::{Away, Deposed, Failed, Refused};

    #[test]
    fn pauses_follow_the_kind_of_setback() {
        for (setback, pauses_ms) in [
            (Away, [250, 250, 250, 250, 250, 250]),
            (Deposed, [250, 250, 250, 250, 250, 250]),
            (Refused, [250, 500, 1000, 2000, 2000, 2000]),
            (Failed, [1000, 2000, 4000, 8000, 16_000, 30_000]),
        ] {
            let mut candidacy = Candidacy::default();
            let pauses = [0; 6].map(|_| candidacy.after(setback, 0).pause.as_millis());
            assert_eq!(pauses, pauses_ms, "{setback:?}");
            candidacy.succeed();
            assert_eq!(candidacy.after(setback, 0).pause.as_millis(), pauses_ms[0], "{setback:?}");
        }
    }

    #[test]
    fn a_lasting_setback_is_logged_once_a_minute() {
        let mut candidacy = Candidacy::default();
        let logged = (0..10 * 60 * 4).filter(|tick| candidacy.after(Away, 7 + tick * 250).log).count();
        assert_eq!(logged, 10);
    }

    #[test]
    fn another_kind_is_logged_at_once() {
        let mut candidacy = Candidacy::default();
        let logged = [(Away, 0), (Away, 1), (Refused, 2), (Refused, 3), (Failed, 4), (Refused, 5)];
        let logged = logged.map(|(setback, now_ms)| candidacy.after(setback, now_ms).log);
        assert_eq!(logged, [true, false, true, false, true, true]);
    }

    #[test]
    fn a_success_in_between_does_not_make_the_log_longer() {
        let mut candidacy = Candidacy::default();
        assert!(candidacy.after(Away, 0).log && candidacy.succeed() && !candidacy.succeed());
        assert!(!candidacy.after(Away, 1000).log && !candidacy.succeed());
    }
}
