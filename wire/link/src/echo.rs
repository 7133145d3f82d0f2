//! Bare echo: the limit of a link, with no protocol on top.
//!
//! A frame goes out, the other end answers with frames of the sizes asked for, and nothing else happens: no
//! session, no trailer, no copy of a payload (slots keep whatever they held). What a line of remote memory
//! costs over the same link can be no less. A memory node answers only when it was started for measuring, and beside
//! its sessions, never in their place: an Echo asks for many frames by one.

use std::time::{Duration, Instant};

use super::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{Axi, Command, HEADER_LEN, Header, MIN_FRAME, Mac};

/// Bytes of an Echo request that mean something: header, reply length, reply count.
pub const ECHO_BODY: usize = HEADER_LEN + 4;

/// Most frames one Echo may ask for.
pub const REPLIES_MAX: u16 = 64;

/// Frames taken from the ring before the answers are sent.
const BATCH: usize = 64;
/// The longest that [`serve`] stays, and after how many looks at the link it looks at the clock.
const SERVE_MAX: Duration = Duration::from_secs(1);
const CLOCK_EVERY: u32 = 4096;

/// Whether `frame` is an Echo request.
#[inline]
pub fn is_echo(frame: &[u8]) -> bool {
    frame.len() >= ECHO_BODY && frame[14] == Command::Echo as u8
}

/// Whether `frame` is a reply to one.
#[inline]
pub fn is_reply(frame: &[u8]) -> bool {
    frame.len() >= ECHO_BODY && frame[14] == Command::EchoReply as u8
}

/// What one end asks of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Length of the request frame in bytes, at least 60.
    pub request_len: usize,
    /// Length of each reply frame in bytes, at least 60.
    pub reply_len: usize,
    /// Number of reply frames.
    pub replies: u16,
}

impl Echo {
    /// Queues one request. `false` if the transmit ring is full.
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

/// Answers one request, with `most` frames at most and as far as the transmit ring has room; returns how many. What is
/// no request is not answered.
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

/// Answers requests, spinning, until none has come for `idle`, or for a second at most: who serves is to look after
/// other things too. Frames that are no echo are dropped meanwhile, as a full ring would drop them. Returns the number
/// of requests answered.
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
