//! Bare echo: measures a link without a protocol.
//!
//! One end sends a request, and the other answers with frames of the requested sizes: no session, no trailer,
//! no copy of a payload (slots keep earlier content). The result is the lower bound for a line of remote
//! memory over the same link. A memory node answers only if it was started for measurements, because one Echo
//! requests many frames.

use std::time::{Duration, Instant};

use super::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{Axi, Command, HEADER_LEN, Header, MIN_FRAME, Mac};

/// Length of an Echo request in bytes: header, reply length, reply count.
pub const ECHO_BODY: usize = HEADER_LEN + 4;

/// Maximum number of frames that one Echo may request.
pub(crate) const REPLIES_MAX: u16 = 64;

/// Maximum number of frames taken from the ring before the answers are sent.
const BATCH: usize = 64;
/// Maximum time that [`serve`] runs, and the number of polls between two readings of the clock.
const SERVE_MAX: Duration = Duration::from_secs(1);
const CLOCK_EVERY: u32 = 4096;

/// Whether `frame` has the command code of an Echo and is long enough for one.
#[inline]
pub fn is_echo(frame: &[u8]) -> bool {
    frame.len() >= ECHO_BODY && frame[14] == Command::Echo as u8
}

/// Whether `frame` has the command code of an EchoReply.
#[inline]
pub fn is_reply(frame: &[u8]) -> bool {
    frame.len() >= ECHO_BODY && frame[14] == Command::EchoReply as u8
}

/// Request of a measurement: what to send, and what to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Length of the request frame in bytes, at least 60.
    pub request_len: usize,
    /// Length of each reply frame in bytes, at least 60.
    pub reply_len: usize,
    /// Number of reply frames that the request asks for.
    pub replies: u16,
}

impl Echo {
    /// Queues one request. Returns `false` if the transmit ring is full.
    #[inline]
    pub fn send(&self, from: Mac, to: Mac, ethertype: u16, tx: &mut dyn Transmit) -> bool {
        let Some(slot) = tx.slot(self.request_len.max(MIN_FRAME)) else { return false };
        let header = Header {
            dst: to,
            src: from,
            ethertype,
            command: Command::Echo as u8,
            seq: 0,
            axi: Axi { stream: 0, tag: 0 },
            addr: 0,
        };
        header.emit(slot);
        slot[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&(self.reply_len as u16).to_be_bytes());
        slot[HEADER_LEN + 2..ECHO_BODY].copy_from_slice(&self.replies.to_be_bytes());
        tx.commit();
        true
    }
}

/// Answers one request with at most `most` frames, or as many as the transmit ring has room for. Returns
/// their number. A frame that is not an Echo gets no answer.
#[inline]
pub fn answer(frame: &[u8], own: Mac, most: u16, tx: &mut dyn Transmit) -> u16 {
    if !is_echo(frame) {
        return 0;
    }
    let len = u16::from_be_bytes([frame[HEADER_LEN], frame[HEADER_LEN + 1]]) as usize;
    let count = u16::from_be_bytes([frame[HEADER_LEN + 2], frame[HEADER_LEN + 3]]).min(REPLIES_MAX.min(most));
    for index in 0..count {
        let Some(slot) = tx.slot(len.max(MIN_FRAME)) else { return index };
        slot[..6].copy_from_slice(&frame[6..12]);
        slot[6..12].copy_from_slice(&own.0);
        slot[12..HEADER_LEN].copy_from_slice(&frame[12..HEADER_LEN]);
        slot[14] = Command::EchoReply as u8;
        slot[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&index.to_be_bytes());
        tx.commit();
    }
    count
}

/// Answers requests, spinning, until no request has arrived for `idle`, but for at most a second, because the server
/// has other work too. Drops other frames, as if the ring had been full. Returns the number of requests answered.
pub fn serve(link: &mut dyn Link, idle: Duration) -> Result<u64, LinkError> {
    let own = link.info().mac;
    let (mut served, mut seen, mut spins) = (0, 0, 0_u32);
    let started = Instant::now();
    let (mut last, mut rounds) = (started, 0_u32);
    loop {
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(CLOCK_EVERY) && started.elapsed() > SERVE_MAX {
            return Ok(served);
        }
        let received = link.receive(BATCH, &mut |frame, tx| {
            served += u64::from(answer(frame, own, REPLIES_MAX, tx) > 0);
        })?;
        link.flush()?;
        if received > 0 && served != seen {
            seen = served;
            spins = 0;
            continue;
        }
        spins += 1;
        if spins == 1 {
            last = Instant::now();
        } else if spins.is_multiple_of(256) && last.elapsed() > idle {
            return Ok(served);
        }
        std::hint::spin_loop();
    }
}
