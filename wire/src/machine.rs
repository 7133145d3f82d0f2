//! The contract of every state machine that decides over time: requester, responder, service, engine, transfers,
//! followers and manager. Time plays no part in the pager, whose loop differs.
//!
//! A machine has no clock, thread or socket. Whoever owns these drives it by the same loop:
//!
//! ```text
//!   loop {
//!       for input in inputs { machine.handle(input, now, outputs); }
//!       if machine.deadline().is_due(now) { machine.poll(now, outputs); }
//!       while let Some(output) = machine.poll_event() { ... }
//!       wait for inputs, until machine.deadline() at the latest
//!   }
//! ```
//!
//! * Inputs come with the time, which never goes back.
//! * Outputs leave during the call, through the traits passed to it: frames into slots of the transmit ring, results to
//!   their receiver. Nothing is queued in between.
//! * Outputs that no trait takes are kept: events, computations for other threads, requests held back to share a frame.
//!   The caller takes them before it waits; [`StateMachine::undrained`] names one that is left.
//! * The [`Deadline`] carries its reason. A machine that was polled at its deadline has a later one, or none, so that
//!   the loop always comes to the wait.
//!
//! [`check`] compares a caller with the contract: the simulation before every wait, the daemons in debug builds.

use core::fmt;
use core::time::Duration;

use crate::time::Time;

/// Minimum distance of a deadline from the poll before it. Work for which there was no room, as in a full transmit ring,
/// is due again only then; otherwise its caller would poll in an endless loop.
const STEP_MIN: Duration = Duration::from_micros(1);

/// Time at which a machine has to be polled, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// On the clock of the `now` that the machine gets.
    pub at: Time,
    /// Work that is due then, for logs and for the messages of failed runs.
    pub reason: &'static str,
}

impl Deadline {
    /// No deadline: only an input brings work.
    pub const NEVER: Deadline = Deadline { at: Time(u64::MAX), reason: "an input" };

    /// Makes the deadline `at`, for `reason`.
    #[inline]
    pub const fn new(at: Time, reason: &'static str) -> Deadline {
        Deadline { at, reason }
    }

    /// Whether the machine has to be polled at `now`.
    #[inline]
    pub fn is_due(self, now: Time) -> bool {
        now >= self.at
    }

    /// Whether there is no deadline.
    #[inline]
    pub fn is_never(self) -> bool {
        self.at == Deadline::NEVER.at
    }

    /// Returns the earlier of both, `self` if they are at the same time.
    #[inline]
    #[must_use]
    pub fn min(self, other: Deadline) -> Deadline {
        if other.at < self.at { other } else { self }
    }

    /// Replaces the deadline by `other` if that is earlier.
    #[inline]
    pub fn keep_earlier(&mut self, other: Deadline) {
        // A branch instead of `min`: on the data path `other` is hardly ever earlier, and its reason need not be found.
        if other.at < self.at {
            *self = other;
        }
    }

    /// Returns the deadline of a machine that was polled at `now`: at least a microsecond later.
    #[inline]
    #[must_use]
    pub fn after(self, now: Time) -> Deadline {
        Deadline { at: self.at.max(now + STEP_MIN), ..self }
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_never() { f.write_str(self.reason) } else { write!(f, "{} at {}", self.reason, self.at) }
    }
}

/// A machine that is driven as the [module](self) describes. `handle` and `poll` are its own methods, because outputs
/// differ; the trait has what a caller asks before it waits.
pub trait StateMachine {
    /// Returns the time of the next poll, and its reason. May be too early, as a timer may have been stopped since.
    fn deadline(&self) -> Deadline;

    /// Names an output that the caller has not taken yet; `None` if it may wait.
    fn undrained(&self) -> Option<&'static str> {
        None
    }
}

/// Respect in which a caller was about to break the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContractBreach {
    /// An output of this kind is still kept.
    Undrained(&'static str),
    /// The machine was not polled.
    Overdue(Deadline),
}

impl fmt::Display for ContractBreach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContractBreach::Undrained(output) => write!(f, "waits, but nobody has taken: {output}"),
            ContractBreach::Overdue(deadline) => write!(f, "waits, but a timer was due: {deadline}"),
        }
    }
}

/// Checks that a caller which is about to wait at `now` has polled `machine` and taken its outputs.
///
/// # Errors
/// The first respect in which it has not.
pub fn check(machine: &impl StateMachine, now: Time) -> Result<(), ContractBreach> {
    let deadline = machine.deadline();
    if deadline.is_due(now) {
        return Err(ContractBreach::Overdue(deadline));
    }
    machine.undrained().map_or(Ok(()), |output| Err(ContractBreach::Undrained(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kept(Deadline, Option<&'static str>);

    impl StateMachine for Kept {
        fn deadline(&self) -> Deadline {
            self.0
        }

        fn undrained(&self) -> Option<&'static str> {
            self.1
        }
    }

    #[test]
    fn the_earlier_deadline_stands_with_its_reason() {
        let (ping, hello) = (Deadline::new(Time(50), "Ping"), Deadline::new(Time(20), "Hello"));
        let mut deadline = Deadline::NEVER;
        for (next, stands) in [(ping, ping), (hello, hello), (ping, hello), (Deadline::NEVER, hello)] {
            assert_eq!(deadline.min(next), stands);
            deadline.keep_earlier(next);
            assert_eq!(deadline, stands);
        }
        let same = Deadline::new(Time(20), "Bye");
        assert_eq!((hello.min(same), same.min(hello)), (hello, same), "at one time, the first stands");
        assert!(deadline.is_due(Time(20)) && !deadline.is_due(Time(19)) && !deadline.is_never());
        assert_eq!(deadline.to_string(), "Hello at 0.000020ms");
    }

    #[test]
    fn a_deadline_is_later_than_the_poll_before_it() {
        let due = Deadline::new(Time(20), "room");
        assert_eq!(due.after(Time(20)), Deadline::new(Time(1_020), "room"));
        assert_eq!(due.after(Time(7)), Deadline::new(Time(1_007), "room"));
        let later = Deadline::new(Time(5_000), "Ping");
        assert_eq!((later.after(Time(20)), Deadline::NEVER.after(Time(20))), (later, Deadline::NEVER));
    }

    #[test]
    fn a_caller_that_waits_too_early_is_named_with_what_is_left() {
        let deadline = Deadline::new(Time(20), "Ping");
        assert_eq!(check(&Kept(deadline, None), Time(19)), Ok(()));
        assert_eq!(check(&Kept(Deadline::NEVER, None), Time(1 << 60)), Ok(()));
        let overdue = check(&Kept(deadline, None), Time(20)).unwrap_err();
        assert_eq!(overdue, ContractBreach::Overdue(deadline));
        assert_eq!(overdue.to_string(), "waits, but a timer was due: Ping at 0.000020ms");
        let left = check(&Kept(deadline, Some("events")), Time(19)).unwrap_err();
        assert_eq!(left, ContractBreach::Undrained("events"));
        assert_eq!(left.to_string(), "waits, but nobody has taken: events");
    }
}
