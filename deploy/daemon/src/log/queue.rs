//! Lines on their way to standard error: a bounded queue, and the one thread that writes.
//!
//! Standard error may be a pipe that nobody reads, a disk that is full, a terminal that has gone. Then the thread waits or
//! fails; the others go on, and the queue drops what has no room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

/// Bytes of lines that wait to be written, at most.
const BYTES_MAX: usize = 1 << 20;
/// How often `tick` runs while lines have been left out.
const TICK: Duration = Duration::from_secs(5);

/// The lines of this process.
pub static QUEUE: Queue = Queue::new();

/// Lines that wait to be written.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// There is something to write.
    filled: Condvar,
    /// All of it has been written, or given up.
    emptied: Condvar,
}

#[derive(Debug)]
struct Waiting {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Lines that had no room, and have not been told of.
    dropped: u64,
    /// Whether a thread writes; without one, whoever logs does.
    threaded: bool,
    /// Whether it is writing something that it has taken out.
    busy: bool,
}

/// What became of what was written.
#[derive(Debug, Default)]
struct Written {
    /// Lines that could not be written, and have not been told of.
    failed: u64,
    /// Why the last one could not be.
    error: Option<Errno>,
    /// Whether only a part of the last one was.
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

    /// Starts the thread, which gets no signals: others may not have blocked theirs yet. It calls `tick` now and then.
    ///
    /// # Errors
    /// No thread; then whoever logs writes.
    pub fn start(&'static self, tick: fn()) -> io::Result<()> {
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let started = std::thread::Builder::new().name("log".into()).spawn(move || self.write_on(tick));
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        started?;
        self.lock().threaded = true;
        Ok(())
    }

    /// Puts a line in, if it has room. Never waits for standard error while a thread writes.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if !waiting.threaded {
            drop(waiting);
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

    /// Waits until everything has been written or given up, at most so long.
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
                self.tell(&mut written);
            }
        }
    }

    /// Says what has been lost, now that lines can be written.
    fn tell(&self, written: &mut Written) {
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
    /// Writes a line with `write`, and the end of the one before if only a part of that was written.
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

/// Writes to standard error, past the buffers and rules of the standard library. After an error: how much was written.
fn write(mut bytes: &[u8]) -> Result<(), (usize, Errno)> {
    let stderr = io::stderr();
    let all = bytes.len();
    while !bytes.is_empty() {
        match nix::unistd::write(stderr.as_fd(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            // Somebody who shares it has made it non-blocking.
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
    /// A line as a whole: the formatter writes none in parts.
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
