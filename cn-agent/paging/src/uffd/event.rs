//! What a userfaultfd has to tell.
//!
//! Reading an event is its acknowledgement: the thread that forks, unmaps or drops pages goes on as soon as its event
//! has been read, and until it has gone on every operation on pages says [`UffdError::Again`]. A faulting thread goes
//! on when its page is there. So whatever has to be finished before a fork has to be finished before reading.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;

use super::abi::{self, Message};
use super::{Uffd, UffdError};

/// Events that one read brings at most; one that brings fewer has brought all there were.
pub const EVENTS_MAX: usize = 32;

/// One event.
#[derive(Debug)]
pub enum Event {
    /// A thread needs a page.
    Fault {
        /// What it touched: the address itself with [`EXACT_ADDRESS`](super::Features::EXACT_ADDRESS), else that of
        /// its page.
        address: u64,
        /// It writes.
        write: bool,
        /// The page is there and write-protected.
        wp: bool,
        /// The file has the page, and the mapping has not.
        minor: bool,
        /// Which thread, with [`THREAD_ID`](super::Features::THREAD_ID), else 0.
        thread: u32,
    },
    /// The process has forked: a userfaultfd for the child's memory, which has the same ranges registered. Give it to
    /// [`Uffd::from_fd`]; there is no handshake to make. If it is dropped, the child's absent pages are zeros.
    Fork(OwnedFd),
    /// A range has been moved to another address by `mremap(2)`.
    Remap {
        /// First address before.
        from: u64,
        /// First address now.
        to: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The pages of a range are being dropped by `madvise(2)`, and are zeros from then on.
    Remove {
        /// First address.
        start: u64,
        /// First address behind it.
        end: u64,
    },
    /// A range has been unmapped.
    Unmap {
        /// First address.
        start: u64,
        /// First address behind it.
        end: u64,
    },
}

/// Room for the events of one read; about a kilobyte, so that it may lie on a stack.
#[derive(Debug)]
pub struct EventBuffer([Message; EVENTS_MAX]);

impl EventBuffer {
    /// An empty one.
    pub const fn new() -> EventBuffer {
        EventBuffer([Message { event: 0, reserved: [0; 7], arguments: [0; 3] }; EVENTS_MAX])
    }
}

impl Default for EventBuffer {
    fn default() -> EventBuffer {
        EventBuffer::new()
    }
}

impl Uffd {
    /// The events that are there now, at most as many as `buffer` holds; none if there are none, whatever other processes
    /// have made of the descriptor's flags. Several threads may read; each event goes to one of them.
    #[inline]
    pub fn events<'b>(&self, buffer: &'b mut EventBuffer) -> Result<Events<'b>, UffdError> {
        let room = size_of_val(&buffer.0);
        let part = libc::iovec { iov_base: buffer.0.as_mut_ptr().cast(), iov_len: room };
        let read = match self.reads_nowait.load(Ordering::Relaxed) {
            // SAFETY: the kernel writes whole messages, at most `room` bytes, into the live buffer; any bytes are a
            // message.
            true => unsafe { libc::preadv2(self.fd.as_raw_fd(), &part, 1, -1, libc::RWF_NOWAIT) },
            false => self.read(part)?,
        };
        match Errno::result(read) {
            Ok(bytes) => Ok(Events { messages: &buffer.0[..bytes as usize / size_of::<Message>()] }),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Events { messages: &[] }),
            Err(Errno::EOPNOTSUPP) if self.reads_nowait.swap(false, Ordering::Relaxed) => self.events(buffer),
            Err(errno) => Err(UffdError::Os { doing: "reading events", errno }),
        }
    }

    /// Reads where the kernel waits by the descriptor's flag alone: before Linux 6.10, and of forked children. The flag is
    /// set anew first; a process that clears it between the two calls, and has no event, has this thread wait for its next.
    #[cold]
    fn read(&self, part: libc::iovec) -> Result<isize, UffdError> {
        self.set_nonblocking()
            .map_err(|_| UffdError::Os { doing: "setting it not to block", errno: Errno::last() })?;
        // SAFETY: the kernel writes into the caller's live buffer, at most its length.
        Ok(unsafe { libc::read(self.fd.as_raw_fd(), part.iov_base, part.iov_len) })
    }

    /// Sleeps until there is an event, a signal comes or `most` has passed. `true` if there may be one.
    pub fn wait(&self, most: Duration) -> Result<bool, UffdError> {
        let mut fds = [libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        let most = libc::timespec {
            tv_sec: most.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: most.subsec_nanos() as libc::c_long,
        };
        // SAFETY: one live entry, a live time, and no signal mask.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 1, &most, std::ptr::null()) };
        match Errno::result(ready) {
            Ok(_) if fds[0].revents & libc::POLLERR != 0 => {
                // What a userfaultfd says that may block, or whose handshake is not made.
                Err(UffdError::Os { doing: "waiting for events before the handshake", errno: Errno::EINVAL })
            }
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(UffdError::Os { doing: "waiting for events", errno }),
        }
    }
}

/// The events of one read. Descriptors of forks that were not taken are closed with it.
#[derive(Debug)]
pub struct Events<'b> {
    messages: &'b [Message],
}

impl Iterator for Events<'_> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        while let Some((message, rest)) = self.messages.split_first() {
            self.messages = rest;
            if let Some(event) = event(message) {
                return Some(event);
            }
        }
        None
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// A message as an event; `None` for kinds that this program did not ask for, being newer than it. The number in a
/// fork's message is taken as a descriptor, so each message may be looked at once.
#[inline]
fn event(message: &Message) -> Option<Event> {
    let [first, second, third] = message.arguments;
    Some(match message.event {
        abi::EVENT_FAULT => Event::Fault {
            address: second,
            write: first & abi::FAULT_WRITE != 0,
            wp: first & abi::FAULT_PROTECTED != 0,
            minor: first & abi::FAULT_MINOR != 0,
            thread: low_half(third),
        },
        // SAFETY: the kernel has just made this descriptor for whoever reads the message, which is once.
        abi::EVENT_FORK => Event::Fork(unsafe { OwnedFd::from_raw_fd(low_half(first) as i32) }),
        abi::EVENT_REMAP => Event::Remap { from: first, to: second, len: third },
        abi::EVENT_REMOVE => Event::Remove { start: first, end: second },
        abi::EVENT_UNMAP => Event::Unmap { start: first, end: second },
        _ => return None,
    })
}

/// The four bytes that come first.
fn low_half(field: u64) -> u32 {
    let bytes = field.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn descriptors_of_forks_nobody_took_are_closed() {
        let (reading, writing) = nix::unistd::pipe().unwrap();
        let number = writing.into_raw_fd() as u32;
        let mut first = [0; 8];
        first[..4].copy_from_slice(&number.to_ne_bytes());
        let message = Message {
            event: abi::EVENT_FORK,
            reserved: [0; 7],
            arguments: [u64::from_ne_bytes(first), 0, 0],
        };
        drop(Events { messages: &[message] });
        let mut byte = [0];
        assert_eq!(nix::unistd::read(&reading, &mut byte), Ok(0), "the other end is closed");
    }
}
