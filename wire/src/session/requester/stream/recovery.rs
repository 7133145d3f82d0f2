//! What is sent again, and when (R5, R6, R8).
//!
//! An entry is sent again when there is evidence that it, or its answer, was lost:
//!
//! * R5: a later request was selectively acknowledged and this one not: it lies from `sack_floor` to
//!   `sack_mark` and is not marked. At once the first time, again after a smoothed round trip, then after
//!   two, four, and so on.
//! * R6: a later request was answered: it lies below `skip_mark`. At once the first time. Again only on new
//!   evidence: when something sent a smoothed round trip or more after its last repetition is answered.
//! * R8: nothing was heard in time. First, after about two round trips, one probe: the newest goes, because nothing
//!   behind it tells whether it was lost, and what it draws from the memory node tells about the others. Then, at
//!   the time-out, the oldest and the newest go, and a [`Sweep`] sends the others as answers come in.
//! * Everything unanswered goes again, in order, when a new session opens: a sweep that waits for nothing.

use super::super::Shared;
use super::super::entry::Entry;
use super::{Stream, transmit};
use crate::Transmit;
use crate::session::framer::Framer;
use crate::session::{Retransmission, RoundTrip};
use crate::time::Time;

/// Entries a sweep repeats for each answer that arrives.
const SWEEP_STEP: u32 = 2;
/// Round trips in a row that a probe keeps from being counted, at most.
const UNCOUNTED_MAX: u8 = 8;
/// What a sweep that waits for no answers may repeat.
const ALL: u32 = u32::MAX;

/// Sends all entries below `until` in order, except those sent since it began.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// The entry to look at next.
    at: u64,
    until: u64,
    began: Time,
    /// How many may go before the next answer.
    allowance: u32,
}

/// A stream's evidence and timers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    sack_floor: u64,
    sack_mark: u64,
    skip_mark: u64,
    /// When the latest of the requests whose answers skipped others was sent.
    skip_sent: Time,
    sweep: Option<Sweep>,
    /// The oldest entry when an early answer last made this stream go back (Go-Back-N).
    went_back_at: u64,
    /// When something is done about silence (R8): a probe first, then time-outs.
    silent_at: Time,
    /// Whether the silence since the last progress has been probed.
    probed: bool,
    /// When a probe was last sent.
    probed_at: Time,
    /// Round trips in a row that were not counted because of it.
    uncounted: u8,
    /// Time-outs since the last progress.
    expiries: u32,
    /// When there may be something to repeat.
    check_at: Option<Time>,
}

impl Recovery {
    /// For a session just opened, in which all entries below `until` are still to be sent.
    pub fn of_everything(until: u64, now: Time, rtt: &RoundTrip) -> Recovery {
        let mut recovery = Recovery {
            sweep: Some(Sweep { at: 0, until, began: now, allowance: ALL }),
            check_at: Some(Time::ZERO),
            ..Recovery::default()
        };
        recovery.expect(now, rtt);
        recovery
    }

    /// A request was sent and is the oldest: its answer is expected from now on.
    #[inline]
    pub fn expect(&mut self, now: Time, rtt: &RoundTrip) {
        self.probed = false;
        self.silent_at = later_by(now, rtt.probe_ns());
    }

    /// Whether the round trip of a request that was sent at `sent`, once, and is answered, tells how long the way is. One
    /// sent before the last probe waited in the silence that the probe ended, and counted, it would make the next silence
    /// longer. If that goes on, it is the way that has become slow.
    #[inline]
    pub fn counts(&mut self, sent: Time) -> bool {
        let counts = sent >= self.probed_at || self.uncounted >= UNCOUNTED_MAX;
        self.uncounted = if counts { 0 } else { self.uncounted + 1 };
        counts
    }

    /// R8: the oldest was answered, which had been sent `sends` times, the last time at `sent`.
    #[inline]
    pub fn progressed(&mut self, sends: u32, sent: Time, now: Time, rtt: &RoundTrip) {
        self.expiries = 0;
        self.expect(now, rtt);
        if self.sweep.is_some() {
            let of_the_first = sends == 1 || now < later_by(sent, rtt.smoothed_ns() / 2);
            self.go_on_sweeping(of_the_first, now);
        }
    }

    /// Lets a sweep that follows a time-out go on, or ends it: when an answer is to a request's first transmission,
    /// because there was no other or it is too recent, the peer had only paused, and the others will be answered too
    /// (as F-RTO, RFC 5682, concludes).
    #[cold]
    fn go_on_sweeping(&mut self, of_the_first: bool, now: Time) {
        self.sweep = self.sweep.filter(|sweep| !of_the_first || sweep.allowance == ALL);
        if let Some(sweep) = &mut self.sweep {
            sweep.allowance = sweep.allowance.saturating_add(SWEEP_STEP);
            self.check_at = Some(now);
        }
    }
}

