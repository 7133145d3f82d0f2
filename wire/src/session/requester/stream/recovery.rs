//! Retransmission (R5, R6, R8).
//!
//! An entry is sent again if there is evidence that the request, or its answer, was lost:
//!
//! * R5: a later request was selectively acknowledged, and this one was not: its number lies from
//!   `sack_floor` to `sack_mark`, and it is not marked. It is sent again at once the first time, then after
//!   one smoothed round trip, after two, four, and so on.
//! * R6: a later request was answered: the entry's number lies below `skip_mark`. It is sent again at once
//!   the first time. After that only on new evidence: an answer to something sent at least a smoothed round
//!   trip after the entry's last repetition.
//! * R8: no answer came in time. First, after about two round trips, the newest request is sent again as a
//!   probe: no later request would show its loss, and the memory node's response to it shows which others
//!   were lost. Then, at the time-out, the oldest and the newest are sent, and a [`Sweep`] sends the others
//!   as answers come in.
//! * When a new session opens, all unanswered requests are sent again, in order: a sweep that does not wait
//!   for answers.

use super::super::SessionState;
use super::super::entry::Entry;
use super::{RequestStream, transmit};
use crate::Transmit;
use crate::session::RoundTrip;
use crate::session::framer::Framer;
use crate::time::Time;

/// Number of entries that a sweep sends again for each answer received.
const SWEEP_STEP: u32 = 2;
/// Maximum number of consecutive round trips left out of the estimate because of a probe.
const UNCOUNTED_MAX: u8 = 8;
/// Allowance of a sweep that does not wait for answers.
const ALL: u32 = u32::MAX;

/// Sends all entries below `until` in order, except those sent since the sweep began.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// Number of the next entry to check.
    at: u64,
    until: u64,
    began: Time,
    /// Number of entries that may be sent before the next answer.
    allowance: u32,
}

/// Evidence of losses in a stream, and the timers of its retransmissions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    sack_floor: u64,
    sack_mark: u64,
    skip_mark: u64,
    /// Latest transmission time of a request whose answer overtook the answers to earlier requests (R6).
    skip_sent: Time,
    sweep: Option<Sweep>,
    /// Time of the next action if no progress is made (R8): first a probe, then time-outs.
    silent_at: Time,
    /// True if a probe was sent since the last progress.
    probed: bool,
    probed_at: Time,
    /// Number of consecutive round trips left out of the estimate because of a probe.
    uncounted: u8,
    expiries: u32,
    /// Time of the next check for requests to send again; `None` if there is no evidence of a loss.
    check_at: Option<Time>,
}

impl Recovery {
    /// State when a session opens and all entries below `until` must be sent in it.
    pub fn of_everything(until: u64, now: Time, rtt: &RoundTrip) -> Recovery {
        let mut recovery = Recovery {
            sweep: Some(Sweep { at: 0, until, began: now, allowance: ALL }),
            check_at: Some(Time::ZERO),
            ..Recovery::default()
        };
        recovery.expect(now, rtt);
        recovery
    }

    /// Starts the wait for the answer to the oldest request.
    #[inline]
    pub fn expect(&mut self, now: Time, rtt: &RoundTrip) {
        self.probed = false;
        self.silent_at = later_by(now, rtt.probe_ns());
    }

    /// Whether the round trip of a request that was sent only once, at `sent`, counts for the estimate. A request sent
    /// before the last probe waited through the silence that the probe ended, so its round trip would make the next
    /// silence longer. If such round trips continue, the path itself is slow, and they count.
    #[inline]
    pub fn counts(&mut self, sent: Time) -> bool {
        let counts = sent >= self.probed_at || self.uncounted >= UNCOUNTED_MAX;
        self.uncounted = if counts { 0 } else { self.uncounted + 1 };
        counts
    }

    /// Resets the time-out after the answer to the oldest request, which was sent `sends` times, last at
    /// `sent` (R8).
    #[inline]
    pub fn progressed(&mut self, sends: u32, sent: Time, now: Time, rtt: &RoundTrip) {
        self.expiries = 0;
        self.expect(now, rtt);
        if self.sweep.is_some() {
            // An answer within half a round trip cannot be to the last transmission, so it is to an earlier
            // one.
            let of_the_first = sends == 1 || now < later_by(sent, rtt.smoothed_ns() / 2);
            self.continue_sweep(of_the_first, now);
        }
    }

    /// Continues a sweep after a time-out. Ends it if the answer belongs to a request's first transmission:
    /// then the peer had only paused, and the other requests will be answered too (as in F-RTO, RFC 5682).
    #[cold]
    fn continue_sweep(&mut self, of_the_first: bool, now: Time) {
        self.sweep = self.sweep.filter(|sweep| !of_the_first || sweep.allowance == ALL);
        if let Some(sweep) = &mut self.sweep {
            sweep.allowance = sweep.allowance.saturating_add(SWEEP_STEP);
            self.check_at = Some(now);
        }
    }
}

