//! Frames that are many requests of consecutive numbers: lines of any addresses (see `frame::multi`), and
//! burst reads of more lines than one answer carries.
//!
//! A frame that is next in order and has only valid requests is executed request by request and answered by
//! one frame. Any other frame is unrolled: each request is handled as if it came in its own frame. So order,
//! repetition, early arrival and refusal apply to each number separately (R1, R2, R4, R7, R9).

use super::super::framer::Received;
use super::super::slab::Slab;
use super::Memory;
use super::stream::{AnswerRecord, Context, GenuineRequest, Op, ResponseStream, fault};
use crate::frame::{
    ADDRESS_LEN, Axi, Command, FaultStatus, HEADER_LEN, LINE_SIZE, Message, Space, address_of,
    burst_read_lines_max, frame_len, long_burst_parts, multi_read_lines_max, multi_write_lines_max,
};

/// The requests of one genuine frame of many requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multi<'a> {
    first: u64,
    others: &'a [[u8; ADDRESS_LEN]],
    axi: Axi,
    /// Lines to write; `None` for reads.
    data: Option<&'a [[u8; LINE_SIZE]]>,
}

impl<'a> Multi<'a> {
    /// Decodes the requests of `frame`. Returns `None` if the frame is malformed.
    #[inline]
    pub fn of(frame: &'a Received<'_>) -> Option<Self> {
        let (others, data) = match frame.message() {
            Ok(Message::MultiReadReq { others }) => (others, None),
            Ok(Message::MultiWriteReq { others, data }) => (others, Some(data)),
            _ => return None,
        };
        Some(Multi { first: frame.addr(), others, axi: frame.axi(), data })
    }

    #[inline]
    fn len(&self) -> usize {
        self.others.len() + 1
    }

    #[inline]
    fn addresses(&self) -> impl Iterator<Item = u64> + use<'a> {
        core::iter::once(self.first).chain(self.others.iter().map(address_of))
    }

    /// AXI id of request `index` of the frame: tags count up with the numbers.
    #[inline]
    fn axi(&self, index: usize) -> Axi {
        Axi { tag: self.axi.tag.wrapping_add(index as u8), ..self.axi }
    }

    /// Returns the requests from index `from` on, each as if it came in its own frame.
    fn unrolled(self, from: usize) -> impl Iterator<Item = (usize, GenuineRequest<'a>)> {
        self.addresses().enumerate().skip(from).map(move |(index, addr)| {
            let (op, data) = match self.data {
                _ if !is_line(addr) => (Op::Malformed, &[][..]),
                None => (Op::Read, &[][..]),
                Some(data) => (Op::Write, &data[index][..]),
            };
            (index, GenuineRequest { op, addr, axi: self.axi(index), data })
        })
    }
}

#[inline]
fn is_line(addr: u64) -> bool {
    addr.is_multiple_of(LINE_SIZE as u64)
}

impl ResponseStream {
    /// Handles a genuine burst read that needs several answers, and so takes several numbers, the first of
    /// them `seq`. It is handled as several bursts, each as if it came in its own frame.
    #[inline]
    pub fn take_burst_read<M: Memory>(
        &mut self,
        seq: u64,
        lines: u8,
        request: &GenuineRequest<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        let most = burst_read_lines_max(cx.max_frame, cx.framer.seal.len());
        for ((addr, lines), number) in long_burst_parts(request.addr, lines, most).zip(seq..) {
            let tag = request.axi.tag.wrapping_add((number - seq) as u8);
            let (op, axi) = (Op::BurstRead { lines }, Axi { tag, ..request.axi });
            self.take(number, GenuineRequest { op, addr, axi, data: &[] }, buffers, cx);
        }
    }

    /// Handles a genuine frame of many requests; the first request has number `seq`.
    #[inline]
    pub fn take_multi<M: Memory>(
        &mut self,
        seq: u64,
        multi: &Multi<'_>,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        let trailer = cx.framer.seal.len();
        let most = match multi.data {
            None => multi_read_lines_max(cx.max_frame, trailer),
            Some(_) => multi_write_lines_max(cx.max_frame, trailer),
        };
        if multi.len() > most {
            // The answer would be longer than a frame, so the whole frame is one malformed request.
            let request = GenuineRequest { op: Op::Malformed, addr: multi.first, axi: multi.axi, data: &[] };
            return self.take(seq, request, buffers, cx);
        }
        let mut done = 0;
        if seq == self.expected && self.early_count == 0 {
            self.flush_due(cx.framer, cx.tx);
            let executed = match multi.data {
                None => self.read_all(seq, multi, cx),
                Some(data) => self.write_all(seq, multi, data, cx),
            };
            let Some(executed) = executed else {
                // There is no transmit slot for the answer: the frame counts as lost, and the CN sends it again.
                cx.counters.dropped_full += 1;
                return;
            };
            done = executed;
        }
        if done < multi.len() {
            self.unroll(seq, multi, done, buffers, cx);
        }
    }

