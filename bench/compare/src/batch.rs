//! Many datagrams in one system call: `recvmmsg` and `sendmmsg` on a connected UDP socket.
//!
//! One system call per datagram would limit a stream of small datagrams to the rate of system calls.

#![expect(unsafe_code, reason = "recvmmsg and sendmmsg take raw pointers")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;

/// Maximum number of datagrams in one system call.
pub const BATCH: usize = 64;

/// Datagrams of at most `room` bytes each, to be sent or just received.
pub struct Batch {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    room: usize,
}

impl Batch {
    /// Makes a batch without datagrams, each of which has room for `room` bytes.
    pub fn new(room: usize) -> Batch {
        Batch { bytes: vec![0; room * BATCH], lengths: Vec::with_capacity(BATCH), room }
    }

    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() == BATCH
    }

    pub fn datagram(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.room..][..self.lengths[index]]
    }

    /// Adds a datagram made of two parts. The batch must not be full.
    pub fn push(&mut self, head: &[u8], data: &[u8]) {
        let length = head.len() + data.len();
        assert!(
            !self.is_full() && length <= self.room,
            "a datagram of {length} bytes, room for {}",
            self.room
        );
        let slot = &mut self.bytes[self.lengths.len() * self.room..][..length];
        slot[..head.len()].copy_from_slice(head);
        slot[head.len()..].copy_from_slice(data);
        self.lengths.push(length);
    }

    pub fn clear(&mut self) {
        self.lengths.clear();
    }

    /// Sends all datagrams and empties the batch. A datagram that the socket refuses because its buffer is full is not
    /// sent again: it counts as lost on the network.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let mut parts = [EMPTY; BATCH];
        for (index, (part, length)) in parts.iter_mut().zip(&self.lengths).enumerate() {
            part.iov_base = self.bytes[index * self.room..].as_mut_ptr().cast();
            part.iov_len = *length;
        }
        let mut headers = headers(&mut parts);
        let mut sent = 0;
        while sent < self.lengths.len() {
            let left = &mut headers[sent..self.lengths.len()];
            // SAFETY: each of the `left.len()` headers points to one part, and each part to its own initialised bytes
            // in `self.bytes`; all outlive the call, which only reads them.
            let result =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, 0) };
            match result {
                -1 => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e if e.kind() == io::ErrorKind::WouldBlock => break,
                    e => return Err(e),
                },
                more => sent += more as usize,
            }
        }
        self.lengths.clear();
        Ok(())
    }

    /// Replaces the content of the batch by received datagrams: waits for the first, then takes all that the socket has
    /// queued. Returns `WouldBlock` if a non-blocking socket has none, or if the read time-out of a blocking socket
    /// passes.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.lengths.clear();
        let mut parts = [EMPTY; BATCH];
        for (part, slot) in parts.iter_mut().zip(self.bytes.chunks_exact_mut(self.room)) {
            part.iov_base = slot.as_mut_ptr().cast();
            part.iov_len = slot.len();
        }
        let mut headers = headers(&mut parts);
        // SAFETY: each header points to one part, and each part to `room` bytes of its own in `self.bytes`, to which
        // there is no other reference during the call; no time-out is given.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        self.lengths.extend(headers[..received as usize].iter().map(|header| header.msg_len as usize));
        Ok(())
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Returns message headers without addresses; each of them refers to one of `parts`.
fn headers(parts: &mut [libc::iovec; BATCH]) -> [libc::mmsghdr; BATCH] {
    // SAFETY: all bytes zero are a valid value of this structure: no address, no parts, no control data.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for (header, part) in headers.iter_mut().zip(parts) {
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_whole_and_in_order() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        far.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let (mut out, mut back) = (Batch::new(100), Batch::new(100));
        for number in 0..5_u8 {
            out.push(&[number; 4], &vec![number; usize::from(number) * 10]);
        }
        assert_eq!((out.len(), out.is_full()), (5, false));
        out.send(&near).unwrap();
        assert_eq!(out.len(), 0);
        let mut found = Vec::new();
        while found.len() < 5 {
            back.receive(&far).unwrap();
            found.extend((0..back.len()).map(|index| back.datagram(index).to_vec()));
        }
        for (number, datagram) in (0..5_u8).zip(found) {
            assert_eq!(datagram, vec![number; 4 + usize::from(number) * 10]);
        }
        far.set_nonblocking(true).unwrap();
        assert_eq!(back.receive(&far).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
