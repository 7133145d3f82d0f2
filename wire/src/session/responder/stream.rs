//! One stream at the memory node: requests are executed strictly in order, each exactly once (R2).
//!
//! ```text
//!   answered before: retry buffer | expected | early: reorder buffer |
//!   <------- SLOTS numbers -------|          |------- SLOTS numbers ->
//! ```

use alloc::boxed::Box;
use alloc::vec;

use crate::Transmit;
use crate::frame::{
    Axi, Command, FaultStatus, HEADER_LEN, LINE_SIZE, Message, Space, burst_read_lines_max, frame_len,
};

use super::super::framer::Framer;
use super::super::slab::{Handle, NONE, Slab};
use super::super::{FIRST, SLOTS};
use super::{Memory, ResponderCounters};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read,
    BurstRead {
        lines: u8,
    },
    Write,
    BurstWrite {
        mask: u64,
    },
    /// A genuine but malformed request: it uses up its number and is answered with Fault 5 (R9).
    Malformed,
}

/// A decoded request with a correct trailer.
#[derive(Clone, Copy, Debug)]
pub(super) struct GenuineRequest<'a> {
    pub op: Op,
    pub addr: u64,
    pub axi: Axi,
    pub data: &'a [u8],
}

/// Answer given to a request, recorded in case the answer is lost (R7). A read is executed again, so its data
/// need not be kept. That is safe: the CN never has a read and a later write of the same line unanswered
/// together.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnswerRecord {
    Read,
    BurstRead { lines: u8 },
    Write,
    Fault(FaultStatus),
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    answered: AnswerRecord,
    addr: u64,
    axi: Axi,
}

/// A request that came early, kept until all earlier ones have come.
#[derive(Clone, Copy, Debug)]
struct Early {
    op: Op,
    addr: u64,
    axi: Axi,
    data: Handle,
    len: usize,
}

/// Maximum number of writes that one acknowledgement covers (R3), if that was agreed on. It is small, so that one
/// lost acknowledgement does not cost a whole window.
pub(super) const JOINT_ACKS_MAX: u8 = 8;

/// Acknowledgement of a write that is held back, so that it may cover the next writes too if that was agreed
/// on. It is sent before the next other answer of its stream, or at the end of the batch (R4).
#[derive(Clone, Copy, Debug)]
pub(super) struct DueAck {
    /// Number of the first acknowledged write.
    seq: u64,
    axi: Axi,
    writes: u8,
}

pub(super) struct ResponseStream {
    pub(super) id: u8,
    pub(super) expected: u64,
    retry: Box<[Retry; SLOTS]>,
    early: Box<[Option<Early>; SLOTS]>,
    pub(super) early_count: usize,
    pub due: Option<DueAck>,
}

/// Parts of a session that its streams use; passed to each call because the streams do not own them.
pub(super) struct Context<'a, M> {
    pub cn: u64,
    pub framer: &'a Framer,
    pub max_frame: usize,
    /// Maximum number of writes that one acknowledgement may cover.
    pub acks_max: u8,
    pub counters: &'a mut ResponderCounters,
    /// Number of further early writes that all sessions together may keep (R10).
    pub room: usize,
    pub memory: &'a mut M,
    pub tx: &'a mut dyn Transmit,
}

impl ResponseStream {
    pub fn new(id: u8) -> ResponseStream {
        let none = Retry { answered: AnswerRecord::Write, addr: 0, axi: Axi { stream: 0, tag: 0 } };
        let (retry, early) = (vec![none; SLOTS].into_boxed_slice(), vec![None; SLOTS].into_boxed_slice());
        ResponseStream {
            id,
            expected: FIRST,
            retry: retry.try_into().expect("a vector of SLOTS"),
            early: early.try_into().expect("a vector of SLOTS"),
            early_count: 0,
            due: None,
        }
    }