impl RequestStream {
    /// Time of the next poll of this stream; `None` if no timer is set.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        if self.is_idle() {
            return None;
        }
        let silent_at = self.recovery.silent_at;
        Some(self.recovery.check_at.map_or(silent_at, |at| at.min(silent_at)))
    }

    pub fn timeout_ns(&self, rtt: &RoundTrip) -> u64 {
        rtt.timeout_ns(self.recovery.expiries)
    }

    /// Records a SACK: request `seq` has arrived, and everything up to `last_in_order` has been executed
    /// (R5).
    #[cold]
    pub fn sacked(&mut self, seq: u64, last_in_order: u64) {
        if seq < self.oldest || seq >= self.unsent {
            return;
        }
        self.at_mut(seq).sacked = true;
        let oldest = self.oldest;
        let recovery = &mut self.recovery;
        recovery.sack_floor = recovery.sack_floor.max((last_in_order + 1).min(seq));
        // Requests between the previous mark (or the last answered request) and this one may be missing.
        if seq > recovery.sack_mark.saturating_add(1).max(oldest) {
            recovery.check_at = Some(Time::ZERO);
        }
        recovery.sack_mark = recovery.sack_mark.max(seq);
    }

    /// Records that a later answer has overtaken the answers to the unanswered requests below `mark` (R6). `sent` is
    /// the time at which the request with the later answer was sent, or [`Time::ZERO`] if that request was sent more
    /// than once.
    pub(super) fn skipped(&mut self, mark: u64, sent: Time, shared: &SessionState) {
        let oldest_sent = self.at(self.oldest).last_sent;
        let recovery = &mut self.recovery;
        recovery.skip_sent = recovery.skip_sent.max(sent);
        let again = later_by(oldest_sent, shared.rtt.smoothed_ns()) <= recovery.skip_sent;
        if again || mark > recovery.skip_mark.saturating_add(1) {
            recovery.check_at = Some(Time::ZERO);
        }
        recovery.skip_mark = recovery.skip_mark.max(mark);
    }

    /// Retransmits requests that are due, and handles an expired time-out.
    #[inline]
    pub fn poll(&mut self, now: Time, framer: &Framer, shared: &mut SessionState, tx: &mut dyn Transmit) {
        if self.is_idle() {
            self.recovery.check_at = None;
            return;
        }
        if !self.send_waiting(now, framer, shared, tx) {
            // The transmit ring is full, so the next poll continues here.
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

    /// Probes after some time without progress (R8). Sends the newest request again, because its answer or SACK shows
    /// which earlier ones were lost. If the newest is known to have arrived, the oldest is missing and is sent instead.
    /// If the request to send was last sent too recently to have been answered, the probe is postponed.
    #[cold]
    fn probe(&mut self, now: Time, framer: &Framer, shared: &mut SessionState, tx: &mut dyn Transmit) {
        let newest = self.next - 1;
        let entry = self.at(newest);
        let seq = if entry.sacked || !entry.early.is_none() { self.oldest } else { newest };
        let wait_limit = shared.rtt.probe_ns();
        let timeout_at = later_by(self.since, shared.rtt.timeout_ns(0));
        let overdue_at = later_by(self.at(seq).last_sent, wait_limit);
        if now < overdue_at {
            self.recovery.silent_at = overdue_at.min(timeout_at);
            self.recovery.probed = timeout_at <= overdue_at;
            return;
        }
        (self.recovery.probed, self.recovery.probed_at) = (true, now);
        // A late poll of this thread must not shorten the time that the probe has for an answer.
        self.recovery.silent_at = timeout_at.max(later_by(now, wait_limit));
        shared.counters.probes += 1;
        self.resend(seq, now, framer, shared, tx);
    }

    /// Handles a time-out: sends the oldest request, which has had no response, and the newest again (R8).
    #[cold]
    fn expire(&mut self, now: Time, framer: &Framer, shared: &mut SessionState, tx: &mut dyn Transmit) {
        shared.counters.timeouts += 1;
        self.recovery.expiries = self.recovery.expiries.saturating_add(1);
        self.recovery.silent_at = later_by(now, shared.rtt.timeout_ns(self.recovery.expiries));
        let newest = self.next - 1;
        self.resend(self.oldest, now, framer, shared, tx);
        if newest != self.oldest && self.at(newest).early.is_none() {
            self.resend(newest, now, framer, shared, tx);
        }
        self.recovery.sweep = Some(Sweep { at: self.oldest, until: self.next, began: now, allowance: 0 });
    }

    /// Sends every request known to be lost. Returns the time of the next check.
    #[cold]
    fn repeat(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> Option<Time> {
        if !self.sweep(now, framer, shared, tx) {
            // The transmit ring is full, so the next poll continues here.
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

    /// Whether a SACK shows that request `seq` has not arrived (R5).
    fn is_missing(&self, seq: u64, entry: &Entry) -> bool {
        seq >= self.recovery.sack_floor && seq < self.recovery.sack_mark && !entry.sacked
    }

    /// Whether an answer has come to a later request that was sent at or after `free_at` (R6).
    fn is_skipped(&self, seq: u64, free_at: Time) -> bool {
        seq < self.recovery.skip_mark && free_at <= self.recovery.skip_sent
    }

    /// Continues a sweep. Returns `false` if the transmit ring is full.
    fn sweep(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
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

    /// Sends an entry again, or for the first time in a new session. Returns `false` if the transmit ring is
    /// full.
    fn resend(
        &mut self,
        seq: u64,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        let SessionState { buffers, counters, .. } = shared;
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

/// Returns the time from which an entry may be sent again: at once the first time, then after one round trip,
/// two, four, and so on. A constant interval would send a dead memory node a whole window in each round trip.
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
