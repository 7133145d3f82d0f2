//! Reception. One system call fills several buffers, each with one datagram or with several datagrams of one
//! sender and one length.

#![expect(unsafe_code, reason = "recvmmsg takes raw pointers")]

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use super::socket::{RawAddress, UDP_GRO};

/// Maximum number of messages that one call receives.
pub(super) const MESSAGES: usize = 32;
/// Length of a buffer in bytes: that of the longest message.
pub(super) const MESSAGE_BYTES: usize = 1 << 16;

/// Space for one control message with an integer, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct SegmentControl {
    header: libc::cmsghdr,
    segment: libc::c_int,
    padding: libc::c_int,
}

/// Arguments of the system call: where the kernel writes messages, senders and segment sizes.
struct ReceiveCall {
    headers: [libc::mmsghdr; MESSAGES],
    pieces: [libc::iovec; MESSAGES],
    names: [RawAddress; MESSAGES],
    controls: [SegmentControl; MESSAGES],
}

/// Sets the buffer lengths in a message header. Each call replaces them by the lengths received.
#[inline]
fn ready(header: &mut libc::msghdr) {
    header.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
    header.msg_controllen = size_of::<SegmentControl>() as _;
}

pub(super) struct Receiver {
    buffers: Box<[u8]>,
    call: Box<ReceiveCall>,
    /// Number of messages that the last system call received.
    filled: usize,
    at: usize,
    /// Range of the current message in `buffers` that has not been read yet. `segment` is the length of its
    /// frames.
    rest: Range<usize>,
    segment: usize,
    from: Option<SocketAddr>,
    /// Number of truncated messages. It stays 0, because no datagram is longer than a buffer.
    pub cut: u64,
}

// SAFETY: the pointers in `call` point into the boxes of this receiver, which nothing else uses.
unsafe impl Send for Receiver {}

impl Receiver {
    pub fn new() -> Receiver {
        let mut buffers = vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice();
        // SAFETY: ReceiveCall is plain data for which all zeros is valid: null pointers and lengths of zero.
        let mut call: Box<ReceiveCall> = Box::new(unsafe { std::mem::zeroed() });
        let ReceiveCall { headers, pieces, names, controls } = &mut *call;
        for (index, buffer) in buffers.chunks_exact_mut(MESSAGE_BYTES).enumerate() {
            pieces[index] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &mut pieces[index];
            header.msg_iovlen = 1;
            header.msg_name = std::ptr::from_mut(&mut names[index]).cast();
            header.msg_control = std::ptr::from_mut(&mut controls[index]).cast();
            ready(header);
        }
        Receiver { buffers, call, filled: 0, at: 0, rest: 0..0, segment: 0, from: None, cut: 0 }
    }

    /// Receives messages from the kernel; call only after all earlier ones have been read. Returns their number.
    #[inline]
    pub fn fill(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        // The kernel has overwritten the lengths of these headers.
        for header in &mut self.call.headers[..self.filled] {
            ready(&mut header.msg_hdr);
        }
        (self.filled, self.at, self.rest) = (0, 0, 0..0);
        // SAFETY: the headers point to buffers, addresses and control messages of this receiver, which
        // outlive the call and to which no reference exists. Their lengths were set before the first use and
        // after each use.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.call.headers.as_mut_ptr(),
                MESSAGES as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if count >= 0 {
            self.filled = count as usize;
            return Ok(self.filled);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(0),
            _ => Err(error),
        }
    }

    /// Returns the next frame and its sender. The caller may change the frame in place.
    #[inline]
    pub fn next(&mut self) -> Option<(&mut [u8], Option<SocketAddr>)> {
        while self.rest.is_empty() {
            if !self.open() {
                return None;
            }
        }
        let start = self.rest.start;
        let end = (start + self.segment).min(self.rest.end);
        self.rest.start = end;
        Some((&mut self.buffers[start..end], self.from))
    }

    /// Number of frames available without a system call, at most `most`.
    pub fn waiting(&self, most: usize) -> usize {
        let mut count = self.rest.len().div_ceil(self.segment.max(1));
        for index in self.at..self.filled {
            if count >= most {
                break;
            }
            let bytes = self.call.headers[index].msg_len as usize;
            count += bytes.div_ceil(self.segment_of(index, bytes));
        }
        count.min(most)
    }

    /// Moves to the next message. Returns `false` if there is none.
    fn open(&mut self) -> bool {
        let index = self.at;
        if index >= self.filled {
            return false;
        }
        self.at += 1;
        let header = &self.call.headers[index];
        let bytes = (header.msg_len as usize).min(MESSAGE_BYTES);
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            self.cut += 1;
            return true;
        }
        let start = index * MESSAGE_BYTES;
        self.rest = start..start + bytes;
        self.segment = self.segment_of(index, bytes);
        self.from = self.call.names[index].get();
        true
    }

    /// Length of the frames in a message: the kernel's segment size, or, without one, the length of the
    /// message.
    fn segment_of(&self, index: usize, bytes: usize) -> usize {
        let control = &self.call.controls[index];
        let whole = size_of::<libc::cmsghdr>() + size_of::<libc::c_int>();
        let told = self.call.headers[index].msg_hdr.msg_controllen >= whole as _
            && control.header.cmsg_level == libc::SOL_UDP
            && control.header.cmsg_type == UDP_GRO;
        let segment = if told { usize::try_from(control.segment).unwrap_or(0) } else { bytes };
        if segment == 0 { bytes.max(1) } else { segment }
    }
}
