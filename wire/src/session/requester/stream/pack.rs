//! Requests that wait to be sent together, in frames of many (see `frame::multi`).
//!
//! They wait while the caller says so, which is until it has no more to ask for at this moment, and no longer than until
//! a frame is full or a burst follows. They are in the retry buffer already, so that nothing else is kept of them. What is
//! sent again later travels alone.
//!
//! A frame reads or it writes, and programs do both by turns. So of those that wait all writes come before all reads, in the
//! retry buffer and thus in the numbers they are sent under (nobody has seen these numbers yet):
//!
//! ```text
//!   asked for:   W a   R b   W c   R d   R a             unsent .............. next
//!   they wait:                                           | W a  W c | R d  R b  R a |
//!   frames:                                                MultiWrite  MultiRead
//! ```
//!
//! What anybody could notice keeps its order: writes among each other, and a read behind the writes of its line that came
//! before it. A write of a line that a waiting read asks for would overtake that read; it has all that wait sent first. A
//! read and a write of different lines may change places, for a line is its compute node's alone and what one of them does
//! is nothing to the other.
//!
//! Or one burst read waits, for the next to go on where it ends: together they are one frame, which asks for all their lines
//! (see `frame::long_burst_parts`). Only bursts as long as an answer wait, and none beyond its page. Lines and bursts do not
//! wait together.

use super::super::Shared;
use super::super::entry::{Entry, Op};
use super::{Stream, transmit};
use crate::Transmit;
use crate::frame::{
    ADDRESS_LEN, Axi, Command, HEADER_LEN, LINE_SIZE, PAGE_LINES, Space, address_bytes, burst_fits_page,
    frame_len,
};
use crate::session::framer::Framer;
use crate::time::Time;

/// What may be packed in a session, and whether there is more to come.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Packing {
    /// Most lines of a frame that reads; 0 where it was not agreed on.
    pub reads: usize,
    /// Most lines of a frame that writes; 0 where it was not agreed on.
    pub writes: usize,
    /// Lines of each but the last of the burst reads that one frame may ask for; 0 where it was not agreed on, or an answer
    /// carries a page.
    pub burst: usize,
    /// Requests wait for others.
    pub held: bool,
}

impl Packing {
    /// How many requests of this kind may wait to be sent together; 0 if none may.
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

/// What is known of those that wait, beside what the retry buffer has of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// How many of them write: the first.
    writes: usize,
    /// The lines that the others read, each a bit of its place in its page.
    lines: u64,
    /// Where they are burst reads: how many lines they have together.
    burst: u8,
}

/// The bit of a line in [`Waiting::lines`].
#[inline]
fn line_bit(addr: u64) -> u64 {
    1 << (addr / LINE_SIZE as u64 % 64)
}

impl Stream {
    /// Requests that wait to be sent together.
    #[inline]
    pub fn waiting(&self) -> usize {
        (self.next - self.unsent) as usize
    }

    /// How many of them are of the kind of `op`.
    #[inline]
    fn waiting_like(&self, op: Op) -> usize {
        if op.is_read() { self.waiting() - self.waiting.writes } else { self.waiting.writes }
    }

    /// Whether a write of the line at `addr` would overtake a read of it that waits.
    #[inline]
    fn overtakes_read(&self, addr: u64) -> bool {
        let reads = self.unsent + self.waiting.writes as u64..self.next;
        self.waiting.lines & line_bit(addr) != 0 && reads.into_iter().any(|seq| self.at(seq).addr == addr)
    }

    /// Whether burst reads wait, each of so many lines, and what they lack of their page begins at `addr`.
    #[inline]
    fn goes_on_at(&self, addr: u64, each: usize) -> bool {
        let (first, lines) = (self.at(self.unsent).addr, usize::from(self.waiting.burst));
        lines == self.waiting() * each
            && burst_fits_page(first, lines)
            && first + (lines * LINE_SIZE) as u64 == addr
    }

    /// Sends those that wait unless the request `op` for `addr`, of whose kind `most` may wait, can join them; `false` when
    /// the transmit ring is full.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the parts of one request, all from one caller")]
    pub(super) fn makes_room(
        &mut self,
        op: Op,
        addr: u64,
        most: usize,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> bool {
        let joins = match op {
            Op::BurstRead { .. } if most > 0 => self.goes_on_at(addr, shared.packing.burst),
            _ => {
                self.waiting.burst == 0
                    && self.waiting_like(op) < most
                    && (op.is_read() || !self.overtakes_read(addr))
            }
        };
        joins || self.send_waiting(now, framer, shared, tx)
    }

    /// Adds a request to those that wait, of whose kind `most` may wait in all. A frame that is full leaves; if the ring is
    /// full, it goes on waiting.
    #[inline]
    pub(super) fn wait(
        &mut self,
        entry: Entry,
        most: usize,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
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
            // The first of the reads makes room: among them no order matters.
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

    /// Those that wait belong to another session, in which nothing waits.
    pub(super) fn waits_no_more(&mut self) {
        self.unsent = self.next;
        self.waiting = Waiting::default();
    }

    /// Sends those that wait, in one frame that writes and one that reads; `false` when the transmit ring is full: what is
    /// left then goes on waiting.
    #[inline]
    pub fn send_waiting(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> bool {
        self.send_pack(self.waiting.writes, now, framer, shared, tx)
            && self.send_pack(self.waiting(), now, framer, shared, tx)
    }

    /// Sends the first `lines` of those that wait, which are of one kind and all of their kind, in one frame; `false`, with
    /// nothing changed, when the transmit ring is full.
    #[inline]
    fn send_pack(
        &mut self,
        lines: usize,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
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
                // Each has an answer of its own.
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
                // The answer to reads, which is larger, and writes.
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

    /// Writes the first `lines` of the requests that wait, all of one kind, into a transmit slot.
    fn transmit_many(
        &self,
        lines: usize,
        reads: bool,
        framer: &Framer,
        shared: &Shared,
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
