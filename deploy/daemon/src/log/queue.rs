//! Bounded queue of lines for standard error, and the only thread that writes them.
//!
//! Standard error may be a pipe without a reader, a full disk, a closed terminal. Then only this thread blocks or
//! fails, and lines that do not fit into the queue are dropped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

/// Capacity of the queue, in bytes.
const BYTES_MAX: usize = 1 << 20;
/// Interval of calls of `tick`, which reports suppressed lines.
const TICK: Duration = Duration::from_secs(5);

pub static QUEUE: Queue = Queue::new();

#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// Signals to the writing thread that the queue has a line.
    filled: Condvar,
    /// Signals that all lines have been written or dropped.
    emptied: Condvar,
}

#[derive(Debug)]
struct Waiting {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Lines dropped for lack of room and not yet reported.
    dropped: u64,
    /// True if the log thread writes; otherwise each thread that logs writes its own lines.
    threaded: bool,
    /// True while the thread writes lines that it took out of the queue.
    busy: bool,
}

#[derive(Debug, Default)]
struct Written {
    /// Lines whose writing failed, not yet reported.
    failed: u64,
    error: Option<Errno>,
    /// True if the last line was written in part.
    torn: bool,
}

impl Queue {
    const fn new() -> Queue {
        let waiting = Waiting { lines: VecDeque::new(), bytes: 0, dropped: 0, threaded: false, busy: false };
        Queue { waiting: Mutex::new(waiting), filled: Condvar::new(), emptied: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the writing thread, in which all signals are blocked. The thread calls `tick` at intervals.
    ///
    /// # Errors
    /// The thread cannot be started; threads that log then write their lines themselves.
    pub fn start(&'static self, tick: fn()) -> io::Result<()> {
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let started = std::thread::Builder::new().name("log".into()).spawn(move || self.write_on(tick));
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        started?;
        self.lock().threaded = true;
        Ok(())
    }

    /// Queues a line if it fits. Never waits for standard error while a thread writes.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if !waiting.threaded {
            drop(waiting);
            // There is no other place to report an error.
            let _ = write(line);
        } else if waiting.bytes + line.len() > BYTES_MAX {
            waiting.dropped += 1;
        } else {
            waiting.bytes += line.len();
            waiting.lines.push_back(line.into());
            drop(waiting);
            self.filled.notify_one();
        }
    }

    /// Waits until all lines have been written or dropped, for at most `most`.
    pub fn flush(&self, most: Duration) {
        let until = Instant::now() + most;
        let mut waiting = self.lock();
        while waiting.threaded && (waiting.busy || !waiting.lines.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            waiting = self.emptied.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write_on(&self, tick: fn()) {
        let mut written = Written::default();
        loop {
            let mut waiting = self.lock();
            waiting.busy = false;
            if waiting.lines.is_empty() {
                self.emptied.notify_all();
                let filled =
                    self.filled.wait_timeout_while(waiting, TICK, |waiting| waiting.lines.is_empty());
                waiting = filled.unwrap_or_else(PoisonError::into_inner).0;
            }
            let Some(line) = waiting.lines.pop_front() else {
                drop(waiting);
                tick();
                continue;
            };
            waiting.busy = true;
            waiting.bytes -= line.len();
            drop(waiting);
            written.one(&line, write);
            if written.error.is_none() {
                self.report_losses(&mut written);
            }
        }
    }

    /// Reports the number of lost lines as soon as a write succeeds again.
    fn report_losses(&self, written: &mut Written) {
        let dropped = std::mem::take(&mut self.lock().dropped);
        let failed = std::mem::take(&mut written.failed);
        if dropped + failed > 0 {
            tracing::warn!(
                lines = dropped + failed,
                "lines of the log before this one are lost: standard error could not be written; look at the disk or \
                 the program behind it"
            );
        }
    }
}

impl Written {
    /// Writes a line with `write`, after a line break if the line before was written in part.
    fn one(&mut self, line: &[u8], write: impl Fn(&[u8]) -> Result<(), (usize, Errno)>) {
        let mended = if self.torn { write(b"\n").map_err(|(_, errno)| (0, errno)) } else { Ok(()) };
        self.torn &= mended.is_err();
        match mended.and_then(|()| write(line)) {
            Ok(()) => self.error = None,
            Err((part, errno)) => {
                self.failed += 1;
                self.error = Some(errno);
                self.torn |= part > 0;
            }
        }
    }
}

/// Writes to standard error by the system call. An error comes with the number of bytes written before it.
fn write(mut bytes: &[u8]) -> Result<(), (usize, Errno)> {
    let stderr = io::stderr();
    let all = bytes.len();
    while !bytes.is_empty() {
        match nix::unistd::write(stderr.as_fd(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            // Another process with the same open file may have made standard error non-blocking.
            Err(Errno::EAGAIN) => {
                let mut set = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                poll(&mut set, PollTimeout::NONE).map_err(|errno| (all - bytes.len(), errno))?;
            }
            Err(errno) => return Err((all - bytes.len(), errno)),
        }
    }
    Ok(())
}

impl io::Write for &Queue {
    /// Takes one whole line per call, as the formatter passes them.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        let queue = Queue::new();
        queue.lock().threaded = true;
        let line = [b'x'; 1000];
        (0..2000).for_each(|_| queue.push(&line));
        let waiting = queue.lock();
        assert_eq!(waiting.lines.len(), BYTES_MAX / 1000);
        assert_eq!(waiting.lines.len() as u64 + waiting.dropped, 2000);
        drop(waiting);
        let begun = Instant::now();
        queue.flush(Duration::from_millis(10));
        assert!(begun.elapsed() >= Duration::from_millis(10), "nobody writes, so it waits as long as it may");
    }

    #[test]
    fn a_line_of_which_only_a_part_was_written_is_ended_before_the_next() {
        let out = std::cell::RefCell::new(Vec::new());
        let room = std::cell::Cell::new(6);
        let write = |bytes: &[u8]| {
            let part = bytes.len().min(room.get());
            out.borrow_mut().extend_from_slice(&bytes[..part]);
            room.set(room.get() - part);
            if part < bytes.len() { Err((part, Errno::ENOSPC)) } else { Ok(()) }
        };
        let mut written = Written::default();
        written.one(b"one\n", write);
        assert!(written.error.is_none());
        written.one(b"two\n", write);
        written.one(b"three\n", write);
        assert_eq!((written.failed, written.error), (2, Some(Errno::ENOSPC)));
        room.set(100);
        written.one(b"four\n", write);
        assert!(written.error.is_none());
        assert_eq!(out.borrow().as_slice(), b"one\ntw\nfour\n");
    }
}
