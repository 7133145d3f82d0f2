//! Polling, yielding or sleeping of a thread that drives a link in rounds and shares its CPU with the programs it
//! serves.
//!
//! ```text
//!   round --> spins? --yes--> poll again, without a look at the clock
//!               | no
//!             yields? --yes--> yield the CPU once, and say how long that took
//!               |
//!             rest at the present time --> Round | Housekeeping (then a round) | Sleep at most so long
//! ```
//!
//! The thread reads the clock, yields and sleeps as the policy decides. The policy reads no clock itself, so it works
//! in virtual time too.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::{Idle, WaitStyle, Waiter};

/// Number of polls of empty rings between two readings of the clock.
const SPINS: u32 = 64;
/// Number of polls between two readings of the clock while operations are in flight: more than a round trip takes. Then
/// the thread yields, because the answer may depend on another thread on this CPU: on a small machine, on the memory
/// node itself.
const SPINS_UNDER_WAY: u32 = 128;
/// Time between two readings of the clock from which on the thread was most likely descheduled.
const ABSENCE: Duration = Duration::from_micros(500);
/// A yield shorter than this found no other thread on this CPU.
const YIELD_ALONE: Duration = Duration::from_micros(2);
/// Time for which the CPU counts as contended after a longer yield. The kernel also returns at once if other threads
/// have used up their share; a program whose page has arrived would then wait while this thread spins for the next
/// fault.
const CONTENTION_HOLD: Duration = Duration::from_millis(1);
/// Interval of housekeeping under load and while the thread spins: taking orders, and finding clients that ended
/// silently.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(5);
/// Longest sleep while waiting for something that no descriptor reports: room in the engine or a queue, or a
/// computation.
const UNREPORTED_SLEEP_MAX: Duration = Duration::from_micros(200);

/// State of the thread after a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of items handled in the round.
    pub work: usize,
    /// Set if operations are in flight.
    pub in_flight: bool,
    /// Set if operations wait for room in the engine.
    pub backpressured: bool,
    /// Set if programs map regions. These programs do not register their CPUs; yields show whether they run here.
    pub maps: bool,
    /// Set if an awake client on this CPU got completions in the round.
    pub woke_client: bool,
}

impl Seen {
    /// Whether the next event will come from a client, not from a memory node.
    fn rests(self) -> bool {
        !self.in_flight && !self.backpressured
    }
}

/// State that limits a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Time of the next timer.
    pub deadline: Time,
    /// Set while a handshake is being computed.
    pub computing: bool,
    /// Set if flushed frames have not left yet.
    pub unsent: bool,
}

/// Action before the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Do the next round at once.
    Round,
    /// Do housekeeping, then the next round.
    Housekeeping,
    /// Sleep until something arrives, at most for this time (never zero), then do the next round.
    Sleep(Duration),
}

/// Decides between polling, yielding and sleeping for one thread.
#[derive(Clone, Debug)]
pub struct IdlePolicy {
    waiter: Waiter,
    /// State after the last round.
    seen: Seen,
    /// Number of items handled since the last decision of the waiter.
    work: usize,
    /// Number of successive rounds without work.
    empty: u32,
    /// Last reading of the clock; `None` after a sleep or housekeeping.
    before: Option<Time>,
    housekeeping_at: Time,
    /// Set if housekeeping was done after the last round: operations it began, such as the fetch of a page, are sent by
    /// the next round, which no event would wake the thread for.
    kept: bool,
    /// Set if other threads ran on this CPU during the last yield; where memory is mapped, most likely the program
    /// whose faults the thread serves.
    contended: bool,
    /// Time until which the CPU counts as contended, whatever the last yield shows.
    contended_until: Time,
    /// Set if the thread has yielded since it last had work.
    yielded: bool,
    /// Set if the thread sleeps instead of spinning, because the programs it serves need the CPU.
    gives_way: bool,
}

