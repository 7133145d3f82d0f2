//! Events of a userfaultfd.
//!
//! Reading an event acknowledges it: the thread that forks, unmaps or drops pages continues as soon as its event has
//! been read, and until then every operation on pages returns [`UffdError::Again`]. A faulting thread continues when
//! its page is present. So work that must be done before a fork has to be finished before the event is read.

#![expect(unsafe_code, reason = "read, preadv2 and ppoll take raw pointers")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;

use super::abi::{self, Message};
use super::{Uffd, UffdError};

/// Maximum number of events of one read. A read that returns fewer has returned all.
pub const EVENTS_MAX: usize = 32;

/// An event of a userfaultfd, as the kernel reports it.
#[derive(Debug)]
pub enum UffdEvent {
    /// A thread waits for a page.
    Fault {
        /// Address that was accessed, with [`EXACT_ADDRESS`](super::Features::EXACT_ADDRESS); else that of its page.
        address: u64,
        /// True for a write, false for a read.
        write: bool,
        /// Whether the page is present and write-protected.
        wp: bool,
        /// Whether the page is present in the memory file, but absent from the mapping.
        minor: bool,
        /// Number of the thread with [`THREAD_ID`](super::Features::THREAD_ID), else 0.
        thread: u32,
    },
    /// The process has forked. The descriptor is a userfaultfd for the child's memory, with the same ranges
    /// registered: pass it to [`Uffd::from_fd`]; it needs no handshake. If it is closed, the child's absent pages
    /// read as zeros.
    Fork(OwnedFd),
    /// A range has been moved to another address by `mremap(2)`.
    Remap {
        from: u64,
        to: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// The pages of a range are being dropped by `madvise(2)`, and read as zeros from then on.
    Remove {
        start: u64,
        /// Address of the first byte behind the range.
        end: u64,
    },
    /// A range has been unmapped.
    Unmap {
        start: u64,
        /// Address of the first byte behind the range.
        end: u64,
    },
}

/// Buffer for the events of one read; about a kilobyte, so that it fits on a stack.
#[derive(Debug)]
pub struct EventBuffer([Message; EVENTS_MAX]);

impl EventBuffer {
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
    /// Reads the pending events, at most as many as `buffer` holds. Does not wait, even if another process has
    /// changed the descriptor's flags. Several threads may read; each event is returned to one of them.
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
            Ok(bytes) => Ok(Events::of(&buffer.0[..bytes as usize / size_of::<Message>()])),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Events::of(&[])),
            Err(Errno::EOPNOTSUPP) if self.reads_nowait.swap(false, Ordering::Relaxed) => self.events(buffer),
            Err(errno) => Err(UffdError::Os { doing: "reading events", errno }),
        }
    }

    /// Reads on kernels where only the descriptor's flag prevents waiting: before Linux 6.10, and for forked
    /// children. The flag is set again first. If a process clears the flag between the two calls and has no pending
    /// event, this thread waits for the next event of that process.
    #[cold]
    fn read(&self, part: libc::iovec) -> Result<isize, UffdError> {
        self.set_nonblocking()
            .map_err(|_| UffdError::Os { doing: "setting it not to block", errno: Errno::last() })?;
        // SAFETY: the kernel writes into the caller's live buffer, at most its length.
        Ok(unsafe { libc::read(self.fd.as_raw_fd(), part.iov_base, part.iov_len) })
    }

    /// Waits for an event, for at most `most`. Returns `true` if an event may be pending; a signal ends the wait too.
    pub fn wait(&self, most: Duration) -> Result<bool, UffdError> {
        let mut fds = [libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        let most = libc::timespec {
            tv_sec: most.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: most.subsec_nanos() as libc::c_long,
        };
        // SAFETY: the kernel accesses one live entry and a live time; no signal mask is passed.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 1, &most, std::ptr::null()) };
        match Errno::result(ready) {
            Ok(_) if fds[0].revents & libc::POLLERR != 0 => {
                // `ppoll` reports an error for a userfaultfd that is blocking, or that has had no handshake.
                Err(UffdError::Os { doing: "waiting for events before the handshake", errno: Errno::EINVAL })
            }
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(UffdError::Os { doing: "waiting for events", errno }),
        }
    }
}