    /// Number of the next request to execute. The 16-bit number of a received frame is completed to the 64-bit number
    /// nearest to this one (R11).
    #[inline]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    pub fn waiting(&self) -> usize {
        self.early_count
    }

    /// Whether the next request in order has come, but could not be executed because no slot for its answer
    /// was free.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.early_count > 0 && self.early[self.expected as usize % SLOTS].is_some()
    }

    /// Executes [stalled](Self::is_stalled) requests, as many as there are transmit slots for.
    #[cold]
    pub fn resume<M: Memory>(&mut self, buffers: &mut Slab, cx: &mut Context<'_, M>) {
        self.drain_early(buffers, cx);
        self.flush_due(cx.framer, cx.tx);
    }

    #[inline]
    pub fn take<M: Memory>(
        &mut self,
        seq: u64,
        request: GenuineRequest<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        if self.early_count > 0 {
            // Requests that are next in order but found no slot for their answers come first.
            self.drain_early(buffers, cx);
        }
        if seq == self.expected {
            self.flush_due_before(request.op, cx);
            if self.execute(seq, &request, cx) && self.early_count > 0 {
                // Another copy of this request may still wait for a slot in the reorder buffer. It is removed, so that
                // it is not executed under a later number that has the same place.
                self.drop_early(seq, buffers);
                self.drain_early(buffers, cx);
            }
        } else if seq < self.expected {
            self.flush_due(cx.framer, cx.tx);
            self.again(seq, &request, cx);
        } else {
            self.keep_early(seq, &request, buffers, cx);
        }
    }

    /// Executes and answers the next request in order. Returns `false`, with nothing executed, if no slot for
    /// the answer is free: the request then counts as lost.
    #[inline]
    fn execute<M: Memory>(
        &mut self,
        seq: u64,
        request: &GenuineRequest<'_>,
        cx: &mut Context<'_, M>,
    ) -> bool {
        let GenuineRequest { op, addr, axi, data } = *request;
        let answered = match op {
            Op::Read => read(cx, self.id, seq, axi, addr, 1, false),
            Op::BurstRead { lines } => read(cx, self.id, seq, axi, addr, lines, true),
            Op::Write => self.write(seq, axi, addr, 1, data, cx),
            Op::BurstWrite { mask } => self.write(seq, axi, addr, mask, data, cx),
            Op::Malformed => fault(cx, self.id, seq, axi, addr, FaultStatus::Malformed),
        };
        let Some(answered) = answered else {
            cx.counters.dropped_full += 1;
            return false;
        };
        self.executed(seq, answered, addr, axi);
        cx.counters.executed += 1;
        true
    }

    /// Records the answer to the request that was just executed, and goes on to the next number.
    #[inline]
    pub(super) fn executed(&mut self, seq: u64, answered: AnswerRecord, addr: u64, axi: Axi) {
        self.retry[seq as usize % SLOTS] = Retry { answered, addr, axi };
        self.expected = seq + 1;
    }

    #[inline]
    fn write<M: Memory>(
        &mut self,
        seq: u64,
        axi: Axi,
        addr: u64,
        mask: u64,
        data: &[u8],
        cx: &mut Context<'_, M>,
    ) -> Option<AnswerRecord> {
        // The answer's slot is reserved first, because a request that was executed must be answered.
        cx.tx.slot(frame_len(HEADER_LEN + 1, cx.framer.seal.len()))?;
        match cx.memory.write(cx.cn, addr, mask, data) {
            Ok(()) => {
                match &mut self.due {
                    Some(due) => due.writes += 1,
                    None => self.due = Some(DueAck { seq, axi, writes: 1 }),
                }
                Some(AnswerRecord::Write)
            }
            Err(status) => {
                self.flush_due(cx.framer, cx.tx);
                fault(cx, self.id, seq, axi, addr, status)
            }
        }
    }

    /// Sends the held-back acknowledgement now.
    #[inline]
    pub fn flush_due(&mut self, framer: &Framer, tx: &mut dyn Transmit) {
        if let Some(DueAck { seq, axi, writes }) = self.due.take() {
            let message =
                if writes == 1 { Message::WriteResp } else { Message::MultiWriteResp { lines: writes } };
            framer.send(tx, Space::Stream(self.id), seq, axi, 0, &message);
        }
    }

    /// Sends the held-back acknowledgement before the next request is executed, unless that request's
    /// acknowledgement can join it. Joining keeps the numbers consecutive, because any other answer sends the
    /// held-back one first.
    #[inline]
    fn flush_due_before<M>(&mut self, op: Op, cx: &mut Context<'_, M>) {
        let writes = matches!(op, Op::Write | Op::BurstWrite { .. });
        if !(writes && self.due.is_some_and(|due| due.writes < cx.acks_max)) {
            self.flush_due(cx.framer, cx.tx);
        }
    }

    /// Repeats the answer to a request that was answered before, without executing the request again (R7).
    #[cold]
    fn again<M: Memory>(&mut self, seq: u64, request: &GenuineRequest<'_>, cx: &mut Context<'_, M>) {
        cx.counters.duplicates += 1;
        if self.expected - seq > SLOTS as u64 || seq < FIRST {
            cx.counters.dropped_window += 1;
            return;
        }
        let Retry { answered, addr, axi } = self.retry[seq as usize % SLOTS];
        if addr != request.addr {
            // A CN that observes its window never sends this number, so no answer makes sense.
            cx.counters.dropped_window += 1;
            return;
        }
        match answered {
            AnswerRecord::Read => drop(read(cx, self.id, seq, axi, addr, 1, false)),
            AnswerRecord::BurstRead { lines } => drop(read(cx, self.id, seq, axi, addr, lines, true)),
            AnswerRecord::Write => {
                cx.framer.send(cx.tx, Space::Stream(self.id), seq, axi, addr, &Message::WriteResp);
            }
            AnswerRecord::Fault(status) => drop(fault(cx, self.id, seq, axi, addr, status)),
        }
    }

    /// Keeps an early request and sends a SACK for it (R2, R4).
    #[cold]
    fn keep_early<M: Memory>(
        &mut self,
        seq: u64,
        request: &GenuineRequest<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        if seq - self.expected >= SLOTS as u64 {
            cx.counters.dropped_window += 1;
            return;
        }
        let place = &mut self.early[seq as usize % SLOTS];
        if place.is_none() {
            let data = if request.data.is_empty() {
                NONE
            } else {
                // Without a free buffer no SACK is sent: the request counts as lost (R10).
                let handle = if cx.room > 0 { buffers.store(request.data) } else { None };
                let Some(handle) = handle else {
                    cx.counters.dropped_full += 1;
                    return;
                };
                cx.room -= 1;
                handle
            };
            let GenuineRequest { op, addr, axi, .. } = *request;
            *place = Some(Early { op, addr, axi, data, len: request.data.len() });
            self.early_count += 1;
            cx.counters.early += 1;
        } else {
            cx.counters.duplicates += 1;
        }
        self.send_sack(seq, request, cx);
    }

    /// Sends the SACK of request `seq`, with the number up to which every request has arrived (R4).
    fn send_sack<M: Memory>(&mut self, seq: u64, request: &GenuineRequest<'_>, cx: &mut Context<'_, M>) {
        if self.due.is_some_and(|due| due.writes > 1) {
            // A SackNakAck can acknowledge only one write.
            self.flush_due(cx.framer, cx.tx);
        }
        // `expected - 1` is the last number without a gap before it.
        let last_in_order = self.expected.wrapping_sub(1) as u16;
        let due = self.due;
        let message = match due {
            Some(due) => Message::SackNakAck { last_in_order, acked_seq: due.seq as u16, acked_axi: due.axi },
            None => Message::SackNak { last_in_order },
        };
        if cx.framer.send(cx.tx, Space::Stream(self.id), seq, request.axi, request.addr, &message) {
            self.due = None;
            cx.counters.sack_acks += u64::from(due.is_some());
            cx.counters.sacks += u64::from(due.is_none());
        }
    }

    /// Executes early requests that are now next in order, after a gap was filled or a slot became free.
    #[cold]
    fn drain_early<M: Memory>(&mut self, buffers: &mut Slab, cx: &mut Context<'_, M>) {
        while let Some(Early { op, addr, axi, data, len }) = self.early[self.expected as usize % SLOTS] {
            self.flush_due_before(op, cx);
            let seq = self.expected;
            let data = if data == NONE { &[][..] } else { buffers.get(data, len) };
            if !self.execute(seq, &GenuineRequest { op, addr, axi, data }, cx) {
                return;
            }
            self.drop_early(seq, buffers);
        }
    }

    fn drop_early(&mut self, seq: u64, buffers: &mut Slab) {
        if let Some(early) = self.early[seq as usize % SLOTS].take() {
            buffers.release(early.data);
            self.early_count -= 1;
        }
    }
}