impl IdlePolicy {
    /// Makes a policy in this style; housekeeping is due at once.
    pub fn new(style: WaitStyle) -> IdlePolicy {
        IdlePolicy {
            waiter: Waiter::new(style),
            seen: Seen::default(),
            work: 0,
            empty: 0,
            before: None,
            housekeeping_at: Time::ZERO,
            kept: false,
            contended: false,
            contended_until: Time::ZERO,
            yielded: false,
            gives_way: false,
        }
    }

    /// Style given to [`new`](Self::new).
    pub fn style(&self) -> WaitStyle {
        self.waiter.style()
    }

    /// Makes housekeeping due before the next round.
    pub fn keep_house_soon(&mut self) {
        self.housekeeping_at = Time::ZERO;
    }

    /// Records that a program whose faults the thread serves runs on its CPU.
    pub fn share_with_program(&mut self) {
        self.contended = true;
    }

    /// Decides after a round whether to poll again without reading the clock. `client_on_our_cpu`: whether an awake
    /// client was on this CPU at the last check.
    #[inline]
    pub fn spins(&mut self, seen: Seen, client_on_our_cpu: bool) -> bool {
        let kept = std::mem::replace(&mut self.kept, false);
        self.seen = seen;
        self.work += seen.work;
        if seen.work > 0 {
            self.empty = 0;
            return false;
        }
        self.empty = self.empty.wrapping_add(1);
        let looks = if seen.rests() { SPINS } else { SPINS_UNDER_WAY };
        let yields_at_once = seen.rests() && (client_on_our_cpu || (self.contended && seen.maps));
        !kept
            && !yields_at_once
            && !self.empty.is_multiple_of(looks)
            && self.waiter.style() != WaitStyle::Sleep
    }

    /// Decides, if the thread does not spin, whether to yield the CPU now.
    #[inline]
    pub fn yields(&mut self, client_on_our_cpu: bool) -> bool {
        let Seen { work, woke_client, .. } = self.seen;
        let rests = self.seen.rests();
        let maps = self.seen.maps && rests;
        // The next event comes from a client that cannot run beside this thread, or whose CPU is unknown.
        let elsewhere = !rests && matches!(self.waiter.style(), WaitStyle::Adaptive { .. });
        let asked = if work == 0 {
            client_on_our_cpu || elsewhere
        } else {
            client_on_our_cpu && rests && woke_client
        };
        self.gives_way = work == 0 && maps && self.contended && self.yielded;
        self.yielded = !self.gives_way && (asked || (maps && (work == 0 || self.contended)));
        self.yielded
    }

    /// Records a yield that lasted from `left` to `back`.
    #[inline]
    pub fn yielded(&mut self, left: Time, back: Time) {
        if back.since(left) > YIELD_ALONE {
            self.contended_until = back + CONTENTION_HOLD;
        }
        self.contended = back < self.contended_until;
    }

    /// Decides what to do until the next round.
    #[inline]
    pub fn rest(&mut self, now: Time, pending: impl FnOnce() -> Pending) -> Rest {
        if self.kept {
            return Rest::Round;
        }
        let absent = self.before.replace(now).is_some_and(|before| now.since(before) > ABSENCE);
        if now >= self.housekeeping_at || absent {
            self.housekeeping_at = now + HOUSEKEEPING_INTERVAL;
            (self.kept, self.before) = (true, None);
            return Rest::Housekeeping;
        }
        let work = std::mem::take(&mut self.work);
        if work > 0 {
            self.waiter.after(work, now, None);
            return Rest::Round;
        }
        let Pending { deadline, computing, unsent } = pending();
        let most = match self.waiter.after(0, now, Some(deadline)) {
            Idle::Sleep(most) => most,
            // A fault wakes the thread at once; a spinning thread would keep the program from causing that fault.
            Idle::Poll if self.gives_way && deadline > now => deadline.since(now).min(Waiter::SLEEP_MAX),
            Idle::Poll => return Rest::Round,
        };
        self.before = None;
        let soon = self.seen.backpressured || computing || unsent;
        Rest::Sleep(if soon { most.min(UNREPORTED_SLEEP_MAX) } else { most })
    }
}

#[cfg(test)]
mod tests;
