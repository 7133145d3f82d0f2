//! Requests that wait to be sent together, in frames of many requests (see `frame::multi`).
//!
//! Requests wait until the caller has no more for now, a frame is full, or a burst follows. They are recorded
//! only in the retry buffer. A retransmitted request travels alone.
//!
//! A frame is either of reads or of writes, while programs mix both. So among the waiting requests all writes
//! come before all reads, in the retry buffer and thus in their numbers. That is possible because none of
//! these numbers was used yet:
//!
//! ```text
//!   asked for:   W a   R b   W c   R d   R a             unsent .............. next
//!   they wait:                                           | W a  W c | R d  R b  R a |
//!   frames:                                                MultiWrite  MultiRead
//! ```
//!
//! The order is kept wherever it can be observed: among writes, and of a read after the earlier writes of its
//! line. A write of a line with a waiting read would overtake that read, so all waiting requests are sent
//! before such a write. A read and a write of different lines may change places, as CNs share no lines.
//!
//! A burst read also waits, for the next burst read that continues it: together they become one frame that
//! asks for all their lines (see `frame::long_burst_parts`). Only bursts as long as one answer wait, and only
//! within one page. Lines and bursts do not wait together.

use super::super::SessionState;
use super::super::entry::{Entry, Op};
use super::{RequestStream, transmit};
use crate::Transmit;
use crate::frame::{
    ADDRESS_LEN, Axi, Command, HEADER_LEN, LINE_SIZE, PAGE_LINES, Space, address_bytes, burst_fits_page,
    frame_len,
};
use crate::session::framer::Framer;
use crate::time::Time;

/// Limits of packing in a session, and whether more requests follow.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Packing {
    /// Maximum number of lines in a frame of reads; 0 if the session has no such frames.
    pub reads: usize,
    /// Maximum number of lines in a frame of writes; 0 if the session has no such frames.
    pub writes: usize,
    /// Number of lines of each burst read, except the last, in a frame of several. 0 if the session has no
    /// such frames, or if one answer can carry a whole page.
    pub burst: usize,
    /// True while requests wait to be sent together.
    pub held: bool,
}

impl Packing {
    /// Maximum number of requests of the kind of `op` that may wait to be sent together; 0 if none may wait.
    #[inline]
    pub fn lines_max(&self, op: Op) -> usize {
        match op {
            _ if !self.held => 0,
            Op::Read => self.reads,
            Op::Write => self.writes,
            Op::BurstRead { .. } if self.burst > 0 => PAGE_LINES,
            Op::BurstRead { .. } | Op::BurstWrite { .. } => 0,
        }
    }
}

/// Summary of the waiting requests, which are recorded in the retry buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// Number of waiting writes; they come before the reads.
    writes: usize,
    /// Lines of the waiting reads, as a set of [`line_bit`]s. Lines of different pages share bits.
    lines: u64,
    /// Total number of lines of the waiting burst reads.
    burst: u8,
}

/// Bit of a line in [`Waiting::lines`]: the line's index in its page.
#[inline]
fn line_bit(addr: u64) -> u64 {
    1 << (addr / LINE_SIZE as u64 % 64)
}

impl RequestStream {
    #[inline]
    pub fn waiting(&self) -> usize {
        (self.next - self.unsent) as usize
    }

    #[inline]
    fn waiting_like(&self, op: Op) -> usize {
        if op.is_read() { self.waiting() - self.waiting.writes } else { self.waiting.writes }
    }

    /// Whether a write of the line at `addr` would overtake a waiting read of the same line.
    #[inline]
    fn overtakes_read(&self, addr: u64) -> bool {
        let reads = self.unsent + self.waiting.writes as u64..self.next;
        self.waiting.lines & line_bit(addr) != 0 && reads.into_iter().any(|seq| self.at(seq).addr == addr)
    }

    /// Whether burst reads of `each` lines wait, and `addr` is the next line after them in their page.
    #[inline]
    fn continues_at(&self, addr: u64, each: usize) -> bool {
        let (first, lines) = (self.at(self.unsent).addr, usize::from(self.waiting.burst));
        lines == self.waiting() * each
            && burst_fits_page(first, lines)
            && first + (lines * LINE_SIZE) as u64 == addr
    }

    /// Sends the waiting requests unless the request `op` for `addr` can join them. At most `most` requests
    /// of its kind wait. Returns `false` if the transmit ring is full.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the parts of one request, all from one caller")]
    pub(super) fn makes_room(
        &mut self,
        op: Op,
        addr: u64,
        most: usize,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        let joins = match op {
            Op::BurstRead { .. } if most > 0 => self.continues_at(addr, shared.packing.burst),
            _ => {
                self.waiting.burst == 0
                    && self.waiting_like(op) < most
                    && (op.is_read() || !self.overtakes_read(addr))
            }
        };
        joins || self.send_waiting(now, framer, shared, tx)
    }

