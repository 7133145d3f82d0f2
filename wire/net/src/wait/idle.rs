//! Polling, yielding or sleeping of a thread that drives a link in rounds and shares its CPU with the
//! programs it serves.
//!
//! ```text
//!   round --> spins? --yes--> poll again, without reading the clock
//!               | no
//!             yields? --yes--> yield the CPU once, and record how long that took
//!               |
//!             rest at the current time --> Round | Housekeeping (then a round) | Sleep for a limited time
//! ```
//!
//! The thread reads the clock, yields and sleeps as the policy decides. The policy itself reads no clock, so
//! it works in virtual time too.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::{Idle, WaitStyle, Waiter};

/// Number of polls of empty rings between two readings of the clock.
const SPINS: u32 = 64;
/// Number of polls between two readings of the clock while operations are in flight: longer than a round
/// trip. After them the thread yields, because the answer may depend on another thread on this CPU; on a
/// small machine, on the memory node itself.
const SPINS_UNDER_WAY: u32 = 128;
/// Time between two readings of the clock above which the thread was most likely descheduled.
const ABSENCE: Duration = Duration::from_micros(500);
/// A yield shorter than this means that no other thread ran on this CPU.
const YIELD_ALONE: Duration = Duration::from_micros(2);
/// Time for which the CPU counts as contended (needed by other threads) after a yield longer than [`YIELD_ALONE`]. A
/// short yield does not prove that the CPU is free: the kernel also returns at once if the other threads have used up
/// their share. If this thread then spun, a program whose page has arrived could not run.
const CONTENTION_HOLD: Duration = Duration::from_millis(1);
/// Interval of housekeeping under load and while the thread spins: accepting commands, and detecting clients
/// that ended without notice.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum sleep while the thread waits for something that no descriptor reports: room in the engine or in a
/// queue, or the end of a computation.
const UNREPORTED_SLEEP_MAX: Duration = Duration::from_micros(200);

/// Summary of a polling round, from which the policy decides the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of frames, completions and commands handled in the round.
    pub work: usize,
    /// True if operations were sent to memory nodes and are not answered yet.
    pub in_flight: bool,
    /// True if operations wait because the engine is full.
    pub backpressured: bool,
    /// True if programs map regions. Such programs do not report their CPUs; only yields show whether a program runs on
    /// this thread's CPU.
    pub maps: bool,
    /// True if an awake client on this CPU got completions in the round.
    pub woke_client: bool,
}

impl Seen {
    /// Whether the next event will come from a client, not from a memory node.
    fn rests(self) -> bool {
        !self.in_flight && !self.backpressured
    }
}

/// Conditions that limit a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Time at which the next timer of the caller expires.
    pub deadline: Time,
    /// True while a handshake is being computed.
    pub computing: bool,
    /// True if flushed frames have not been sent yet.
    pub unsent: bool,
}

/// Next step of the thread before its next round; see [`IdlePolicy::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Start the next round at once.
    Round,
    /// Do housekeeping, then the next round.
    Housekeeping,
    /// Sleep until something arrives, at most for this time (never zero), then do the next round.
    Sleep(Duration),
}

/// Decides for one thread between polling, yielding and sleeping.
#[derive(Clone, Debug)]
pub struct IdlePolicy {
    waiter: Waiter,
    seen: Seen,
    /// Number of items handled since the waiter's last decision.
    work: usize,
    /// Number of consecutive rounds without work.
    empty: u32,
    /// Last reading of the clock; `None` after a sleep or housekeeping, whose duration must not look like
    /// absence.
    before: Option<Time>,
    housekeeping_at: Time,
    /// True if housekeeping was done since the last round. Operations begun by housekeeping, such as the fetch of a
    /// page, are sent only by the next round, so the thread must not sleep before that round.
    kept: bool,
    /// True if other threads ran on this CPU during the last yield. If memory is mapped, it was most likely
    /// the program whose faults this thread serves.
    contended: bool,
    /// Time until which the CPU counts as contended, whatever the last yield shows.
    contended_until: Time,
    /// True if the thread has yielded since it last had work.
    yielded: bool,
    /// True if the thread sleeps instead of spinning, because the programs it serves need the CPU.
    gives_way: bool,
}

impl IdlePolicy {
    /// Makes a policy; housekeeping is due at once.
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

    /// Records that a program whose faults the thread serves runs on the thread's CPU.
    pub fn share_with_program(&mut self) {
        self.contended = true;
    }

    /// Decides after a round whether to poll again without reading the clock. `client_on_our_cpu` is whether
    /// an awake client was on this CPU at the last check.
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

    /// Decides whether the thread, which does not spin, yields the CPU now.
    #[inline]
    pub fn yields(&mut self, client_on_our_cpu: bool) -> bool {
        let Seen { work, woke_client, .. } = self.seen;
        let rests = self.seen.rests();
        let maps = self.seen.maps && rests;
        // True if a memory node is to answer next: the answer may depend on another thread on this CPU.
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

    /// Records a yield that lasted from `left` to `back`; its length shows whether another thread ran.
    #[inline]
    pub fn yielded(&mut self, left: Time, back: Time) {
        if back.since(left) > YIELD_ALONE {
            self.contended_until = back + CONTENTION_HOLD;
        }
        self.contended = back < self.contended_until;
    }

    /// Decides the next step of a thread that neither spins nor has just yielded to others.
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
            // The thread sleeps instead of spinning: a page fault of the program wakes it at once, whereas spinning
            // would keep the program off this CPU.
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
