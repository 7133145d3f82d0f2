//! Bare exchanges of frames between two devices of DPDK, by the plug-in's functions alone: no link, no session, no frame
//! of the protocol. The rest of a line's time is that of the protocol and of the link.
//!
//! ```text
//!   near: slot, write | clock, commit, flush ---- request ---> receive :far
//!                     | receive, clock <--------- replies ---- slot, write, commit, flush
//! ```
//!
//! A request names the number and the length of its replies, so that an exchange may have the frames of a read. Both
//! ends spin without a pause between two looks at the ring.

#![expect(unsafe_code, reason = "the plug-in lends frames as raw pointers")]

use std::slice;
use std::time::{Duration, Instant};

use cxloe_net::ETHERNET_HEADER;

use super::burst::Burst;
use super::plugin::BURST;
use super::queue::Queue;
use super::{device, mtu};
use crate::echo::{Echo, REPLIES_MAX};
use crate::{LinkConfig, LinkError};

/// EtherType of the frames: the second one for local experiments (IEEE 802), which no node uses.
const ETHERTYPE: [u8; 2] = 0x88B6_u16.to_be_bytes();
/// Time after which a reply counts as lost: far above a round trip, even with a preempted far end.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// Number of looks at an empty ring between two readings of the clock, which takes longer than a look.
const LOOKS: u32 = 256;

/// Content of a frame behind its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    /// Number of the exchange.
    number: u32,
    /// Number of replies that a request asks for; 0 in a reply.
    replies: u16,
    /// Length of each reply in bytes, from the destination address on.
    reply_len: u16,
}

impl Message {
    const LEN: usize = ETHERNET_HEADER + 8;

    /// Writes a frame with this content to a buffer of at least [`LEN`](Self::LEN) bytes.
    #[inline]
    fn write(self, to: &mut [u8]) {
        // To all stations, from a locally administered address: neither end has to know the other's.
        to[..6].fill(0xFF);
        to[6..12].fill(0x02);
        to[12..14].copy_from_slice(&ETHERTYPE);
        to[14..18].copy_from_slice(&self.number.to_be_bytes());
        to[18..20].copy_from_slice(&self.replies.to_be_bytes());
        to[20..Self::LEN].copy_from_slice(&self.reply_len.to_be_bytes());
    }

    /// Reads a frame; `None` if it is another's.
    #[inline]
    fn read(from: &[u8]) -> Option<Message> {
        let bytes = from.first_chunk::<{ Message::LEN }>()?;
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        (bytes[12..14] == ETHERTYPE).then(|| Message {
            number: u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]),
            replies: half(18),
            reply_len: half(20),
        })
    }
}

/// Queue of a device of DPDK for bare frames.
pub struct BareEnd {
    queue: Queue,
    burst: Burst,
    /// Length of the longest frame in bytes.
    max_frame: usize,
    /// Number of the latest exchange.
    number: u32,
}

impl BareEnd {
    /// Opens a queue of the device that `config.interface` names.
    ///
    /// # Errors
    /// As those of a link over the device.
    pub fn open(config: &LinkConfig) -> Result<BareEnd, LinkError> {
        let device = device::find(&config.interface, config.queues)?;
        let (queue, _) = Queue::take(config, &device)?;
        let max_frame = (mtu(&device) + ETHERNET_HEADER).max(Message::LEN);
        Ok(BareEnd { queue, burst: Burst::default(), max_frame, number: 0 })
    }

    /// Whether frames can pass: over shared memory, whether a process is at the other end.
    pub fn is_up(&self) -> bool {
        self.queue.is_up()
    }

    /// Answers requests until the process ends.
    pub fn serve(&mut self) -> ! {
        loop {
            self.burst.fill(&mut self.queue);
            if self.burst.left() == 0 {
                continue;
            }
            for frame in self.burst.take(BURST) {
                // SAFETY: the frame is valid until the next burst is received, and nothing changes it meanwhile.
                let bytes = unsafe { slice::from_raw_parts(frame.bytes, frame.length as usize) };
                let Some(request) = Message::read(bytes) else { continue };
                let len = usize::from(request.reply_len).clamp(Message::LEN, self.max_frame);
                for _ in 0..request.replies.min(REPLIES_MAX) {
                    if lend(&mut self.queue, Message { replies: 0, ..request }, len) {
                        self.queue.commit();
                    }
                }
            }
            while self.queue.flush() > 0 {}
        }
    }

    /// Makes one exchange. Returns the time in nanoseconds from the commit of the request until all replies have
    /// arrived; `None` if one is lost.
    #[inline]
    pub fn exchange(&mut self, echo: Echo) -> Option<u64> {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let request = Message { number, replies: echo.replies, reply_len: echo.reply_len as u16 };
        if !lend(&mut self.queue, request, echo.request_len.clamp(Message::LEN, self.max_frame)) {
            return None;
        }
        let start = Instant::now();
        self.queue.commit();
        let mut unsent = self.queue.flush() > 0;
        let (mut left, mut looks) = (echo.replies, 0_u32);
        loop {
            self.burst.fill(&mut self.queue);
            for frame in self.burst.take(BURST) {
                // SAFETY: the frame is valid until the next burst is received, and nothing changes it meanwhile.
                let bytes = unsafe { slice::from_raw_parts(frame.bytes, frame.length as usize) };
                let is_reply = Message::read(bytes).is_some_and(|m| m.number == number && m.replies == 0);
                left = left.saturating_sub(u16::from(is_reply));
            }
            if left == 0 {
                return Some(start.elapsed().as_nanos() as u64);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && start.elapsed() > LOST_AFTER {
                return None;
            }
            if unsent {
                unsent = self.queue.flush() > 0;
            }
        }
    }
}

/// Writes a frame of `len` bytes, at least those of a message, to a buffer that is not committed yet. Returns false if
/// no buffer is free.
#[inline]
fn lend(queue: &mut Queue, message: Message, len: usize) -> bool {
    let Some(slot) = queue.slot(len) else { return false };
    // SAFETY: the plug-in lends as many bytes as were asked for, only to this caller, until they are committed.
    message.write(unsafe { slice::from_raw_parts_mut(slot.as_ptr(), len) });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let message = Message { number: 0x0102_0304, replies: 3, reply_len: 1400 };
        let mut frame = [7; 60];
        message.write(&mut frame);
        assert_eq!(Message::read(&frame), Some(message));
        assert_eq!(frame[Message::LEN..], [7; 60 - Message::LEN], "no more is written than a message has");
        assert_eq!(Message::read(&frame[..Message::LEN]), Some(message));
        assert_eq!(Message::read(&frame[..Message::LEN - 1]), None);
        frame[13] ^= 1;
        assert_eq!(Message::read(&frame), None, "a frame of another EtherType");
    }
}
