//! One stream of requests: its window, its retry buffer, and what is sent again when.
//!
//! ```text
//!  answered |  oldest ....................... next | not yet sent
//!           |  [retry buffer: at most SLOTS entries]|
//! ```
//!
//! An entry is sent again when there is evidence that it, or its answer, was lost:
//! * a later request was selectively acknowledged and this one not (R5): below `sack_mark`, not below
//!   `sack_floor`, not `sacked`;
//! * a later request was answered (R6): below `skip_mark`;
//! * nothing at all was heard in time (R8): `recovery`;
//! * it belongs to a session that has ended and must be repeated in the new one: `sends == 0`.
//!
//! The first repetition goes at once, further ones at most once per smoothed round trip.

use crate::frame::{Axi, FaultStatus, LINE_SIZE, Message, Space};
use crate::link::Transmit;
use crate::time::Time;

use super::super::framer::Framer;
use super::super::rtt::RoundTrip;
use super::super::slab::{Handle, NONE, Slab};
use super::super::{SLOTS, WINDOW};
use super::{Completions, OpError, RequesterCounters};

/// Entries repeated for each answer that arrives after a time-out.
const RECOVERY_BURST: u32 = 2;

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read,
    Write,
    BurstRead { lines: u8 },
    BurstWrite { mask: u64 },
}

impl Op {
    pub fn is_read(self) -> bool {
        matches!(self, Op::Read | Op::BurstRead { .. })
    }

    /// Bytes of line data that travel with it, one way or the other.
    pub fn data_len(self) -> usize {
        LINE_SIZE
            * match self {
                Op::Read | Op::Write => 1,
                Op::BurstRead { lines } => usize::from(lines),
                Op::BurstWrite { mask } => mask.count_ones() as usize,
            }
    }
}

/// What has come back for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    Data(&'a [u8]),
    Done,
    Fault(FaultStatus),
}

/// An answer that waits for earlier ones.
#[derive(Clone, Copy, Debug)]
enum Early {
    None,
    Data(Handle),
    Done,
    Fault(FaultStatus),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    op: Op,
    addr: u64,
    token: u64,
    /// Data of a write, for sending again.
    payload: Handle,
    first_sent: Time,
    last_sent: Time,
    /// Transmissions in this session.
    sends: u32,
    sacked: bool,
    early: Early,
}

const EMPTY: Entry = Entry {
    op: Op::Read,
    addr: 0,
    token: 0,
    payload: NONE,
    first_sent: Time::ZERO,
    last_sent: Time::ZERO,
    sends: 0,
    sacked: false,
    early: Early::None,
};

/// After a time-out: everything below `until` last sent before `since` is due as answers arrive.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    until: u64,
    since: Time,
    allowance: u32,
}

/// Buffers shared by the streams of a session.
pub(super) struct Buffers {
    /// Data of writes not yet answered.
    pub writes: Slab,
    /// Answers that came early (R2).
    pub early: Slab,
}

/// One stream.
pub(super) struct Stream {
    id: u8,
    window: usize,
    oldest: u64,
    next: u64,
    reads: usize,
    writes: usize,
    entries: Box<[Entry]>,
    sack_floor: u64,
    sack_mark: u64,
    skip_mark: u64,
    recovery: Option<Recovery>,
    /// When the oldest entry is given up waiting for (R8).
    timeout_at: Time,
    /// When an entry whose repetition had to wait may go.
    check_at: Option<Time>,
}

impl Stream {
    pub fn new(id: u8) -> Stream {
        Stream {
            id,
            window: WINDOW,
            oldest: 0,
            next: 0,
            reads: 0,
            writes: 0,
            entries: vec![EMPTY; SLOTS].into_boxed_slice(),
            sack_floor: 0,
            sack_mark: 0,
            skip_mark: 0,
            recovery: None,
            timeout_at: Time::ZERO,
            check_at: None,
        }
    }

    /// Limits reads, and writes, in flight to what the memory node offered.
    pub fn set_window(&mut self, window: usize) {
        self.window = window.clamp(1, WINDOW);
    }

    fn at(&self, seq: u64) -> &Entry {
        &self.entries[seq as usize % SLOTS]
    }

    fn at_mut(&mut self, seq: u64) -> &mut Entry {
        &mut self.entries[seq as usize % SLOTS]
    }

