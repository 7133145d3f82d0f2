//! Memory node's end of Go-Back-N: executes requests in order, and drops all others.

use cxloe_wire::Transmit;
use cxloe_wire::frame::{Direction, FrameView, Message};
use cxloe_wire::session::{Memory, infer};

use super::super::{BURST, CN, Pages};
use super::{FIRST, open, send};

#[derive(Clone, Copy)]
struct Stream {
    /// Sequence number of the next request to execute.
    expected: u64,
    /// Value of `expected` when the last NAK was sent; a gap is reported once.
    nak_at: u64,
}

pub struct Responder {
    streams: Vec<Stream>,
    /// Number of requests that arrived again and were answered again.
    pub duplicates: u64,
    pub naks: u64,
}

impl Responder {
    pub fn new(streams: u8) -> Self {
        Self { streams: vec![Stream { expected: FIRST, nak_at: 0 }; streams.into()], duplicates: 0, naks: 0 }
    }

    pub fn handle(&mut self, frame: &mut [u8], pages: &mut Pages, tx: &mut dyn Transmit) {
        let Ok(mut view) = FrameView::new_checked(frame) else { return };
        let id = view.stream();
        let Some(stream) = self.streams.get_mut(usize::from(id)) else { return };
        let seq = infer(stream.expected, view.seq());
        if !open(&mut view, Direction::ToMn, seq) {
            return;
        }
        let (addr, Ok(message)) = (view.addr(), view.message()) else { return };
        if seq > stream.expected {
            if std::mem::replace(&mut stream.nak_at, stream.expected) != stream.expected {
                let nak = Message::SackNak { last_in_order: (stream.expected - 1) as u16 };
                self.naks += u64::from(send(tx, Direction::ToCn, id, seq, addr, &nak));
            }
            return;
        }
        let again = seq < stream.expected;
        self.duplicates += u64::from(again);
        let mut lines = [0; BURST];
        let executed = match message {
            // The first execution may have been followed by another write to the line, which must not be
            // undone.
            Message::BurstWriteReq { .. } if again => Ok(Message::WriteResp),
            Message::BurstWriteReq { mask, data } => {
                pages.write(CN.to_u64(), addr, mask, data).map(|()| Message::WriteResp)
            }
            Message::BurstReadReq { lines: count } => pages
                .read(CN.to_u64(), addr, &mut lines)
                .map(|()| Message::BurstReadResp { lines: count, data: &lines }),
            _ => return,
        };
        let answer = executed.unwrap_or_else(|status| Message::Fault { status });
        // Without room for the answer, the request counts as lost; the compute node sends it again.
        if send(tx, Direction::ToCn, id, seq, addr, &answer) && !again {
            stream.expected += 1;
        }
    }
}
