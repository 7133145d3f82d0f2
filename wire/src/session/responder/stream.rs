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
use super::super::{FIRST, Retransmission, SLOTS};
use super::{Memory, ResponderCounters};

/// What a request asks for.
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
    /// Genuine, but makes no sense: consumes its number and is answered Fault 5 (R9).
    Malformed,
}

/// A genuine request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub op: Op,
    pub addr: u64,
    pub axi: Axi,
    pub data: &'a [u8],
}

/// How a request was answered: enough to answer again (R7). Reads are read again, which saves keeping
/// their data; the engine at the CN never has a later write of the same line in flight beside a read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answered {
    Read,
    BurstRead { lines: u8 },
    Write,
    Fault(FaultStatus),
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    answered: Answered,
    addr: u64,
    axi: Axi,
}

/// A request that came before its turn.
#[derive(Clone, Copy, Debug)]
struct Early {
    op: Op,
    addr: u64,
    axi: Axi,
    data: Handle,
    len: usize,
}

/// Writes that one acknowledgement stands for at most, where that was agreed on: few enough that one that is lost does not
/// cost a window.
pub(super) const JOINT_ACKS_MAX: u8 = 8;

/// The acknowledgement of a write, or of several of consecutive numbers where that was agreed on, that leaves with the next
/// frame of its stream, or at the end of the batch (R4).
#[derive(Clone, Copy, Debug)]
pub(super) struct DueAck {
    /// The first number.
    seq: u64,
    axi: Axi,
    writes: u8,
}

pub(super) struct Stream {
    pub(super) id: u8,
    pub(super) expected: u64,
    retry: Box<[Retry; SLOTS]>,
    early: Box<[Option<Early>; SLOTS]>,
    pub(super) early_count: usize,
    pub due: Option<DueAck>,
    scheme: Retransmission,
    /// The number expected when a NAK was last sent (Go-Back-N).
    naked_at: u64,
}

/// What a stream works with: its session's frames and memory.
pub(super) struct Context<'a, M> {
    pub cn: u64,
    pub framer: &'a Framer,
    pub max_frame: usize,
    /// Writes that one acknowledgement may stand for.
    pub acks_max: u8,
    pub counters: &'a mut ResponderCounters,
    /// How many more early writes all sessions together may keep.
    pub room: usize,
    pub memory: &'a mut M,
    pub tx: &'a mut dyn Transmit,
}

impl Stream {
    pub fn new(id: u8, scheme: Retransmission) -> Stream {
        let none = Retry { answered: Answered::Write, addr: 0, axi: Axi { stream: 0, tag: 0 } };
        let (retry, early) = (vec![none; SLOTS].into_boxed_slice(), vec![None; SLOTS].into_boxed_slice());
        Stream {
            id,
            expected: FIRST,
            retry: retry.try_into().expect("a vector of SLOTS"),
            early: early.try_into().expect("a vector of SLOTS"),
            early_count: 0,
            due: None,
            scheme,
            naked_at: 0,
        }
    }

    /// The number expected next: what 16-bit numbers are completed from (R11).
    #[inline]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Requests waiting for earlier ones.
    pub fn waiting(&self) -> usize {
        self.early_count
    }

