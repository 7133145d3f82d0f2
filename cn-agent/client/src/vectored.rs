//! Transfer of bytes between a socket and shared memory, in one system call and without a copy in this process: the
//! kernel reads from the mapping, or writes to it.

#![expect(unsafe_code, reason = "sendmsg and recvmsg take raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::memory::SharedMemory;

/// Limit of ranges in one call.
pub const STRETCHES_MAX: usize = 64;

/// Memory from which a call sends.
#[derive(Clone, Copy, Debug)]
pub enum SendSlice<'a> {
    /// Memory of this process.
    Own(&'a [u8]),
    /// A range of shared memory: offset and length in bytes.
    Shared(&'a SharedMemory, usize, usize),
}

const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a zeroed message is valid and empty.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

fn shared(memory: &SharedMemory, at: usize, length: usize) -> libc::iovec {
    libc::iovec { iov_base: memory.bytes(at, length).cast(), iov_len: length }
}

fn outcome(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sends as much of the first [`STRETCHES_MAX`] of `stretches` as the socket takes without waiting.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WouldBlock`] if the socket is full.
pub fn send<'a>(
    socket: BorrowedFd<'_>,
    stretches: impl IntoIterator<Item = SendSlice<'a>>,
) -> io::Result<usize> {
    let mut parts = [NONE; STRETCHES_MAX];
    let mut count = 0;
    for (part, stretch) in parts.iter_mut().zip(stretches) {
        *part = match stretch {
            SendSlice::Own(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            SendSlice::Shared(memory, at, length) => shared(memory, at, length),
        };
        count += 1;
    }
    let message = message(&mut parts[..count]);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: every part is memory that stays for the length of the call: a slice borrowed for 'a, or a part of a
    // mapping that `bytes` has checked. The kernel only reads it.
    outcome(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) })
}

/// Receives without waiting: first into the ranges of `memory` that `places` gives as offset and length, then into
/// `rest`. Returns 0 at the end of the stream.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WouldBlock`] if nothing has arrived.
pub fn receive(
    socket: BorrowedFd<'_>,
    memory: Option<&SharedMemory>,
    places: impl IntoIterator<Item = (usize, usize)>,
    rest: &mut [u8],
) -> io::Result<usize> {
    let mut parts = [NONE; STRETCHES_MAX];
    let mut count = 0;
    for (part, (at, length)) in parts[1..].iter_mut().zip(places) {
        let Some(memory) = memory else { break };
        *part = shared(memory, at, length);
        count += 1;
    }
    // The first part was reserved for `rest`, which is filled last, so it is rotated to the end.
    parts[0] = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
    parts[..=count].rotate_left(1);
    let mut message = message(&mut parts[..=count]);
    // SAFETY: every part is memory that stays for the length of the call, and that the kernel may write: a part of a
    // mapping that `bytes` has checked, which other processes write too and which is only read as atomic words, or a
    // slice borrowed for writing.
    outcome(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_go_from_one_memory_to_the_other() {
        let (a, b) = UnixStream::pair().unwrap();
        let (from, to) = (SharedMemory::create(8192).unwrap(), SharedMemory::create(8192).unwrap());
        from.put(4093, b"shared");
        let parts =
            [SendSlice::Own(b"head"), SendSlice::Shared(&from, 4093, 6), SendSlice::Own(b"tail and more")];
        assert_eq!(send(a.as_fd(), parts).unwrap(), 23);
        let mut rest = [0; 64];
        assert_eq!(receive(b.as_fd(), Some(&to), [(10, 4), (8189, 3), (0, 5)], &mut rest).unwrap(), 23);
        let took = |at: usize, length: usize| {
            let mut bytes = vec![0; length];
            to.take(at, &mut bytes);
            bytes
        };
        assert_eq!(
            (took(10, 4), took(8189, 3), took(0, 5)),
            (b"head".into(), b"sha".into(), b"redta".into())
        );
        assert_eq!(&rest[..11], b"il and more");
        let nothing = receive(b.as_fd(), Some(&to), [], &mut rest).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive(b.as_fd(), Some(&to), [], &mut rest).unwrap(), 0);
    }

    #[test]
    #[should_panic]
    fn nothing_beyond_the_end_is_sent() {
        let (a, _b) = UnixStream::pair().unwrap();
        let memory = SharedMemory::create(4096).unwrap();
        let _ = send(a.as_fd(), [SendSlice::Shared(&memory, 4000, 97)]);
    }
}
