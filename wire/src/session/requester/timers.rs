//! The timers of a requester: which there are, and when each goes off.
//!
//! | timer | armed by | when it goes off |
//! |---|---|---|
//! | [`GiveUp`](Timer::GiveUp) | an offer | another Hello; the old session goes on |
//! | [`Streams`](Timer::Streams) | a request, an answer, a session that takes requests (again); after each poll for the streams' next time | what is due again is sent again (R5, R6, R8) |
//! | [`Ping`](Timer::Ping) | each poll, while the session is open: from the last frame or Ping on | Ping, if nothing has come since |
//! | [`Dead`](Timer::Dead) | each poll, while something is owed | everything unanswered fails |
//! | [`Suspect`](Timer::Suspect) | each poll, while something is owed and the session is open | Hello for a new session |
//! | [`Rekey`](Timer::Rekey) | a session between keys | Hello for a session with new keys |
//! | [`Retry`](Timer::Retry) | Hello, Start and Bye, each time for the next | the same again |
//!
//! What is heard moves Ping, Dead and Suspect back. That would be work for each frame, so it is not done: they go off
//! when they were armed for, look whether it is really time, and are armed again.

use core::time::Duration;

use crate::time::Time;

/// What waits for a time. In the order in which those that are due together go off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// A Start is not answered.
    GiveUp,
    /// The streams have something to send again.
    Streams,
    /// The session has been idle.
    Ping,
    /// An answer has been owed for so long that the session is lost.
    Dead,
    /// An answer has been owed for long.
    Suspect,
    /// The keys of the session have been in use for long enough.
    Rekey,
    /// Hello, Start or Bye goes again.
    Retry,
}

impl Timer {
    /// All, in the order in which they go off.
    pub const ALL: [Timer; 7] =
        [Timer::GiveUp, Timer::Streams, Timer::Ping, Timer::Dead, Timer::Suspect, Timer::Rekey, Timer::Retry];
}

/// Not armed.
const NEVER: Time = Time(u64::MAX);

/// When each timer goes off.
#[derive(Clone, Debug)]
pub(super) struct Timers {
    at: [Time; Timer::ALL.len()],
    /// The earliest of them, or earlier.
    next: Time,
}

impl Timers {
    /// None armed.
    pub const fn new() -> Timers {
        Timers { at: [NEVER; Timer::ALL.len()], next: NEVER }
    }

    /// `timer` goes off at `at`, whatever it was armed for before.
    #[inline]
    pub fn arm(&mut self, timer: Timer, at: Time) {
        self.at[timer as usize] = at;
        self.next = self.next.min(at);
    }

    /// `timer` goes off at `at`, or earlier if it was armed for earlier.
    #[inline]
    pub fn arm_by(&mut self, timer: Timer, at: Time) {
        if at < self.at[timer as usize] {
            self.arm(timer, at);
        }
    }

    /// `timer` does not go off.
    pub fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = NEVER;
    }

    /// `timer` goes off at `at`, or not.
    pub fn set(&mut self, timer: Timer, at: Option<Time>) {
        match at {
            Some(at) => self.arm(timer, at),
            None => self.stop(timer),
        }
    }

    /// Whether `timer` is due at `now`; it is not armed any more then.
    pub fn goes_off(&mut self, timer: Timer, now: Time) -> bool {
        let due = now >= self.at[timer as usize] && self.at[timer as usize] != NEVER;
        if due {
            self.stop(timer);
        }
        due
    }

    /// When the next timer goes off; sometimes earlier, when one was stopped or armed for later.
    #[inline]
    pub fn next_timeout(&self) -> Time {
        self.next
    }

    /// Finds out when the next goes off, at the end of a poll. One that could not do its work yet would be polled for
    /// ever: it waits a microsecond.
    pub fn settle(&mut self, now: Time) {
        let earliest = self.at.iter().fold(NEVER, |earliest, at| earliest.min(*at));
        self.next = earliest.max(now + Duration::from_micros(1));
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
        assert_eq!(timers.next_timeout(), Time(20));
        assert!(!timers.goes_off(Timer::Retry, Time(19)));
        assert!(timers.goes_off(Timer::Retry, Time(20)));
        assert!(!timers.goes_off(Timer::Retry, Time(20)));
        timers.settle(Time(20));
        assert_eq!(timers.next_timeout(), Time(1_020), "what is due already is looked at soon");
        timers.stop(Timer::Ping);
        timers.settle(Time(20));
        assert_eq!(timers.next_timeout(), NEVER);
    }

    #[test]
    fn an_earlier_time_stands() {
        let mut timers = Timers::new();
        timers.arm_by(Timer::Streams, Time(30));
        timers.arm_by(Timer::Streams, Time(40));
        assert_eq!(timers.next_timeout(), Time(30));
        timers.arm_by(Timer::Streams, Time(10));
        assert!(timers.goes_off(Timer::Streams, Time(10)));
        timers.set(Timer::Streams, Some(Time(5_000)));
        timers.settle(Time(10));
        assert_eq!(timers.next_timeout(), Time(5_000));
        timers.set(Timer::Streams, None);
        timers.settle(Time(10));
        assert_eq!(timers.next_timeout(), NEVER);
    }
}
