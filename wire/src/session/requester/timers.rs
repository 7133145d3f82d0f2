//! Timers of a requester.
//!
//! | timer | armed by | when it expires |
//! |---|---|---|
//! | [`GiveUp`](Timer::GiveUp) | an offer | another Hello; the old session remains in use |
//! | [`Streams`](Timer::Streams) | a request, an answer, a session that takes requests (again); after each poll for the streams' next time | requests that are due are sent again (R5, R6, R8) |
//! | [`Ping`](Timer::Ping) | each poll, while the session is open: from the last frame or Ping on | Ping, if nothing has come since |
//! | [`Dead`](Timer::Dead) | each poll, while an answer is due | all unanswered requests fail |
//! | [`Suspect`](Timer::Suspect) | each poll, while an answer is due and the session is open | Hello for a new session |
//! | [`Rekey`](Timer::Rekey) | a session between keys | Hello for a session with new keys |
//! | [`Widen`](Timer::Widen) | a session of shorter frames than the links carry | Ping of the length that was lost |
//! | [`Retry`](Timer::Retry) | Hello, Start and Bye, each time for the next | the same frame again |
//!
//! Each frame received postpones Ping, Dead and Suspect. Arming them anew would cost time for each frame. So
//! they are left as they are: when one expires, it checks whether its condition really holds, and is armed
//! again.

use crate::machine::Deadline;
use crate::time::Time;

/// Timer; timers due at the same time are handled in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The Start stays unanswered.
    GiveUp,
    /// A stream has requests to retransmit.
    Streams,
    /// No frame has come for the Ping interval.
    Ping,
    /// An answer has been due for so long that the session counts as lost.
    Dead,
    /// An answer has been due for so long that the session is suspect.
    Suspect,
    /// The session's keys are due to be replaced.
    Rekey,
    /// The path may carry longer frames by now.
    Widen,
    /// Hello, Start or Bye is due to be sent again.
    Retry,
}

impl Timer {
    /// All timers, in the order in which they are handled.
    pub const ALL: [Timer; 8] = [
        Timer::GiveUp,
        Timer::Streams,
        Timer::Ping,
        Timer::Dead,
        Timer::Suspect,
        Timer::Rekey,
        Timer::Widen,
        Timer::Retry,
    ];

    /// Reason of a deadline, for logs.
    const fn reason(self) -> &'static str {
        match self {
            Timer::GiveUp => "a Start without an answer",
            Timer::Streams => "requests to send again",
            Timer::Ping => "a Ping",
            Timer::Dead => "the limit of a silence",
            Timer::Suspect => "a silence",
            Timer::Rekey => "new keys",
            Timer::Widen => "a probe of the path",
            Timer::Retry => "Hello, Start or Bye",
        }
    }
}

/// Time of a timer that is not armed.
const NEVER: Time = Deadline::NEVER.at;

#[derive(Clone, Debug)]
pub(super) struct Timers {
    at: [Time; Timer::ALL.len()],
    /// Time of the earliest timer, or an earlier time.
    next: Time,
    /// Timer that `next` was taken from.
    first: Timer,
}

impl Timers {
    pub const fn new() -> Timers {
        Timers { at: [NEVER; Timer::ALL.len()], next: NEVER, first: Timer::Streams }
    }

    /// Arms `timer` for `at`, whether it was armed before or not.
    #[inline]
    pub fn arm(&mut self, timer: Timer, at: Time) {
        self.at[timer as usize] = at;
        self.consider(timer);
    }

    /// Arms `timer` for `at`, unless it is armed for an earlier time.
    #[inline]
    pub fn arm_by(&mut self, timer: Timer, at: Time) {
        if at < self.at[timer as usize] {
            self.arm(timer, at);
        }
    }

    pub fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = NEVER;
    }

    /// Arms `timer` for `at`, or disarms it if there is no time.
    pub fn set(&mut self, timer: Timer, at: Option<Time>) {
        match at {
            Some(at) => self.arm(timer, at),
            None => self.stop(timer),
        }
    }

    /// Whether `timer` is due at `now`; disarms it if so.
    pub fn goes_off(&mut self, timer: Timer, now: Time) -> bool {
        let due = now >= self.at[timer as usize] && self.at[timer as usize] != NEVER;
        if due {
            self.stop(timer);
        }
        due
    }

    /// Time of the earliest timer; may be too early if a timer was stopped or postponed.
    #[inline]
    pub fn deadline(&self) -> Deadline {
        if self.next == NEVER { Deadline::NEVER } else { Deadline::new(self.next, self.first.reason()) }
    }

    /// Computes the next deadline at the end of a poll.
    pub fn settle(&mut self, now: Time) {
        (self.next, self.first) = (NEVER, Timer::Streams);
        for timer in Timer::ALL {
            self.consider(timer);
        }
        self.next = self.deadline().after(now).at;
    }

    /// Makes `timer` the first one if it is earlier than all considered before.
    #[inline]
    fn consider(&mut self, timer: Timer) {
        let at = self.at[timer as usize];
        if at < self.next {
            (self.next, self.first) = (at, timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_in_their_order() {
        for (place, timer) in Timer::ALL.into_iter().enumerate() {
            assert_eq!(timer as usize, place);
        }
    }

    #[test]
    fn goes_off_once_at_its_time() {
        let mut timers = Timers::new();
        assert!(Timer::ALL.into_iter().all(|timer| !timers.goes_off(timer, NEVER)));
        timers.arm(Timer::Ping, Time(50));
        timers.arm(Timer::Retry, Time(20));
        assert_eq!(timers.deadline(), Deadline::new(Time(20), "Hello, Start or Bye"));
        assert!(!timers.goes_off(Timer::Retry, Time(19)));
        assert!(timers.goes_off(Timer::Retry, Time(20)));
        assert!(!timers.goes_off(Timer::Retry, Time(20)));
        timers.settle(Time(20));
        assert_eq!(
            timers.deadline(),
            Deadline::new(Time(1_020), "a Ping"),
            "what is due already is looked at soon"
        );
        timers.stop(Timer::Ping);
        timers.settle(Time(20));
        assert!(timers.deadline().is_never());
    }

    #[test]
    fn an_earlier_time_stands() {
        let mut timers = Timers::new();
        timers.arm_by(Timer::Streams, Time(30));
        timers.arm_by(Timer::Streams, Time(40));
        assert_eq!(timers.deadline().at, Time(30));
        timers.arm_by(Timer::Streams, Time(10));
        assert!(timers.goes_off(Timer::Streams, Time(10)));
        timers.set(Timer::Streams, Some(Time(5_000)));
        timers.settle(Time(10));
        assert_eq!(timers.deadline().at, Time(5_000));
        timers.set(Timer::Streams, None);
        timers.settle(Time(10));
        assert!(timers.deadline().is_never());
    }
}