    /// Adds a request to the waiting ones, and sends a frame that is full, that is, has `most` requests. If
    /// the transmit ring is full, the requests keep waiting.
    #[inline]
    pub(super) fn wait(
        &mut self,
        entry: Entry,
        most: usize,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) {
        let mut place = self.next;
        if let Op::BurstRead { lines } = entry.op {
            *self.at_mut(place) = entry;
            self.next += 1;
            self.waiting.burst += lines;
            let may_go_on =
                usize::from(lines) == shared.packing.burst && burst_fits_page(entry.addr, usize::from(lines));
            if !may_go_on {
                self.send_waiting(now, framer, shared, tx);
            }
            return;
        }
        if entry.op.is_read() {
            self.waiting.lines |= line_bit(entry.addr);
        } else {
            // The write takes the place of the first read, which moves to the end. The order of reads does
            // not matter.
            let first_read = self.unsent + self.waiting.writes as u64;
            if first_read != place {
                *self.at_mut(place) = *self.at(first_read);
                place = first_read;
            }
            self.waiting.writes += 1;
        }
        *self.at_mut(place) = entry;
        self.next += 1;
        if self.waiting_like(entry.op) < most {
            return;
        }
        if entry.op.is_read() {
            self.send_waiting(now, framer, shared, tx);
        } else {
            self.send_pack(self.waiting.writes, now, framer, shared, tx);
        }
    }

    /// Resets the summary: no request waits any more, because all requests have failed or move to another session.
    pub(super) fn waits_no_more(&mut self) {
        self.unsent = self.next;
        self.waiting = Waiting::default();
    }

    /// Sends the waiting requests, in one frame of writes and one of reads. If the transmit ring is full, the
    /// rest keeps waiting and `false` is returned.
    #[inline]
    pub fn send_waiting(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        self.send_pack(self.waiting.writes, now, framer, shared, tx)
            && self.send_pack(self.waiting(), now, framer, shared, tx)
    }

    /// Sends the first `lines` waiting requests, which are all waiting requests of one kind, in one frame.
    /// Returns `false`, with nothing changed, if the transmit ring is full.
    #[inline]
    fn send_pack(
        &mut self,
        lines: usize,
        now: Time,
        framer: &Framer,
        shared: &mut SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        let (first, op) = (self.unsent, self.at(self.unsent).op);
        let sent = match lines {
            0 => return true,
            1 => {
                let entry = self.at(first);
                transmit(framer, tx, self.id, first, op, entry.addr, entry.data(&shared.buffers))
            }
            _ if self.waiting.burst > 0 => {
                let (whole, addr) = (Op::BurstRead { lines: self.waiting.burst }, self.at(first).addr);
                transmit(framer, tx, self.id, first, whole, addr, &[])
            }
            _ => self.transmit_many(lines, op.is_read(), framer, shared, tx),
        };
        if !sent {
            return false;
        }
        let burst = core::mem::take(&mut self.waiting.burst) > 0;
        for seq in first..first + lines as u64 {
            let entry = self.at_mut(seq);
            (entry.sends, entry.last_sent) = (1, now);
            if burst {
                // Each burst read is charged separately, because each has its own answer.
                shared.charge(entry.op.payload_len(), framer);
            }
        }
        self.unsent += lines as u64;
        if op.is_read() {
            self.waiting.lines = 0;
        } else {
            self.waiting.writes = 0;
        }
        if !burst {
            let payload = match lines {
                1 => op.payload_len(),
                // For reads the answer is the longer frame, for writes the request.
                _ if op.is_read() => 1 + lines * LINE_SIZE,
                _ => 1 + lines * LINE_SIZE + (lines - 1) * ADDRESS_LEN,
            };
            shared.charge(payload, framer);
        }
        if lines > 1 {
            shared.counters.multi_frames += 1;
            shared.counters.multi_requests += lines as u64;
        }
        true
    }

    /// Writes the first `lines` waiting requests, all of one kind, into a transmit slot. Returns `false` if
    /// none is free.
    fn transmit_many(
        &self,
        lines: usize,
        reads: bool,
        framer: &Framer,
        shared: &SessionState,
        tx: &mut dyn Transmit,
    ) -> bool {
        let first = self.unsent;
        let addresses = HEADER_LEN + 1;
        let data = addresses + (lines - 1) * ADDRESS_LEN;
        let body = if reads { data } else { data + lines * LINE_SIZE };
        let Some(slot) = tx.slot(frame_len(body, framer.seal.len())) else { return false };
        let command = if reads { Command::MultiReadReq } else { Command::MultiWriteReq };
        let axi = Axi { stream: self.id, tag: first as u8 };
        framer.header(command as u8, first, axi, self.at(first).addr).emit(slot);
        slot[HEADER_LEN] = lines as u8;
        let (places, _) = slot[addresses..data].as_chunks_mut();
        for (seq, place) in (first + 1..).zip(places) {
            *place = address_bytes(self.at(seq).addr);
        }
        let (places, _) = slot[data..body].as_chunks_mut::<LINE_SIZE>();
        for (seq, place) in (first..).zip(places) {
            place.copy_from_slice(self.at(seq).data(&shared.buffers));
        }
        framer.finish(slot, body, Space::Stream(self.id), first);
        tx.commit();
        true
    }
}
