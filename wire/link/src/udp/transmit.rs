//! Transmission. Frames are written one after the other into a buffer. Consecutive frames of one length to one peer
//! become one message, in which the last frame may be shorter, and the kernel cuts it into datagrams. A slightly
//! shorter frame is padded with zeros, as Ethernet pads short frames, so that the message continues. Otherwise each
//! page would need its own message, because its third burst is shorter than the others. A flush passes all messages to
//! the kernel in one call.
//!
//! ```text
//!   buffer   | frame | frame | frame | fr | frame | ...        written by slot, commit
//!   messages |<------- to A, 1438 ------->|<- to B ->|         passed on by flush
//! ```
//!
//! The kernel copies each message. Zero copy (`vmsplice`, `splice` after a corked head) was measured and is not used.
//! With zero copy, a frame must not be overwritten before it is received, so frames need a buffer larger than the
//! window, too large for any cache. On a veth, zero copy is faster if the cores of the two ends are far apart, and
//! slower if they are near (`bench/results/links-2026-11-23b.json`).

#![expect(unsafe_code, reason = "sendmmsg takes raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use cxloe_wire::Transmit;
use cxloe_wire::frame::Mac;

use super::routes::{Route, Routes};
use super::socket::{RawAddress, UDP_SEGMENT};

/// Maximum number of frames that wait for a flush.
const FRAMES_MAX: usize = 512;
/// Maximum number of datagrams in a message: the limit of the first kernels with UDP_SEGMENT.
const SEGMENTS_MAX: usize = 64;
/// Maximum number of bytes in a message: 64 KiB minus the headers of IP and UDP, with space for extension
/// headers.
const MESSAGE_BYTES_MAX: usize = 65_000;
/// Padding in bytes that always costs less than another message: more than the difference between a frame without a
/// line and one with a line. Longer frames may be padded by up to an eighth of their length.
const PADDING_MIN: usize = 64;
/// Maximum number of messages in one call.
const CALL_MAX: usize = 64;

/// Frames to one peer, one after the other, all of one length except the last: one message.
#[derive(Clone, Copy)]
struct FrameTrain {
    to: RawAddress,
    mac: Mac,
    start: usize,
    bytes: usize,
    segment: usize,
    frames: usize,
}

impl FrameTrain {
    /// Number of bytes that a further frame of `len` bytes takes in this message, or `None` if it cannot be
    /// added.
    #[inline]
    fn takes(&self, mac: Mac, len: usize) -> Option<usize> {
        let follows = self.mac == mac
            && len <= self.segment
            && self.bytes == self.frames * self.segment
            && self.frames < SEGMENTS_MAX
            && self.bytes + self.segment <= MESSAGE_BYTES_MAX;
        let padded = self.segment - len.min(self.segment) <= (self.segment / 8).max(PADDING_MIN);
        follows.then_some(if padded { self.segment } else { len })
    }
}

/// Control message with the length of a segment, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct SegmentControl {
    header: libc::cmsghdr,
    segment: u16,
    padding: [u8; 6],
}

impl SegmentControl {
    const fn new() -> SegmentControl {
        // SAFETY: SegmentControl is plain data for which all zeros is valid.
        let mut control: SegmentControl = unsafe { std::mem::zeroed() };
        control.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
        control.header.cmsg_level = libc::SOL_UDP;
        control.header.cmsg_type = UDP_SEGMENT;
        control
    }
}

/// Arguments of one system call. They are filled in and used within one flush, so that no pointer outlives
/// its target.
struct SendCall {
    headers: [libc::mmsghdr; CALL_MAX],
    pieces: [libc::iovec; CALL_MAX],
    controls: [SegmentControl; CALL_MAX],
}

pub(super) enum SendResult {
    /// All messages were passed to the kernel.
    All,
    /// Some messages wait, because the kernel's queue is full.
    Waits,
    /// Frames of this length in bytes are too long for the path to this peer.
    TooLong(Route, usize),
    /// Frames were lost, for this reason.
    Lost(io::Error),
}

pub(super) struct Transmitter {
    pub routes: Routes,
    buffer: Box<[u8]>,
    used: usize,
    lent: usize,
    messages: Vec<FrameTrain>,
    /// Number of messages that the kernel has taken.
    done: usize,
    queued: usize,
    call: Box<SendCall>,
    segments: bool,
    max_frame: usize,
    /// Last destination without a registered address.
    pub unknown: Option<Mac>,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
    pub unknown_count: u64,
}

// SAFETY: the pointers in `call` are written before each use and not read afterwards.
unsafe impl Send for Transmitter {}