    #[cold]
    fn unroll<M: Memory>(
        &mut self,
        seq: u64,
        multi: &Multi<'_>,
        from: usize,
        buffers: &mut Slab,
        cx: &mut Context<'_, M>,
    ) {
        for (index, request) in multi.unrolled(from) {
            self.take(seq + index as u64, request, buffers, cx);
        }
    }

    /// Reads all lines into one answer and returns their number. Returns 0, without any effect, if a line
    /// cannot be read; `None` if no transmit slot is free.
    #[inline]
    fn read_all<M: Memory>(&mut self, seq: u64, multi: &Multi<'_>, cx: &mut Context<'_, M>) -> Option<usize> {
        let lines = multi.len();
        let body = HEADER_LEN + 1 + lines * LINE_SIZE;
        let slot = cx.tx.slot(frame_len(body, cx.framer.seal.len()))?;
        let (places, _) = slot[HEADER_LEN + 1..body].as_chunks_mut::<LINE_SIZE>();
        for (addr, place) in multi.addresses().zip(places) {
            if !is_line(addr) || cx.memory.read(cx.cn, addr, place).is_err() {
                return Some(0);
            }
        }
        slot[HEADER_LEN] = lines as u8;
        cx.framer.header(Command::MultiReadResp as u8, seq, multi.axi, multi.first).emit(slot);
        cx.framer.finish(slot, body, Space::Stream(self.id), seq);
        cx.tx.commit();
        self.executed_all(seq, multi, lines, AnswerRecord::Read, cx);
        Some(lines)
    }

    /// Writes lines until one cannot be written. Acknowledges the written lines in one frame, refuses the
    /// failed one, and returns the number of requests answered. Returns `None`, with nothing written, if no
    /// transmit slot is free.
    #[inline]
    fn write_all<M: Memory>(
        &mut self,
        seq: u64,
        multi: &Multi<'_>,
        data: &[[u8; LINE_SIZE]],
        cx: &mut Context<'_, M>,
    ) -> Option<usize> {
        // The answer's slot is reserved first, because a request that was executed must be answered.
        cx.tx.slot(frame_len(HEADER_LEN + 1, cx.framer.seal.len()))?;
        let (mut lines, mut refused) = (0, None);
        for (addr, line) in multi.addresses().zip(data) {
            let written = if is_line(addr) {
                cx.memory.write(cx.cn, addr, 1, line)
            } else {
                Err(FaultStatus::Malformed)
            };
            if let Err(status) = written {
                refused = Some((addr, status));
                break;
            }
            lines += 1;
        }
        let message = match lines {
            0 => None,
            1 => Some(Message::WriteResp),
            _ => Some(Message::MultiWriteResp { lines: lines as u8 }),
        };
        if let Some(message) = message {
            cx.framer.send(cx.tx, Space::Stream(self.id), seq, multi.axi, multi.first, &message);
            self.executed_all(seq, multi, lines, AnswerRecord::Write, cx);
        }
        let Some((addr, status)) = refused else { return Some(lines) };
        let (at, axi) = (seq + lines as u64, multi.axi(lines));
        if let Some(answered) = fault(cx, self.id, at, axi, addr, status) {
            self.executed(at, answered, addr, axi);
            cx.counters.executed += 1;
            return Some(lines + 1);
        }
        // No slot for the refusal: the refused request and those after it count as lost.
        cx.counters.dropped_full += 1;
        Some(multi.len())
    }

    #[inline]
    fn executed_all<M>(
        &mut self,
        seq: u64,
        multi: &Multi<'_>,
        lines: usize,
        answered: AnswerRecord,
        cx: &mut Context<'_, M>,
    ) {
        for (index, addr) in multi.addresses().take(lines).enumerate() {
            self.executed(seq + index as u64, answered, addr, multi.axi(index));
        }
        cx.counters.executed += lines as u64;
        cx.counters.multi_requests += lines as u64;
        cx.counters.multi_frames += 1;
    }
}
