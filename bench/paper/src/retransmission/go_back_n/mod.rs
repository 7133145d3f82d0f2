//! Go-Back-N, by which simple reliable transports repair losses, with the frames and timers of this project's
//! protocol:
//!
//! * The memory node drops every request that arrives before its turn, and sends one NAK (a SackNak) for each
//!   gap.
//! * The compute node drops every answer that arrives before its turn.
//! * A NAK, or an answer that arrives early, makes the compute node send all requests from the gap on again,
//!   in order. So do each time-out, and a silence after which the protocol would send a probe.
//!
//! There is no handshake and no window; the workload limits the bursts in flight.

mod requester;
mod responder;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{
    Axi, Direction, ETHERTYPE_DEFAULT, FrameView, Header, Mac, Message, Seal, Space, frame_len,
};
use cxloe_wire::session::{Completions, Rejected, Timing};
use cxloe_wire::time::Time;

use super::{CN, Counts, MN, Pages, STREAMS, Target, Transport};
use requester::Requester;
use responder::Responder;

/// Protection of all frames: a checksum, as in a session without keys.
const SEAL: Seal = Seal::Plain { session: 1 };

/// Sequence number of the first request in each stream.
const FIRST: u64 = 1;

pub struct GoBackN {
    requester: Requester,
    responder: Responder,
}

impl GoBackN {
    pub fn new(timing: &Timing) -> Self {
        Self { requester: Requester::new(timing, STREAMS), responder: Responder::new(STREAMS) }
    }
}

impl Transport for GoBackN {
    fn is_open(&self) -> bool {
        true
    }

    fn write(
        &mut self,
        target: Target,
        data: &[u8],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        self.requester.submit(target, Some(data), now, tx)
    }

    fn read(&mut self, target: Target, now: Time, tx: &mut dyn Transmit) -> Result<(), Rejected> {
        self.requester.submit(target, None, now, tx)
    }

    fn serve(&mut self, frame: &mut [u8], _: Time, pages: &mut Pages, tx: &mut dyn Transmit) {
        self.responder.handle(frame, pages, tx);
    }

    fn finish_batch(&mut self, _: Time, _: &mut Pages, _: &mut dyn Transmit) {}

    fn handle(&mut self, frame: &mut [u8], now: Time, _: &mut dyn Transmit, out: &mut dyn Completions) {
        self.requester.handle(frame, now, out);
    }

    fn deadline(&self) -> Time {
        self.requester.deadline()
    }

    fn poll(&mut self, now: Time, tx: &mut dyn Transmit, _: &mut dyn Completions) {
        self.requester.poll(now, tx);
    }

    fn counts(&self) -> Counts {
        let Requester { again: requests_again, probes, timeouts, .. } = self.requester;
        let Responder { duplicates: answers_again, naks: sacks, .. } = self.responder;
        Counts { requests_again, answers_again, sacks, probes, timeouts }
    }
}

/// Sends a frame of a stream; returns false if the transmit ring is full.
fn send(
    tx: &mut dyn Transmit,
    direction: Direction,
    stream: u8,
    seq: u64,
    addr: u64,
    message: &Message<'_>,
) -> bool {
    let body = message.body_len();
    let Some(slot) = tx.slot(frame_len(body, Seal::PLAIN_LEN)) else { return false };
    let (src, dst): (Mac, Mac) = if direction == Direction::ToMn { (CN, MN) } else { (MN, CN) };
    let axi = Axi { stream, tag: seq as u8 };
    let header = Header { dst, src, ethertype: ETHERTYPE_DEFAULT, command: 0, seq: seq as u16, axi, addr };
    message.emit(&header, slot);
    SEAL.seal(direction, Space::Stream(stream), slot, body, seq);
    tx.commit();
    true
}

/// Checks the trailer of a stream's frame; returns false if the frame is damaged.
fn open(view: &mut FrameView<&mut [u8]>, direction: Direction, seq: u64) -> bool {
    let stream = view.stream();
    view.open(&SEAL, direction, Space::Stream(stream), seq)
}