    /// The number the next answer in order bears: what 16-bit numbers are completed from (R11).
    #[inline]
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Requests not yet answered.
    #[inline]
    pub fn unanswered(&self) -> usize {
        (self.next - self.oldest) as usize
    }

    /// Whether the window has room for one more of this kind (R1).
    #[inline]
    pub fn has_room(&self, op: Op) -> bool {
        let used = if op.is_read() { self.reads } else { self.writes };
        used < self.window && self.unanswered() < SLOTS
    }

    /// When this stream wants to be polled, if it waits for anything.
    pub fn deadline(&self) -> Option<Time> {
        if self.oldest == self.next {
            return None;
        }
        Some(self.check_at.map_or(self.timeout_at, |c| c.min(self.timeout_at)))
    }

    /// Sends a request under the next number and keeps it. The caller has checked [`has_room`](Self::has_room).
    /// `false`, with nothing changed, when the transmit ring or the buffers are full.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the parts of one request, all from one caller")]
    pub fn send(
        &mut self,
        op: Op,
        addr: u64,
        data: &[u8],
        token: u64,
        now: Time,
        framer: &Framer,
        buffers: &mut Buffers,
        rtt: &RoundTrip,
        tx: &mut dyn Transmit,
    ) -> bool {
        let seq = self.next;
        if !transmit(framer, tx, self.id, seq, op, addr, data) {
            return false;
        }
        let payload = if op.is_read() {
            NONE
        } else {
            match buffers.writes.store(data) {
                Some(handle) => handle,
                // Cannot happen: there are as many buffers as writes in all windows together.
                None => return false,
            }
        };
        if self.oldest == self.next {
            self.timeout_at = now + rtt.timeout();
        }
        *self.at_mut(seq) = Entry {
            op,
            addr,
            token,
            payload,
            first_sent: now,
            last_sent: now,
            sends: 1,
            sacked: false,
            early: Early::None,
        };
        self.next += 1;
        *self.count_mut(op) += 1;
        true
    }

    fn count_mut(&mut self, op: Op) -> &mut usize {
        if op.is_read() { &mut self.reads } else { &mut self.writes }
    }

    /// Takes a genuine answer to request `seq`. Returns whether it counted.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the state one answer touches, all from one caller")]
    pub fn answered(
        &mut self,
        seq: u64,
        answer: Answer<'_>,
        now: Time,
        buffers: &mut Buffers,
        rtt: &mut RoundTrip,
        counters: &mut RequesterCounters,
        out: &mut dyn Completions,
    ) -> bool {
        if seq < self.oldest {
            counters.duplicates += 1;
            return false;
        }
        if seq >= self.next {
            counters.dropped_window += 1;
            return false;
        }
        let entry = *self.at(seq);
        let fits = match answer {
            Answer::Data(data) => entry.op.is_read() && data.len() == entry.op.data_len(),
            Answer::Done => !entry.op.is_read(),
            Answer::Fault(_) => true,
        };
        if !fits {
            counters.dropped_unmatched += 1;
            return false;
        }
        if seq != self.oldest {
            self.keep_early(seq, answer, buffers, counters);
            return true;
        }
        // No sample from a request sent more than once: the answer may belong to either transmission.
        if entry.sends == 1 {
            rtt.sample(now - entry.first_sent);
        }
        rtt.progressed();
        self.complete(answer, buffers, counters, out);
        while self.oldest < self.next {
            let early = std::mem::replace(&mut self.at_mut(self.oldest).early, Early::None);
            match early {
                Early::None => break,
                Early::Done => self.complete(Answer::Done, buffers, counters, out),
                Early::Fault(status) => self.complete(Answer::Fault(status), buffers, counters, out),
                Early::Data(handle) => {
                    let len = self.at(self.oldest).op.data_len();
                    let op = self.pop(buffers);
                    counters.answered += 1;
                    out.read(op.token, buffers.early.get(handle, len));
                    buffers.early.release(handle);
                }
            }
        }
        self.timeout_at = now + rtt.timeout();
        if let Some(recovery) = &mut self.recovery {
            recovery.allowance = RECOVERY_BURST;
            self.check_at = Some(now);
        }
        true
    }

