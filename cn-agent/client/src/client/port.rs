//! A port of one worker of the agent: rings in shared memory, and the socket that wakes both ends.

pub mod bulk;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_cn_core::cache::Line;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use super::{ClientError, OPERATION_TIMEOUT, call, protocol, unanswered};
use crate::defaults::this_cpu;
use crate::memory::{SharedMemory, receive_with_descriptor};
use crate::message::{self, ANSWER_MAX, AgentAnswer, AgentCall};
use crate::ring::{ClientEnd, Completion, ENTRIES, Operation, Submission};
use crate::status::Status;

/// Longest spin before a wait sleeps: one or two round trips to a memory node.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// Number of ring polls between two readings of the clock.
const SPINS: u32 = 64;
/// Longest sleep before the ring is polled again, in milliseconds.
const NAP_MS: u8 = 100;

/// A port of one worker of a running agent, for one thread.
#[derive(Debug)]
pub struct Port {
    end: ClientEnd,
    socket: UnixStream,
    path: PathBuf,
    next_tag: u32,
    /// Whether the agent has ended or the port has failed; then every call returns an error.
    gone: bool,
}

impl Port {
    /// Opens a port of a worker of the agent whose socket is at `path`; returns also the number of workers.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub(super) fn open(path: &Path, worker: usize) -> Result<(Port, usize), ClientError> {
        let ask = if worker == 0 { AgentCall::Port } else { AgentCall::PortOf { worker } };
        let mut socket = call(path, ask)?;
        let mut prefix = [0; 4];
        let (length, descriptor) =
            receive_with_descriptor(&socket, &mut prefix).map_err(|e| unanswered(path, e))?;
        if length < prefix.len() {
            return Err(ClientError::AgentGone(path.into()));
        }
        let announced = message::announced(prefix, ANSWER_MAX).map_err(|e| unanswered(path, e))?;
        let mut bytes = vec![0; announced];
        io::Read::read_exact(&mut socket, &mut bytes).map_err(|e| unanswered(path, e))?;
        let answer: AgentAnswer = message::decode(&bytes).map_err(|e| unanswered(path, e))?;
        let (size, workers) = match answer {
            AgentAnswer::Port { bytes, workers } => (bytes, workers),
            AgentAnswer::Refused(reason) => return Err(ClientError::Refused { path: path.into(), reason }),
            other => {
                return Err(protocol(path, format!("an answer that does not match the request: {other:?}")));
            }
        };
        if size != crate::ring::PORT_BYTES as u64 {
            return Err(protocol(path, format!("rings of {size} bytes")));
        }
        let descriptor = descriptor.ok_or_else(|| protocol(path, "no memory came with the answer"))?;
        let memory =
            SharedMemory::open(descriptor, size as usize).map_err(|e| protocol(path, e.to_string()))?;
        let end = ClientEnd::new(memory).ok_or_else(|| protocol(path, "rings of another layout"))?;
        Ok((Port { end, socket, path: path.into(), next_tag: 0, gone: false }, workers))
    }

    /// Reads the line at `hpa`.
    ///
    /// # Errors
    /// [`ClientError::Engine`] with the error of the agent's engine; [`ClientError::AgentGone`],
    /// [`ClientError::Silent`] or [`ClientError::Protocol`].
    pub fn read(&mut self, hpa: u64) -> Result<Line, ClientError> {
        let mut line = [0; 64];
        self.many(1, |_| (Operation::Read, hpa, None), |_, data| line = *data)?;
        Ok(line)
    }

    /// Writes the line at `hpa` into the agent's cache. [`flush`](Self::flush) waits until the memory node has the
    /// line.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, hpa: u64, line: &Line) -> Result<(), ClientError> {
        self.many(1, |_| (Operation::Write, hpa, Some(line)), |_, _| {})
    }

    /// Waits until every line that any client wrote earlier through this worker is at its memory node.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.many(1, |_| (Operation::Flush, 0, None), |_, _| {})
    }

    /// Submits `count` operations and waits for all of them; `done` receives each line that was read. After an error,
    /// no further operation is begun, and the first error is returned when those in flight have ended.
    pub(super) fn many<'a>(
        &mut self,
        count: usize,
        operation: impl Fn(usize) -> (Operation, u64, Option<&'a Line>),
        mut done: impl FnMut(usize, &Line),
    ) -> Result<(), ClientError> {
        if self.gone {
            return Err(ClientError::AgentGone(self.path.clone()));
        }
        let first = self.next_tag;
        let (mut begun, mut ended) = (0, 0);
        let mut error = None;
        let mut line = [0; 64];
        while ended < begun || (begun < count && error.is_none()) {
            let before = begun;
            while begun < count && begun - ended < ENTRIES && error.is_none() {
                let (operation, hpa, line) = operation(begun);
                let tag = first.wrapping_add(begun as u32);
                self.end.submit(Submission { tag, operation, hpa }, line);
                begun += 1;
            }
            self.next_tag = first.wrapping_add(begun as u32);
            if begun > before && self.end.wake_wanted() {
                self.wake_agent()?;
            }
            self.wait()?;
            while let Some(Completion { tag, status }) = self.end.take(&mut line) {
                let index = tag.wrapping_sub(first) as usize;
                if index >= begun {
                    return Err(self.broken(format!("unknown operation tag {tag}")));
                }
                ended += 1;
                match status {
                    Status::Done => done(index, &line),
                    Status::Failed(failed) => drop(error.get_or_insert(failed)),
                    Status::BadOperation => return Err(self.broken("it does not know the operation")),
                    Status::Unknown(code) => return Err(self.broken(format!("status {code}"))),
                }
            }
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    fn broken(&mut self, reason: impl Into<String>) -> ClientError {
        self.gone = true;
        protocol(&self.path, reason)
    }

    fn is_gone(&mut self) -> ClientError {
        self.gone = true;
        ClientError::AgentGone(self.path.clone())
    }

    fn wake_agent(&mut self) -> Result<(), ClientError> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.socket.as_raw_fd(), &[1], flags) {
            // A full socket already holds enough wake-ups.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(_) => Err(self.is_gone()),
        }
    }

    /// Waits until there is a completion.
    #[inline]
    fn wait(&mut self) -> Result<(), ClientError> {
        if self.spin() { Ok(()) } else { self.wait_longer() }
    }

    /// Polls for a completion while that is likely to be faster than sleeping. Returns whether there is a completion.
    #[inline]
    pub fn spin(&mut self) -> bool {
        let mut started = None;
        loop {
            // The agent, if it is on this CPU, cannot run while this thread spins.
            if this_cpu().is_some_and(|cpu| self.end.shares_cpu(cpu)) {
                std::thread::yield_now();
            } else if self.poll_completions() {
                return true;
            }
            if self.end.news() {
                return true;
            }
            if started.get_or_insert_with(Instant::now).elapsed() >= SPIN_TIME {
                return false;
            }
        }
    }

    /// Polls [`SPINS`] times for a completion.
    #[inline]
    fn poll_completions(&self) -> bool {
        (0..SPINS).any(|_| {
            std::hint::spin_loop();
            self.end.news()
        })
    }

    /// Sleeps until there is a completion.
    #[cold]
    fn wait_longer(&mut self) -> Result<(), ClientError> {
        let started = Instant::now();
        loop {
            self.end.set_asleep(true);
            let outcome = if self.end.news() { Ok(()) } else { self.sleep() };
            self.end.set_asleep(false);
            // Completions that the agent published before it ended are valid.
            if self.end.news() {
                return Ok(());
            }
            outcome?;
            if started.elapsed() > OPERATION_TIMEOUT {
                self.gone = true;
                return Err(ClientError::Silent { path: self.path.clone(), limit: OPERATION_TIMEOUT });
            }
        }
    }

    /// Sleeps for at most [`NAP_MS`], until the agent wakes this client or ends.
    fn sleep(&mut self) -> Result<(), ClientError> {
        let mut set = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut set, PollTimeout::from(NAP_MS)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(_) => return Err(self.is_gone()),
        }
        self.take_wakes()
    }

    /// Removes wake-up bytes from the socket, so that the next sleep does not end at once.
    fn take_wakes(&mut self) -> Result<(), ClientError> {
        let mut bytes = [0; 64];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(length) if length > 0 => Ok(()),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Ok(_) | Err(_) => Err(self.is_gone()),
        }
    }
}