/// Reads lines straight into a transmit slot and sends it. Returns `None` if no slot is free.
#[inline]
fn read<M: Memory>(
    cx: &mut Context<'_, M>,
    stream: u8,
    seq: u64,
    axi: Axi,
    addr: u64,
    lines: u8,
    burst: bool,
) -> Option<AnswerRecord> {
    let trailer = cx.framer.seal.len();
    if burst && usize::from(lines) > burst_read_lines_max(cx.max_frame, trailer) {
        return fault(cx, stream, seq, axi, addr, FaultStatus::Malformed);
    }
    let start = HEADER_LEN + usize::from(burst);
    let body = start + usize::from(lines) * LINE_SIZE;
    let slot = cx.tx.slot(frame_len(body, trailer))?;
    if let Err(status) = cx.memory.read(cx.cn, addr, &mut slot[start..body]) {
        return fault(cx, stream, seq, axi, addr, status);
    }
    let (command, answered) = if burst {
        slot[HEADER_LEN] = lines;
        (Command::BurstReadResp, AnswerRecord::BurstRead { lines })
    } else {
        (Command::ReadResp, AnswerRecord::Read)
    };
    cx.framer.header(command as u8, seq, axi, addr).emit(slot);
    cx.framer.finish(slot, body, Space::Stream(stream), seq);
    cx.tx.commit();
    Some(answered)
}

pub(super) fn fault<M>(
    cx: &mut Context<'_, M>,
    stream: u8,
    seq: u64,
    axi: Axi,
    addr: u64,
    status: FaultStatus,
) -> Option<AnswerRecord> {
    let message = Message::Fault { status };
    if !cx.framer.send(cx.tx, Space::Stream(stream), seq, axi, addr, &message) {
        return None;
    }
    cx.counters.faults += 1;
    Some(AnswerRecord::Fault(status))
}