    /// R2, R6: an answer that came early waits, and tells that those it skipped were lost.
    #[cold]
    fn keep_early(
        &mut self,
        seq: u64,
        answer: Answer<'_>,
        buffers: &mut Buffers,
        counters: &mut RequesterCounters,
    ) {
        if !matches!(self.at(seq).early, Early::None) {
            counters.duplicates += 1;
            return;
        }
        let early = match answer {
            Answer::Data(data) => match buffers.early.store(data) {
                Some(handle) => Early::Data(handle),
                // No room: as if lost; the request is still below the mark and is sent again.
                None => {
                    counters.dropped_full += 1;
                    Early::None
                }
            },
            Answer::Done => Early::Done,
            Answer::Fault(status) => Early::Fault(status),
        };
        counters.early += 1;
        self.at_mut(seq).early = early;
        if seq > self.skip_mark {
            self.skip_mark = seq;
        }
        // They were executed, so what a SACK said of them no longer keeps them from being repeated.
        self.check_at = Some(Time::ZERO);
    }

    #[inline]
    fn complete(
        &mut self,
        answer: Answer<'_>,
        buffers: &mut Buffers,
        counters: &mut RequesterCounters,
        out: &mut dyn Completions,
    ) {
        let entry = self.pop(buffers);
        counters.answered += 1;
        match answer {
            Answer::Data(data) => out.read(entry.token, data),
            Answer::Done => out.written(entry.token),
            Answer::Fault(status) => {
                counters.faults += 1;
                out.failed(entry.token, OpError::Fault(status), &[]);
            }
        }
    }

    /// Takes the oldest entry out of the retry buffer.
    #[inline]
    fn pop(&mut self, buffers: &mut Buffers) -> Entry {
        let entry = *self.at(self.oldest);
        self.oldest += 1;
        *self.count_mut(entry.op) -= 1;
        buffers.writes.release(entry.payload);
        entry
    }

    /// R5: request `seq` has arrived, and everything up to `last_in_order` has been executed.
    pub fn sacked(&mut self, seq: u64, last_in_order: u64) {
        if seq < self.oldest || seq >= self.next {
            return;
        }
        self.at_mut(seq).sacked = true;
        self.sack_floor = self.sack_floor.max((last_in_order + 1).min(seq));
        self.sack_mark = self.sack_mark.max(seq);
        self.check_at = Some(Time::ZERO);
    }