impl Transmitter {
    pub fn new(routes: Routes, max_frame: usize, segments: bool) -> Transmitter {
        // SAFETY: SendCall is plain data for which all zeros is valid: null pointers and lengths of zero.
        let mut call: Box<SendCall> = Box::new(unsafe { std::mem::zeroed() });
        call.controls = [SegmentControl::new(); CALL_MAX];
        Transmitter {
            routes,
            buffer: vec![0; FRAMES_MAX * max_frame].into_boxed_slice(),
            used: 0,
            lent: 0,
            messages: Vec::with_capacity(FRAMES_MAX),
            done: 0,
            queued: 0,
            call,
            segments,
            max_frame,
            unknown: None,
            frames: 0,
            bytes: 0,
            full: 0,
            errors: 0,
            unknown_count: 0,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Passes all messages to the kernel, in as few system calls as possible.
    pub fn send(&mut self, socket: &OwnedFd) -> SendResult {
        let mut lost = None;
        while self.done < self.messages.len() {
            let count = self.fill();
            // SAFETY: `count` headers are filled in. They point to buffers, addresses and control messages of
            // this transmitter, which outlive the call.
            let sent = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    self.call.headers.as_mut_ptr(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if sent > 0 {
                self.done += sent as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            let message = self.messages[self.done];
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // The next flush sends the remaining messages, in order.
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    self.errors += 1;
                    return SendResult::Waits;
                }
                // The device or the route does not support segments, although the socket accepted the option, so each
                // frame becomes a message.
                Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) if self.segments && message.frames > 1 => {
                    tracing::info!(%error, "the kernel cuts no messages into datagrams here: one call for many instead");
                    self.stop_segmenting();
                }
                Some(libc::EMSGSIZE) => {
                    self.count_lost(message.frames);
                    let Some(route) = self.routes.to(message.mac).copied() else { continue };
                    return SendResult::TooLong(route, message.segment);
                }
                _ => {
                    self.count_lost(message.frames);
                    lost = Some(error);
                }
            }
        }
        self.messages.clear();
        (self.done, self.used, self.queued) = (0, 0, 0);
        lost.map_or(SendResult::All, SendResult::Lost)
    }

    /// Drops the current message and counts its frames as lost.
    fn count_lost(&mut self, frames: usize) {
        self.errors += frames as u64;
        self.done += 1;
    }

    /// Makes a separate message of each frame that has not been sent. The list is long enough for one message
    /// per frame.
    #[cold]
    pub fn stop_segmenting(&mut self) {
        self.segments = false;
        let whole: Vec<FrameTrain> = self.messages.drain(..).skip(std::mem::take(&mut self.done)).collect();
        for message in whole {
            for index in 0..message.frames {
                let start = message.start + index * message.segment;
                let bytes = message.segment.min(message.start + message.bytes - start);
                self.messages.push(FrameTrain { start, bytes, segment: bytes, frames: 1, ..message });
            }
        }
    }

    /// Fills in the headers for the next messages. Returns their number.
    fn fill(&mut self) -> usize {
        let SendCall { headers, pieces, controls } = &mut *self.call;
        let next = &mut self.messages[self.done..];
        let count = next.len().min(CALL_MAX);
        for (((message, header), piece), control) in next.iter_mut().zip(headers).zip(pieces).zip(controls) {
            let bytes = &mut self.buffer[message.start..message.start + message.bytes];
            *piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let header = &mut header.msg_hdr;
            header.msg_name = std::ptr::from_mut(&mut message.to).cast();
            header.msg_namelen = message.to.len();
            header.msg_iov = piece;
            header.msg_iovlen = 1;
            if message.frames > 1 {
                control.segment = message.segment as u16;
                header.msg_control = std::ptr::from_mut(control).cast();
                header.msg_controllen = size_of::<SegmentControl>() as _;
            } else {
                header.msg_control = std::ptr::null_mut();
                header.msg_controllen = 0;
            }
        }
        count
    }

    #[cold]
    fn refuse(&mut self, mac: Mac) {
        self.unknown_count += 1;
        self.unknown = Some(mac);
    }
}

impl Transmit for Transmitter {
    #[inline]
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.max_frame || len < crate::ETHERNET_HEADER {
            return None;
        }
        if self.queued == FRAMES_MAX || self.used + len > self.buffer.len() {
            self.full += 1;
            return None;
        }
        self.lent = len;
        Some(&mut self.buffer[self.used..self.used + len])
    }

    #[inline]
    fn commit(&mut self) {
        let len = std::mem::take(&mut self.lent);
        if len == 0 {
            return;
        }
        let Some(mac) = self.buffer[self.used..].first_chunk().map(|mac| Mac(*mac)) else { return };
        let Some(route) = self.routes.to(mac) else { return self.refuse(mac) };
        let last = self.messages.last_mut().filter(|_| self.segments);
        match last.and_then(|message| Some((message.takes(mac, len)?, message))) {
            Some((taken, message)) => {
                message.bytes += taken;
                message.frames += 1;
                // The buffer is long enough: it has the longest frame's length for each frame.
                self.buffer[self.used + len..self.used + taken].fill(0);
                self.used += taken;
            }
            None => {
                let (to, start) = (route.raw, self.used);
                self.messages.push(FrameTrain { to, mac, start, bytes: len, segment: len, frames: 1 });
                self.used += len;
            }
        }
        self.queued += 1;
        self.frames += 1;
        self.bytes += len as u64;
    }
}
