//! One stream of requests: its numbers, its window, and its retry buffer.
//!
//! ```text
//!  answered |  oldest ........... unsent ......... next | not yet made
//!           |  [retry buffer: at most SLOTS entries    ]|
//! ```
//!
//! A request enters the retry buffer at `next` (R1). It is removed at `oldest` after its answer and the answers to all
//! earlier requests have come (R2). A request is sent at once, unless the caller has announced more requests: then the
//! requests from `unsent` on wait, and are sent together in a frame of many requests (`pack`). Retransmission is in
//! `recovery`.

mod pack;
mod recovery;

use alloc::boxed::Box;
use alloc::vec;

use super::entry::{Buffers, Early, Entry, EntryAnswer, Op};
use super::{Completions, OpError, SessionState};
use crate::Transmit;
use crate::frame::{Axi, FaultStatus, Message, Space};
use crate::session::framer::Framer;
use crate::session::slab::NONE;
use crate::session::{FIRST, SLOTS, WINDOW};
use crate::time::Time;
pub(super) use pack::Packing;
use pack::Waiting;
use recovery::Recovery;

pub(super) struct RequestStream {
    id: u8,
    window: usize,
    /// Number of the oldest unanswered request.
    oldest: u64,
    /// First number not sent in this session; equal to `next` if all are sent.
    unsent: u64,
    waiting: Waiting,
    next: u64,
    reads: usize,
    writes: usize,
    entries: Box<[Entry; SLOTS]>,
    /// Start of the oldest request's wait: the time of the last progress, or of the first request after an
    /// empty stream.
    since: Time,
    recovery: Recovery,
}

impl RequestStream {
    pub fn new(id: u8) -> RequestStream {
        let entries = vec![Entry::EMPTY; SLOTS].into_boxed_slice();
        RequestStream {
            id,
            window: WINDOW,
            oldest: FIRST,
            unsent: FIRST,
            waiting: Waiting::default(),
            next: FIRST,
            reads: 0,
            writes: 0,
            entries: entries.try_into().expect("a vector of SLOTS entries"),
            since: Time::ZERO,
            recovery: Recovery::default(),
        }
    }

    /// Sets the memory node's window: the maximum number of unanswered reads, and of unanswered writes.
    pub fn set_window(&mut self, window: usize) {
        self.window = window.clamp(1, WINDOW);
    }

    #[inline]
    fn at(&self, seq: u64) -> &Entry {
        &self.entries[seq as usize % SLOTS]
    }

    #[inline]
    fn at_mut(&mut self, seq: u64) -> &mut Entry {
        &mut self.entries[seq as usize % SLOTS]
    }

    /// Number of the oldest unanswered request. The 16-bit number of a received frame is completed to the 64-bit number
    /// nearest to this one (R11).
    #[inline]
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    pub fn sent(&self) -> u64 {
        self.next - FIRST
    }

    #[inline]
    pub fn unanswered(&self) -> usize {
        (self.next - self.oldest) as usize
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.next == self.oldest
    }

    /// Time since which the oldest request has waited for its answer; `None` if there is no unanswered
    /// request.
    pub fn waiting_since(&self) -> Option<Time> {
        (!self.is_idle()).then_some(self.since)
    }

    /// Whether the window has room for one more request of the kind of `op` (R1).
    #[inline]
    pub fn has_room(&self, op: Op) -> bool {
        let used = if op.is_read() { self.reads } else { self.writes };
        used < self.window && self.unanswered() < SLOTS
    }

    #[inline]
    fn count_mut(&mut self, op: Op) -> &mut usize {
        if op.is_read() { &mut self.reads } else { &mut self.writes }
    }