    /// Sends what is due again and gives up waiting where it is time to.
    pub fn poll(
        &mut self,
        now: Time,
        framer: &Framer,
        buffers: &Buffers,
        rtt: &mut RoundTrip,
        counters: &mut RequesterCounters,
        tx: &mut dyn Transmit,
    ) {
        if self.oldest == self.next {
            self.check_at = None;
            return;
        }
        if now >= self.timeout_at {
            self.expire(now, framer, buffers, rtt, counters, tx);
        }
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_at = self.repeat(now, framer, buffers, rtt, counters, tx);
        }
    }

    /// R8: nothing was heard of the oldest: it and the newest go again.
    fn expire(
        &mut self,
        now: Time,
        framer: &Framer,
        buffers: &Buffers,
        rtt: &mut RoundTrip,
        counters: &mut RequesterCounters,
        tx: &mut dyn Transmit,
    ) {
        counters.timeouts += 1;
        rtt.expired();
        self.timeout_at = now + rtt.timeout();
        let newest = self.next - 1;
        self.resend(self.oldest, now, framer, buffers, counters, tx);
        if newest != self.oldest && matches!(self.at(newest).early, Early::None) {
            self.resend(newest, now, framer, buffers, counters, tx);
        }
        self.recovery = Some(Recovery { until: self.next, since: now, allowance: 0 });
    }

    /// Sends every entry there is evidence for; returns when to look again.
    fn repeat(
        &mut self,
        now: Time,
        framer: &Framer,
        buffers: &Buffers,
        rtt: &RoundTrip,
        counters: &mut RequesterCounters,
        tx: &mut dyn Transmit,
    ) -> Option<Time> {
        let spacing = rtt.smoothed();
        let mut again: Option<Time> = None;
        let mut wait_until = |t: Time| again = Some(again.map_or(t, |a| a.min(t)));
        for seq in self.oldest..self.next {
            let entry = *self.at(seq);
            if !matches!(entry.early, Early::None) {
                continue;
            }
            let sacked = seq >= self.sack_floor && seq < self.sack_mark && !entry.sacked;
            let recovering = self
                .recovery
                .is_some_and(|r| seq < r.until && r.allowance > 0 && entry.last_sent < r.since);
            if entry.sends == 0 || recovering {
                if recovering && let Some(r) = &mut self.recovery {
                    r.allowance -= 1;
                }
            } else if seq < self.skip_mark || sacked {
                let due = if entry.sends == 1 { Time::ZERO } else { entry.last_sent + spacing };
                if now < due {
                    wait_until(due);
                    continue;
                }
                wait_until(now + spacing);
            } else {
                continue;
            }
            if !self.resend(seq, now, framer, buffers, counters, tx) {
                // The transmit ring is full: go on when there may be room.
                wait_until(now);
                break;
            }
        }
        if self.recovery.is_some_and(|r| self.oldest >= r.until) {
            self.recovery = None;
        }
        again
    }

    fn resend(
        &mut self,
        seq: u64,
        now: Time,
        framer: &Framer,
        buffers: &Buffers,
        counters: &mut RequesterCounters,
        tx: &mut dyn Transmit,
    ) -> bool {
        let entry = *self.at(seq);
        let data = if entry.payload == NONE {
            &[][..]
        } else {
            buffers.writes.get(entry.payload, entry.op.data_len())
        };
        if !transmit(framer, tx, self.id, seq, entry.op, entry.addr, data) {
            return false;
        }
        let entry = self.at_mut(seq);
        if entry.sends == 0 {
            entry.first_sent = now;
        } else {
            counters.retransmitted += 1;
        }
        entry.last_sent = now;
        entry.sends += 1;
        true
    }

    /// Renumbers everything unanswered from 0, in order, to be sent in a new session. Early answers are
    /// forgotten: those requests are repeated, which changes nothing, as this CN alone owns the memory.
    pub fn restart(&mut self, now: Time, buffers: &mut Buffers, rtt: &RoundTrip) {
        let count = self.next - self.oldest;
        let shift = self.oldest as usize % SLOTS;
        self.entries.rotate_left(shift);
        for entry in &mut self.entries[..count as usize] {
            if let Early::Data(handle) = entry.early {
                buffers.early.release(handle);
            }
            entry.early = Early::None;
            entry.sacked = false;
            entry.sends = 0;
        }
        (self.oldest, self.next) = (0, count);
        (self.sack_floor, self.sack_mark, self.skip_mark) = (0, 0, 0);
        self.recovery = None;
        self.timeout_at = now + rtt.timeout();
        self.check_at = Some(Time::ZERO);
    }

    /// Fails everything unanswered, in order, and starts afresh.
    pub fn fail_all(&mut self, error: OpError, buffers: &mut Buffers, out: &mut dyn Completions) {
        while self.oldest < self.next {
            let entry = *self.at(self.oldest);
            if let Early::Data(handle) = entry.early {
                buffers.early.release(handle);
            }
            let data = if entry.payload == NONE {
                &[][..]
            } else {
                buffers.writes.get(entry.payload, entry.op.data_len())
            };
            out.failed(entry.token, error, data);
            self.pop(buffers);
        }
        (self.oldest, self.next) = (0, 0);
        (self.sack_floor, self.sack_mark, self.skip_mark) = (0, 0, 0);
        self.recovery = None;
        self.check_at = None;
    }
}

/// Writes one request into a transmit slot.
#[inline]
fn transmit(
    framer: &Framer,
    tx: &mut dyn Transmit,
    stream: u8,
    seq: u64,
    op: Op,
    addr: u64,
    data: &[u8],
) -> bool {
    let message = match op {
        Op::Read => Message::ReadReq,
        Op::BurstRead { lines } => Message::BurstReadReq { lines },
        Op::BurstWrite { mask } => Message::BurstWriteReq { mask, data },
        Op::Write => match data.first_chunk() {
            Some(data) => Message::WriteReq { data },
            None => return false,
        },
    };
    let tag = seq as u8;
    framer.send(tx, Space::Stream(stream), seq, Axi { stream, tag }, addr, &message)
}