/// Events of one read: forks come first, then the others in their order. The kernel reports faults first. A page
/// that was installed for one of them, now that the fork is acknowledged, would count as a page of the child too.
///
/// Dropping this closes the userfaultfds of fork events that the caller has not read from it.
#[derive(Debug)]
pub struct Events<'b> {
    messages: &'b [Message],
    /// Messages that are still to be looked at for forks.
    forks: &'b [Message],
}

impl<'b> Events<'b> {
    fn of(messages: &'b [Message]) -> Events<'b> {
        Events { messages, forks: messages }
    }
}

impl Iterator for Events<'_> {
    type Item = UffdEvent;

    #[inline]
    fn next(&mut self) -> Option<UffdEvent> {
        while let Some((message, rest)) = self.forks.split_first() {
            self.forks = rest;
            if message.event == abi::EVENT_FORK {
                return event(message);
            }
        }
        while let Some((message, rest)) = self.messages.split_first() {
            self.messages = rest;
            if message.event != abi::EVENT_FORK
                && let Some(event) = event(message)
            {
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

/// Decodes a message; `None` for a kind that is newer than this program, and that this program therefore did not
/// request. The result owns the descriptor in a fork's message, so each message must be decoded only once.
#[inline]
fn event(message: &Message) -> Option<UffdEvent> {
    let [first, second, third] = message.arguments;
    Some(match message.event {
        abi::EVENT_FAULT => UffdEvent::Fault {
            address: second,
            write: first & abi::FAULT_WRITE != 0,
            wp: first & abi::FAULT_PROTECTED != 0,
            minor: first & abi::FAULT_MINOR != 0,
            thread: low_half(third),
        },
        // SAFETY: the kernel has just made this descriptor for the reader of the message, which is decoded once.
        abi::EVENT_FORK => UffdEvent::Fork(unsafe { OwnedFd::from_raw_fd(low_half(first) as i32) }),
        abi::EVENT_REMAP => UffdEvent::Remap { from: first, to: second, len: third },
        abi::EVENT_REMOVE => UffdEvent::Remove { start: first, end: second },
        abi::EVENT_UNMAP => UffdEvent::Unmap { start: first, end: second },
        _ => return None,
    })
}

/// The first four bytes of a field in memory, where the kernel's union has a 32-bit member.
fn low_half(field: u64) -> u32 {
    let bytes = field.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    /// A fork whose child's descriptor is the end of a pipe, and the other end.
    fn fork() -> (Message, OwnedFd) {
        let (reading, writing) = nix::unistd::pipe().unwrap();
        let number = writing.into_raw_fd() as u32;
        let mut first = [0; 8];
        first[..4].copy_from_slice(&number.to_ne_bytes());
        let arguments = [u64::from_ne_bytes(first), 0, 0];
        (Message { event: abi::EVENT_FORK, reserved: [0; 7], arguments }, reading)
    }

    fn is_closed(reading: &OwnedFd) -> bool {
        nix::unistd::read(reading, &mut [0]) == Ok(0)
    }

    #[test]
    fn descriptors_of_forks_nobody_took_are_closed() {
        let (message, reading) = fork();
        drop(Events::of(&[message]));
        assert!(is_closed(&reading));
    }

    #[test]
    fn forks_come_before_the_faults_read_with_them() {
        let fault = |address| Message {
            event: abi::EVENT_FAULT,
            reserved: [0; 7],
            arguments: [abi::FAULT_WRITE, address, 0],
        };
        let ((first, of_first), (second, of_second)) = (fork(), fork());
        let messages = [fault(0x1000), first, fault(0x2000), second];
        let mut events = Events::of(&messages);
        let forks = [events.next(), events.next()];
        assert!(forks.iter().all(|event| matches!(event, Some(UffdEvent::Fork(_)))));
        let faults: Vec<u64> = events
            .map(|event| match event {
                UffdEvent::Fault { address, write: true, .. } => address,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(faults, [0x1000, 0x2000]);
        drop(forks);
        assert!(is_closed(&of_first) && is_closed(&of_second), "each was decoded once");
    }
}