impl Stream {
    /// When this stream wants to be polled, if it waits for anything.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        if self.is_idle() {
            return None;
        }
        let silent_at = self.recovery.silent_at;
        Some(self.recovery.check_at.map_or(silent_at, |at| at.min(silent_at)))
    }

    /// The time-out in force, in nanoseconds.
    pub fn timeout_ns(&self, rtt: &RoundTrip) -> u64 {
        rtt.timeout_ns(self.recovery.expiries)
    }

    /// R5: request `seq` has arrived, and everything up to `last_in_order` has been executed.
    #[cold]
    pub fn sacked(&mut self, seq: u64, last_in_order: u64) {
        if seq < self.oldest || seq >= self.unsent {
            return;
        }
        if self.scheme == Retransmission::GoBackN {
            self.go_back(last_in_order + 1);
            return;
        }
        self.at_mut(seq).sacked = true;
        let oldest = self.oldest;
        let recovery = &mut self.recovery;
        recovery.sack_floor = recovery.sack_floor.max((last_in_order + 1).min(seq));
        // Between the previous mark (or the last answered request) and this one there may be something new.
        if seq > recovery.sack_mark.saturating_add(1).max(oldest) {
            recovery.check_at = Some(Time::ZERO);
        }
        recovery.sack_mark = recovery.sack_mark.max(seq);
    }

    /// Go-Back-N: everything from request `from` on is to be sent again.
    fn go_back(&mut self, from: u64) {
        let sweep = Sweep { at: from, until: self.unsent, began: Time(u64::MAX), allowance: ALL };
        self.recovery.sweep = Some(sweep);
        self.recovery.check_at = Some(Time::ZERO);
    }

    /// Go-Back-N: an answer has skipped the oldest; all from there on go again, once.
    pub(super) fn go_back_once(&mut self) {
        if core::mem::replace(&mut self.recovery.went_back_at, self.oldest) != self.oldest {
            self.go_back(self.oldest);
        }
    }

    /// R6: a request above those below `mark` was answered, which was sent, only once, at `sent`.
    pub(super) fn skipped(&mut self, mark: u64, sent: Time, shared: &Shared) {
        let oldest_sent = self.at(self.oldest).last_sent;
        let recovery = &mut self.recovery;
        recovery.skip_sent = recovery.skip_sent.max(sent);
        let again = later_by(oldest_sent, shared.rtt.smoothed_ns()) <= recovery.skip_sent;
        if again || mark > recovery.skip_mark.saturating_add(1) {
            recovery.check_at = Some(Time::ZERO);
        }
        recovery.skip_mark = recovery.skip_mark.max(mark);
    }

    /// Sends what is due again and gives up waiting where it is time to.
    #[inline]
    pub fn poll(&mut self, now: Time, framer: &Framer, shared: &mut Shared, tx: &mut dyn Transmit) {
        if self.is_idle() {
            self.recovery.check_at = None;
            return;
        }
        if !self.send_waiting(now, framer, shared, tx) {
            // The transmit ring is full: go on when there may be room.
            self.recovery.check_at = Some(now);
            return;
        }
        if now >= self.recovery.silent_at {
            if self.recovery.probed {
                self.expire(now, framer, shared, tx);
            } else {
                self.probe(now, framer, shared, tx);
            }
        }
        if self.recovery.check_at.is_some_and(|at| now >= at) {
            self.recovery.check_at = self.repeat(now, framer, shared, tx);
        }
    }

    /// R8: no progress for a while. The newest of which nothing is known goes again, once: its answer, or the SACK for
    /// it, tells what became of those before it. When none is left of which nothing is known, the oldest is what is
    /// missing. Either was sent long enough ago to have been answered, or the probe waits until then.
    #[cold]
    fn probe(&mut self, now: Time, framer: &Framer, shared: &mut Shared, tx: &mut dyn Transmit) {
        let newest = self.next - 1;
        let entry = self.at(newest);
        let seq = if entry.sacked || !entry.early.is_none() { self.oldest } else { newest };
        let patience = shared.rtt.probe_ns();
        let timeout_at = later_by(self.since, shared.rtt.timeout_ns(0));
        let overdue_at = later_by(self.at(seq).last_sent, patience);
        if now < overdue_at {
            self.recovery.silent_at = overdue_at.min(timeout_at);
            self.recovery.probed = timeout_at <= overdue_at;
            return;
        }
        (self.recovery.probed, self.recovery.probed_at) = (true, now);
        // Looked at late, because this thread was not running: the probe has its time all the same.
        self.recovery.silent_at = timeout_at.max(later_by(now, patience));
        shared.counters.probes += 1;
        if self.scheme == Retransmission::GoBackN {
            self.go_back(self.oldest);
            return;
        }
        self.resend(seq, now, framer, shared, tx);
    }

    /// R8: nothing was heard of the oldest: it and the newest go again.
    #[cold]
    fn expire(&mut self, now: Time, framer: &Framer, shared: &mut Shared, tx: &mut dyn Transmit) {
        shared.counters.timeouts += 1;
        self.recovery.expiries = self.recovery.expiries.saturating_add(1);
        self.recovery.silent_at = later_by(now, shared.rtt.timeout_ns(self.recovery.expiries));
        if self.scheme == Retransmission::GoBackN {
            self.go_back(self.oldest);
            return;
        }
        let newest = self.next - 1;
        self.resend(self.oldest, now, framer, shared, tx);
        if newest != self.oldest && self.at(newest).early.is_none() {
            self.resend(newest, now, framer, shared, tx);
        }
        self.recovery.sweep = Some(Sweep { at: self.oldest, until: self.next, began: now, allowance: 0 });
    }

    /// Sends every entry there is evidence for; returns when to look again.
    #[cold]
    fn repeat(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> Option<Time> {
        if !self.sweep(now, framer, shared, tx) {
            // The transmit ring is full: go on when there may be room.
            return Some(now);
        }
        let spacing = shared.rtt.smoothed_ns();
        let mut again: Option<Time> = None;
        let mut look_at = |at: Time| again = Some(again.map_or(at, |earlier| earlier.min(at)));
        let end = self.next.min(self.recovery.sack_mark.max(self.recovery.skip_mark));
        for seq in self.oldest..end {
            let entry = self.at(seq);
            if !entry.early.is_none() {
                continue;
            }
            let free_at = free_at(entry, spacing);
            if self.is_missing(seq, entry) {
                if now < free_at {
                    look_at(free_at);
                    continue;
                }
                look_at(later_by(now, spacing));
            } else if !self.is_skipped(seq, free_at) {
                continue;
            }
            if !self.resend(seq, now, framer, shared, tx) {
                return Some(now);
            }
        }
        again
    }

    /// R5: whether the memory node has told that it lacks request `seq`.
    fn is_missing(&self, seq: u64, entry: &Entry) -> bool {
        seq >= self.recovery.sack_floor && seq < self.recovery.sack_mark && !entry.sacked
    }

    /// R6: whether a later request was answered, sent after request `seq` could be sent once more.
    fn is_skipped(&self, seq: u64, free_at: Time) -> bool {
        seq < self.recovery.skip_mark && free_at <= self.recovery.skip_sent
    }

    /// Goes on with a sweep; `false` when the transmit ring is full.
    fn sweep(&mut self, now: Time, framer: &Framer, shared: &mut Shared, tx: &mut dyn Transmit) -> bool {
        let Some(mut sweep) = self.recovery.sweep.take() else { return true };
        sweep.at = sweep.at.max(self.oldest);
        let mut room = true;
        while sweep.at < sweep.until && sweep.allowance > 0 {
            let entry = self.at(sweep.at);
            if entry.early.is_none() && entry.last_sent < sweep.began {
                room = self.resend(sweep.at, now, framer, shared, tx);
                if !room {
                    break;
                }
                sweep.allowance -= 1;
            }
            sweep.at += 1;
        }
        self.recovery.sweep = (sweep.at < sweep.until).then_some(sweep);
        room
    }

    /// Sends an entry again (or, in a new session, for the first time); `false` if the transmit ring is full.
    fn resend(
        &mut self,
        seq: u64,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> bool {
        let Shared { buffers, counters, .. } = shared;
        let entry = self.at(seq);
        if !transmit(framer, tx, self.id, seq, entry.op, entry.addr, entry.data(buffers)) {
            return false;
        }
        let entry = self.at_mut(seq);
        if entry.sends > 0 {
            counters.retransmitted += 1;
            counters.retransmitted_bytes += entry.op.data_len() as u64;
        }
        entry.last_sent = now;
        entry.sends = entry.sends.saturating_add(1);
        true
    }
}

/// When an entry may go again: at once the first time, then after a round trip, after two, after four. Were
/// it one each time, a memory node that has gone would be sent a window per round trip until it is given up.
fn free_at(entry: &Entry, spacing_ns: u64) -> Time {
    match entry.sends.checked_sub(2) {
        None => Time::ZERO,
        Some(doublings) => later_by(entry.last_sent, spacing_ns.saturating_mul(1 << doublings.min(16))),
    }
}

#[inline]
fn later_by(at: Time, ns: u64) -> Time {
    Time(at.0.saturating_add(ns))
}
