//! Requests that wait to be sent together, in a frame of many (see `frame::multi`).
//!
//! They wait while the caller says so, which is until it has no more to ask for at this moment, and no longer than until
//! a frame is full or a request of another kind follows. They are in the retry buffer already, so that nothing else is
//! kept of them. What is sent again later travels alone.

use super::super::Shared;
use super::super::entry::Op;
use super::{Stream, transmit};
use crate::Transmit;
use crate::frame::{ADDRESS_LEN, Axi, Command, HEADER_LEN, LINE_SIZE, Space, address_bytes, frame_len};
use crate::session::framer::Framer;
use crate::time::Time;

/// What may be packed in a session, and whether there is more to come.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Packing {
    /// Most lines of a frame that reads; 0 where it was not agreed on.
    pub reads: usize,
    /// Most lines of a frame that writes; 0 where it was not agreed on.
    pub writes: usize,
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
            Op::BurstRead { .. } | Op::BurstWrite { .. } => 0,
        }
    }
}

impl Stream {
    /// Requests that wait to be sent together.
    #[inline]
    pub fn waiting(&self) -> usize {
        (self.next - self.unsent) as usize
    }

    /// Sends those that wait unless `op`, of which `most` may wait, can join them; `false` when the transmit ring is full.
    #[inline]
    pub(super) fn makes_room(
        &mut self,
        op: Op,
        most: usize,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> bool {
        let joins = self.at(self.unsent).op == op && self.waiting() < most;
        joins || self.send_waiting(now, framer, shared, tx)
    }

    /// Sends those that wait, in one frame; `false`, with nothing changed, when the transmit ring is full.
    #[inline]
    pub fn send_waiting(
        &mut self,
        now: Time,
        framer: &Framer,
        shared: &mut Shared,
        tx: &mut dyn Transmit,
    ) -> bool {
        let lines = self.waiting();
        let (first, op) = (self.unsent, self.at(self.unsent).op);
        let sent = match lines {
            0 => return true,
            1 => {
                let entry = self.at(first);
                transmit(framer, tx, self.id, first, op, entry.addr, entry.data(&shared.buffers))
            }
            _ => self.transmit_many(lines, op.is_read(), framer, shared, tx),
        };
        if !sent {
            return false;
        }
        for seq in first..self.next {
            let entry = self.at_mut(seq);
            (entry.sends, entry.last_sent) = (1, now);
        }
        self.unsent = self.next;
        let payload = match lines {
            1 => op.payload_len(),
            // The answer to reads, which is larger, and writes.
            _ if op.is_read() => 1 + lines * LINE_SIZE,
            _ => 1 + lines * LINE_SIZE + (lines - 1) * ADDRESS_LEN,
        };
        shared.charge(payload, framer);
        if lines > 1 {
            shared.counters.multi_frames += 1;
            shared.counters.multi_requests += lines as u64;
        }
        true
    }

    /// Writes the `lines` requests that wait, all of one kind, into a transmit slot.
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