    /// Whether the request whose turn it is has come, and there was no room for its answer.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.early_count > 0 && self.early[self.expected as usize % SLOTS].is_some()
    }

    /// Goes on with what is [stalled](Self::is_stalled), as far as there is room.
    #[cold]
    pub fn resume<M: Memory>(&mut self, buffers: &mut Slab, cx: &mut Context<'_, M>) {
        self.drain_early(buffers, cx);
        self.flush_due(cx.framer, cx.tx);
    }

    /// Takes genuine request `seq`.
    #[inline]
    pub fn take<M: Memory>(
        &mut self,
        seq: u64,
        request: Request<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        if self.early_count > 0 {
            // Those whose turn has come but for whose answers there was no room.
            self.drain_early(buffers, cx);
        }
        if seq == self.expected {
            self.flush_due_before(request.op, cx);
            if self.execute(seq, &request, cx) && self.early_count > 0 {
                // Should another one under this number still wait for room, it is not for a later number.
                self.forget_early(seq, buffers);
                self.drain_early(buffers, cx);
            }
        } else if seq < self.expected {
            self.flush_due(cx.framer, cx.tx);
            self.again(seq, &request, cx);
        } else {
            self.keep_early(seq, &request, buffers, cx);
        }
    }

    /// Executes the request whose turn it is and answers it. `false`, with nothing executed, when there is
    /// no room for the answer: then the request counts as lost.
    #[inline]
    fn execute<M: Memory>(&mut self, seq: u64, request: &Request<'_>, cx: &mut Context<'_, M>) -> bool {
        let Request { op, addr, axi, data } = *request;
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

    /// Notes how the request whose turn it was has been answered.
    #[inline]
    pub(super) fn executed(&mut self, seq: u64, answered: Answered, addr: u64, axi: Axi) {
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
    ) -> Option<Answered> {
        // The answer's slot first: what is executed is answered.
        cx.tx.slot(frame_len(HEADER_LEN + 1, cx.framer.seal.len()))?;
        match cx.memory.write(cx.cn, addr, mask, data) {
            Ok(()) => {
                match &mut self.due {
                    Some(due) => due.writes += 1,
                    None => self.due = Some(DueAck { seq, axi, writes: 1 }),
                }
                Some(Answered::Write)
            }
            Err(status) => {
                self.flush_due(cx.framer, cx.tx);
                fault(cx, self.id, seq, axi, addr, status)
            }
        }
    }

    /// Sends the acknowledgement that is due by itself.
    #[inline]
    pub fn flush_due(&mut self, framer: &Framer, tx: &mut dyn Transmit) {
        if let Some(DueAck { seq, axi, writes }) = self.due.take() {
            let message =
                if writes == 1 { Message::WriteResp } else { Message::MultiWriteResp { lines: writes } };
            framer.send(tx, Space::Stream(self.id), seq, axi, 0, &message);
        }
    }

    /// Sends the acknowledgement that is due before the request whose turn it is, unless that one's can join it: what is due
    /// is of the numbers right before it, as every other answer has it sent.
    #[inline]
    fn flush_due_before<M>(&mut self, op: Op, cx: &mut Context<'_, M>) {
        let writes = matches!(op, Op::Write | Op::BurstWrite { .. });
        if !(writes && self.due.is_some_and(|due| due.writes < cx.acks_max)) {
            self.flush_due(cx.framer, cx.tx);
        }
    }

    /// R7: answered before, so answered again, not executed again.
    #[cold]
    fn again<M: Memory>(&mut self, seq: u64, request: &Request<'_>, cx: &mut Context<'_, M>) {
        cx.counters.duplicates += 1;
        if self.expected - seq > SLOTS as u64 || seq < FIRST {
            cx.counters.dropped_window += 1;
            return;
        }
        let Retry { answered, addr, axi } = self.retry[seq as usize % SLOTS];
        if addr != request.addr {
            // Cannot come from a window that keeps its limit; there is nothing sensible to answer.
            cx.counters.dropped_window += 1;
            return;
        }
        match answered {
            Answered::Read => drop(read(cx, self.id, seq, axi, addr, 1, false)),
            Answered::BurstRead { lines } => drop(read(cx, self.id, seq, axi, addr, lines, true)),
            Answered::Write => {
                cx.framer.send(cx.tx, Space::Stream(self.id), seq, axi, addr, &Message::WriteResp);
            }
            Answered::Fault(status) => drop(fault(cx, self.id, seq, axi, addr, status)),
        }
    }

    /// R2, R4: keeps what came early and says so.
    #[cold]
    fn keep_early<M: Memory>(
        &mut self,
        seq: u64,
        request: &Request<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        if seq - self.expected >= SLOTS as u64 {
            cx.counters.dropped_window += 1;
            return;
        }
        if self.scheme == Retransmission::GoBackN {
            cx.counters.dropped_full += 1;
            if core::mem::replace(&mut self.naked_at, self.expected) != self.expected {
                self.tell_gap(seq, request, cx);
            }
            return;
        }
        let place = &mut self.early[seq as usize % SLOTS];
        if place.is_none() {
            let data = if request.data.is_empty() {
                NONE
            } else {
                // R10: no room, no SACK; it is as if lost.
                let handle = if cx.room > 0 { buffers.store(request.data) } else { None };
                let Some(handle) = handle else {
                    cx.counters.dropped_full += 1;
                    return;
                };
                cx.room -= 1;
                handle
            };
            let Request { op, addr, axi, .. } = *request;
            *place = Some(Early { op, addr, axi, data, len: request.data.len() });
            self.early_count += 1;
            cx.counters.early += 1;
        } else {
            cx.counters.duplicates += 1;
        }
        self.tell_gap(seq, request, cx);
    }

    /// R4: says that request `seq` has come and from where on something is missing.
    fn tell_gap<M: Memory>(&mut self, seq: u64, request: &Request<'_>, cx: &mut Context<'_, M>) {
        if self.due.is_some_and(|due| due.writes > 1) {
            // A SackNakAck names one.
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

    /// Executes what waited and whose turn it is now: a gap has closed, or there is room again.
    #[cold]
    fn drain_early<M: Memory>(&mut self, buffers: &mut Slab, cx: &mut Context<'_, M>) {
        while let Some(Early { op, addr, axi, data, len }) = self.early[self.expected as usize % SLOTS] {
            self.flush_due_before(op, cx);
            let seq = self.expected;
            let data = if data == NONE { &[][..] } else { buffers.get(data, len) };
            if !self.execute(seq, &Request { op, addr, axi, data }, cx) {
                return;
            }
            self.forget_early(seq, buffers);
        }
    }

    /// Empties the place of request `seq`.
    fn forget_early(&mut self, seq: u64, buffers: &mut Slab) {
        if let Some(early) = self.early[seq as usize % SLOTS].take() {
            buffers.release(early.data);
            self.early_count -= 1;
        }
    }
}

/// Reads straight into a transmit slot. `None` if there is none free.
#[inline]
fn read<M: Memory>(
    cx: &mut Context<'_, M>,
    stream: u8,
    seq: u64,
    axi: Axi,
    addr: u64,
    lines: u8,
    burst: bool,
) -> Option<Answered> {
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
        (Command::BurstReadResp, Answered::BurstRead { lines })
    } else {
        (Command::ReadResp, Answered::Read)
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
) -> Option<Answered> {
    let message = Message::Fault { status };
    if !cx.framer.send(cx.tx, Space::Stream(stream), seq, axi, addr, &message) {
        return None;
    }
    cx.counters.faults += 1;
    Some(Answered::Fault(status))
}