    /// Sends a request under the next number and keeps it for retransmission (R1), or only keeps it, to be sent
    /// together with later requests. The caller has checked [`has_room`](Self::has_room). Returns `false` if the
    /// transmit ring is full: this request is not kept then, but requests that waited may have been sent.
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
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        let waits = shared.packing.lines_max(op);
        if self.unsent != self.next && !self.makes_room(op, addr, waits, now, framer, shared, tx) {
            return false;
        }
        let seq = self.next;
        // Cannot fail: there are as many buffers as writes in all windows together.
        let payload = if op.is_read() { NONE } else { shared.buffers.writes.store(data).unwrap_or(NONE) };
        let stored = payload != NONE || op.is_read();
        if !stored || (waits == 0 && !transmit(framer, tx, self.id, seq, op, addr, data)) {
            shared.buffers.writes.release(payload);
            return false;
        }
        if self.is_idle() {
            self.since = now;
            self.recovery.expect(now, &shared.rtt);
        }
        *self.count_mut(op) += 1;
        let sends = u32::from(waits == 0);
        let entry =
            Entry { op, addr, token, payload, last_sent: now, sends, sacked: false, early: Early::None };
        if waits == 0 {
            *self.at_mut(seq) = entry;
            self.next += 1;
            self.unsent = self.next;
            shared.charge(op.payload_len(), framer);
        } else {
            self.wait(entry, waits, now, framer, shared, tx);
        }
        true
    }

    /// Applies a genuine answer to request `seq`, and completes the requests that are now in order (R2).
    #[inline]
    pub fn answered(
        &mut self,
        seq: u64,
        answer: EntryAnswer<'_>,
        now: Time,
        shared: &mut SessionState,
        out: &mut dyn Completions,
    ) {
        if seq < self.oldest {
            shared.counters.duplicates += 1;
            return;
        }
        if seq >= self.unsent {
            shared.counters.dropped_window += 1;
            return;
        }
        if !self.at(seq).op.fits(answer) {
            shared.counters.dropped_unmatched += 1;
            return;
        }
        if seq != self.oldest {
            self.keep_early(seq, answer, shared);
            return;
        }
        // A request sent more than once gives no sample, as the answer may belong to either transmission
        // (R8). Nor does a request that waited at the memory node for others, or during a silence.
        let Entry { sends, last_sent: sent, sacked, .. } = *self.at(seq);
        if sends == 1 && !sacked && self.recovery.counts(sent) {
            shared.rtt.sample(now.0.saturating_sub(sent.0));
        }
        self.complete(answer, shared, out);
        self.progressed(sends, sent, now, shared, out);
    }

    /// Applies the answers of one genuine frame to the requests from number `seq` on.
    #[inline]
    pub fn answered_all<'a>(
        &mut self,
        seq: u64,
        answers: impl ExactSizeIterator<Item = EntryAnswer<'a>>,
        now: Time,
        shared: &mut SessionState,
        out: &mut dyn Completions,
    ) {
        let (oldest, end) = (self.oldest, seq + answers.len() as u64);
        let in_order = seq == oldest && end <= self.unsent;
        let Entry { sends, last_sent: sent, sacked, .. } = *self.at(seq);
        if in_order && sends == 1 && !sacked {
            // The usual case: requests of one frame, sent once. They share one sample of the round trip.
            shared.rtt.sample(now.0.saturating_sub(sent.0));
        }
        for (number, answer) in (seq..).zip(answers) {
            let entry = self.at(number);
            if in_order && number == self.oldest && entry.early.is_none() && entry.op.fits(answer) {
                self.complete(answer, shared, out);
            } else {
                // A request that already has an early answer is completed with that early answer.
                self.complete_all_early(shared, out);
                self.answered(number, answer, now, shared, out);
            }
        }
        if in_order && self.oldest > oldest {
            self.progressed(sends, sent, now, shared, out);
        }
    }

    /// Completes all requests that are now in order, after the answer to the oldest. That request was sent
    /// `sends` times, last at `sent`.
    #[inline]
    fn progressed(
        &mut self,
        sends: u32,
        sent: Time,
        now: Time,
        shared: &mut SessionState,
        out: &mut dyn Completions,
    ) {
        self.complete_all_early(shared, out);
        self.since = now;
        self.recovery.progressed(sends, sent, now, &shared.rtt);
    }

    #[inline]
    fn complete_all_early(&mut self, shared: &mut SessionState, out: &mut dyn Completions) {
        while self.oldest < self.next && !self.at(self.oldest).early.is_none() {
            self.complete_early(shared, out);
        }
    }

    /// Keeps an early answer until the answers to all earlier requests have come (R2).
    #[cold]
    fn keep_early(&mut self, seq: u64, answer: EntryAnswer<'_>, shared: &mut SessionState) {
        if !self.at(seq).early.is_none() {
            shared.counters.duplicates += 1;
            return;
        }
        let early = match answer {
            EntryAnswer::Data(data) => shared.buffers.early.store(data).map_or(Early::None, Early::Data),
            EntryAnswer::Done => Early::Done,
            EntryAnswer::Fault(status) => Early::Fault(status),
        };
        if early.is_none() {
            // No free buffer: the answer counts as lost, so that the request is sent again (R10).
            shared.counters.dropped_full += 1;
            // The mark lies behind this request, so that this request is sent again as well as those before it.
            self.skipped(seq + 1, Time::ZERO, shared);
            return;
        }
        shared.counters.early += 1;
        self.at_mut(seq).early = early;
        let entry = self.at(seq);
        let sent_once = if entry.sends == 1 { entry.last_sent } else { Time::ZERO };
        self.skipped(seq, sent_once, shared);
    }

    #[cold]
    fn complete_early(&mut self, shared: &mut SessionState, out: &mut dyn Completions) {
        let entry = self.at_mut(self.oldest);
        match core::mem::replace(&mut entry.early, Early::None) {
            Early::None => {}
            Early::Done => self.complete(EntryAnswer::Done, shared, out),
            Early::Fault(status) => self.complete(EntryAnswer::Fault(status), shared, out),
            Early::Data(handle) => {
                let entry = self.pop(shared);
                shared.counters.answered += 1;
                out.read(entry.token, shared.buffers.early.get(handle, entry.op.data_len()));
                shared.buffers.early.release(handle);
            }
        }
    }

    #[inline]
    fn complete(&mut self, answer: EntryAnswer<'_>, shared: &mut SessionState, out: &mut dyn Completions) {
        shared.counters.answered += 1;
        match answer {
            EntryAnswer::Data(data) => out.read(self.pop(shared).token, data),
            EntryAnswer::Done => out.written(self.pop(shared).token),
            EntryAnswer::Fault(status) => self.complete_fault(status, shared, out),
        }
    }

    #[cold]
    fn complete_fault(&mut self, status: FaultStatus, shared: &mut SessionState, out: &mut dyn Completions) {
        shared.counters.faults += 1;
        self.fail_oldest(OpError::Fault(status), shared, out);
    }

    #[inline]
    fn pop(&mut self, shared: &mut SessionState) -> Entry {
        let entry = *self.at(self.oldest);
        self.oldest += 1;
        *self.count_mut(entry.op) -= 1;
        shared.buffers.writes.release(entry.payload);
        entry
    }

    fn fail_oldest(&mut self, error: OpError, shared: &mut SessionState, out: &mut dyn Completions) {
        let entry = self.at(self.oldest);
        out.failed(entry.token, error, entry.data(&shared.buffers));
        self.pop(shared);
    }

    /// Fails all unanswered requests in order, and restarts the numbers.
    pub fn fail_all(&mut self, error: OpError, shared: &mut SessionState, out: &mut dyn Completions) {
        while self.oldest < self.next {
            self.forget_early(self.oldest, &mut shared.buffers);
            self.fail_oldest(error, shared, out);
        }
        (self.oldest, self.next) = (FIRST, FIRST);
        self.waits_no_more();
        self.recovery = Recovery::default();
    }

    fn forget_early(&mut self, seq: u64, buffers: &mut Buffers) {
        if let Early::Data(handle) = core::mem::replace(&mut self.at_mut(seq).early, Early::None) {
            buffers.early.release(handle);
        }
    }

    /// Moves all unanswered requests to a new session: they keep their order, are renumbered from [`FIRST`], and are
    /// due at once. Requests that do not `fit` the new session fail. Early answers are dropped and their requests
    /// repeated; a repetition has no side effect, because only this CN uses the memory.
    pub fn restart(
        &mut self,
        now: Time,
        fit: impl Fn(Op) -> bool,
        shared: &mut SessionState,
        out: &mut dyn Completions,
    ) {
        let (first, end) = (self.oldest, self.next);
        let mut kept = first;
        for seq in first..end {
            self.forget_early(seq, &mut shared.buffers);
            let entry = *self.at(seq);
            if fit(entry.op) {
                *self.at_mut(kept) = Entry { sends: 0, sacked: false, last_sent: Time::ZERO, ..entry };
                kept += 1;
            } else {
                out.failed(entry.token, OpError::FrameTooLarge, entry.data(&shared.buffers));
                *self.count_mut(entry.op) -= 1;
                shared.buffers.writes.release(entry.payload);
            }
        }
        // The place of an entry is its number modulo SLOTS, so the entries move along with their numbers.
        self.entries.rotate_left(first as usize % SLOTS);
        self.entries.rotate_right(FIRST as usize);
        (self.oldest, self.next) = (FIRST, FIRST + (kept - first));
        self.waits_no_more();
        self.since = now;
        self.recovery = Recovery::of_everything(self.next, now, &shared.rtt);
    }
}

/// Writes one request into a transmit slot. Returns `false` if none is free.
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
