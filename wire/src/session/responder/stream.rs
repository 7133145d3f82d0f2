//! One stream at the memory node: strictly in order, each request executed exactly once (R2).
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

/// Operation of a request.
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
    /// A genuine but malformed request: it consumes its number and is answered with Fault 5 (R9).
    Malformed,
}

/// A request whose trailer is right, decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct GenuineRequest<'a> {
    pub op: Op,
    pub addr: u64,
    pub axi: Axi,
    pub data: &'a [u8],
}

/// Record of an answer, for repetition (R7). A read is executed again, which saves keeping its data: the CN's engine
/// never has a later write of the same line in flight beside a read.
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

/// A request kept until all earlier ones have come.
#[derive(Clone, Copy, Debug)]
struct Early {
    op: Op,
    addr: u64,
    axi: Axi,
    data: Handle,
    len: usize,
}

/// Most writes that one acknowledgement covers, where that was agreed on: few, so that the loss of one acknowledgement
/// does not cost a whole window.
pub(super) const JOINT_ACKS_MAX: u8 = 8;

/// A held-back acknowledgement of a write, or of several of consecutive numbers where that was agreed on. It leaves
/// with the next frame of its stream, or at the end of the batch (R4).
#[derive(Clone, Copy, Debug)]
pub(super) struct DueAck {
    /// Number of the first write acknowledged.
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

/// Frames and memory of a stream's session, passed to each call.
pub(super) struct Context<'a, M> {
    pub cn: u64,
    pub framer: &'a Framer,
    pub max_frame: usize,
    /// Most writes that one acknowledgement may cover.
    pub acks_max: u8,
    pub counters: &'a mut ResponderCounters,
    /// Number of further early writes that all sessions together may keep.
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

    /// Next number to execute, from which 16-bit numbers are completed (R11).
    #[inline]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Number of requests that wait for earlier ones.
    pub fn waiting(&self) -> usize {
        self.early_count
    }

    /// Whether the request whose turn it is has come but had no room for its answer.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.early_count > 0 && self.early[self.expected as usize % SLOTS].is_some()
    }

    /// Executes requests that are [stalled](Self::is_stalled), as many as there is room for.
    #[cold]
    pub fn resume<M: Memory>(&mut self, buffers: &mut Slab, cx: &mut Context<'_, M>) {
        self.drain_early(buffers, cx);
        self.flush_due(cx.framer, cx.tx);
    }

    /// Handles the genuine request with number `seq`.
    #[inline]
    pub fn take<M: Memory>(
        &mut self,
        seq: u64,
        request: GenuineRequest<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        if self.early_count > 0 {
            // Executes first the requests whose turn has come but whose answers had no room.
            self.drain_early(buffers, cx);
        }
        if seq == self.expected {
            self.flush_due_before(request.op, cx);
            if self.execute(seq, &request, cx) && self.early_count > 0 {
                // If another request with this number still waits for room, it must not stay for a later number.
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

    /// Executes the request whose turn it is and answers it. `false`, with nothing executed, if there is no room for
    /// the answer: then the request counts as lost.
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

    /// Records the answer to the request that was just executed.
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
        // The answer's slot is taken first, as every executed request must be answered.
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

    /// Sends the held-back acknowledgement in a frame of its own.
    #[inline]
    pub fn flush_due(&mut self, framer: &Framer, tx: &mut dyn Transmit) {
        if let Some(DueAck { seq, axi, writes }) = self.due.take() {
            let message =
                if writes == 1 { Message::WriteResp } else { Message::MultiWriteResp { lines: writes } };
            framer.send(tx, Space::Stream(self.id), seq, axi, 0, &message);
        }
    }

    /// Sends the held-back acknowledgement before the next request is executed, unless that request's acknowledgement
    /// can join it: the held-back one covers the numbers right before, because it is sent before any other answer.
    #[inline]
    fn flush_due_before<M>(&mut self, op: Op, cx: &mut Context<'_, M>) {
        let writes = matches!(op, Op::Write | Op::BurstWrite { .. });
        if !(writes && self.due.is_some_and(|due| due.writes < cx.acks_max)) {
            self.flush_due(cx.framer, cx.tx);
        }
    }

    /// R7: answers a request that was answered before, without executing it again.
    #[cold]
    fn again<M: Memory>(&mut self, seq: u64, request: &GenuineRequest<'_>, cx: &mut Context<'_, M>) {
        cx.counters.duplicates += 1;
        if self.expected - seq > SLOTS as u64 || seq < FIRST {
            cx.counters.dropped_window += 1;
            return;
        }
        let Retry { answered, addr, axi } = self.retry[seq as usize % SLOTS];
        if addr != request.addr {
            // A CN that keeps to its window does not send this number; no answer makes sense.
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

    /// R2, R4: keeps an early request and sends a SACK for it.
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
                // R10: no room, no SACK; the request counts as lost.
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

    /// R4: sends the SACK of request `seq`, with the number up to which everything has arrived.
    fn send_sack<M: Memory>(&mut self, seq: u64, request: &GenuineRequest<'_>, cx: &mut Context<'_, M>) {
        if self.due.is_some_and(|due| due.writes > 1) {
            // A SackNakAck has room for one acknowledged write only.
            self.flush_due(cx.framer, cx.tx);
        }
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

    /// Executes early requests whose turn has come, after a gap has closed or room has become free.
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

    /// Removes the early request with number `seq`.
    fn drop_early(&mut self, seq: u64, buffers: &mut Slab) {
        if let Some(early) = self.early[seq as usize % SLOTS].take() {
            buffers.release(early.data);
            self.early_count -= 1;
        }
    }
}

/// Reads lines into a transmit slot. `None` if no slot is free.
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
