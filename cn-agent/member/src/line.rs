//! Requests to the helper thread from the other threads of a process: a discard is announced to the agent,
//! and the thread waits for the acknowledgement. The helper thread takes one request at a time. The only lock
//! is a futex, and nothing is allocated.

#![expect(unsafe_code, reason = "futex and send take raw pointers")]

use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::wire::{MESSAGE_MAX, Message, MessageKind, Pages};

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;
const OVER: u32 = 3;

/// Values of [`HelperLine::leaving`], besides 0: how the helper thread is to end.
const LEAVE: u32 = 1;
const RETIRE: u32 = 2;

/// Connection of a process's threads with their helper thread; may be a `static`.
#[derive(Debug, Default)]
pub struct HelperLine {
    /// A futex: 0 is free, 1 is held, 2 is held while other threads wait.
    lock: AtomicU32,
    state: AtomicU32,
    /// First page and count of the announced discard.
    pages: AtomicU64,
    /// The helper's connection. Upper half: its number, counted from 1. Lower half: its descriptor; 0 if it has ended.
    connection: AtomicU64,
    /// Number of the connection over which the request was sent last.
    asked_over: AtomicU32,
    /// 0, [`LEAVE`] or [`RETIRE`]. Stored before the connection is read, as the helper stores a new connection before
    /// it reads this: one of them sees what the other has stored.
    leaving: AtomicU32,
}

/// Error: the member has left, or its helper thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process is no member of the space any more")]
pub struct LineClosed;

impl HelperLine {
    pub const fn new() -> HelperLine {
        HelperLine {
            lock: AtomicU32::new(0),
            state: AtomicU32::new(IDLE),
            pages: AtomicU64::new(0),
            connection: AtomicU64::new(0),
            asked_over: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
        }
    }

    /// Resets the line in a forked child, in which only the forking thread exists.
    pub fn reset(&self) {
        [&self.lock, &self.state, &self.leaving].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.connection.store(0, Ordering::Relaxed);
    }

    /// Announces to the agent that these pages are about to be discarded; returns when the agent has acknowledged. If
    /// the agent has died, waits for its successor.
    pub fn discard(&self, pages: Pages) -> Result<(), LineClosed> {
        self.acquire();
        self.pages.store(u64::from(pages.first) << 32 | u64::from(pages.count), Ordering::Relaxed);
        self.asked_over.store(0, Ordering::Relaxed);
        let mut outcome = self.state.compare_exchange(IDLE, ASKED, Ordering::SeqCst, Ordering::Acquire);
        if outcome.is_ok() {
            // Sending fails only if the connection has ended: the helper notices that, and sends the request again to
            // the successor.
            self.ask();
            while self.state.load(Ordering::Acquire) == ASKED {
                wait(&self.state, ASKED);
            }
            outcome = self.state.compare_exchange(ANSWERED, IDLE, Ordering::AcqRel, Ordering::Acquire);
        }
        self.release();
        outcome.map(drop).map_err(|_| LineClosed)
    }

    /// Announces the future use of pages: `kind` is [`MessageKind::WillRead`], `WillWrite`, `Cold` or `PageOut`. Does
    /// not wait; a lost announcement does no harm.
    pub fn hint(&self, kind: MessageKind, pages: Pages) {
        self.send(kind, &[pages], libc::MSG_DONTWAIT);
    }

    /// Announces that this process leaves; the helper thread ends when the agent has closed the connection.
    pub fn leave(&self) {
        self.leaving.store(LEAVE, Ordering::SeqCst);
        self.announce(MessageKind::Leave, &[]);
    }

    /// Waits until the helper thread has ended, as it does after [`leave`](Self::leave) when the agent has closed the
    /// connection. From then on the agent installs no page in this memory.
    pub fn wait_over(&self) {
        loop {
            match self.state.load(Ordering::Acquire) {
                OVER => return,
                state => wait(&self.state, state),
            }
        }
    }

    /// Ends the helper thread without a message to the agent. The agent continues to serve this process until the
    /// process joins again.
    pub fn retire(&self) {
        self.leaving.store(RETIRE, Ordering::SeqCst);
        self.end_connection();
    }

    fn end_connection(&self) {
        let socket = descriptor(self.connection.load(Ordering::SeqCst));
        if socket > 0 {
            // SAFETY: plain values. The number is the helper's connection, or no longer a socket.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
    }

    /// Whether the helper thread is to end: [`leave`](Self::leave) or [`retire`](Self::retire) was called.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0
    }

    /// Sets the helper's connection, and sends an unanswered request again. The helper may have joined a successor of
    /// the agent while it was told to end.
    pub(crate) fn connected(&self, socket: i32) {
        let next = number(self.connection.load(Ordering::Relaxed)).wrapping_add(1).max(1);
        let connection = u64::from(next) << 32 | u64::from(socket.cast_unsigned());
        self.connection.store(connection, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == ASKED {
            self.ask();
        }
        match self.leaving.load(Ordering::SeqCst) {
            LEAVE => self.announce(MessageKind::Leave, &[]),
            RETIRE => self.end_connection(),
            _ => {}
        }
    }

    pub(crate) fn disconnected(&self) {
        self.connection.fetch_and(u64::from(u32::MAX) << 32, Ordering::SeqCst);
    }

    /// Records the agent's acknowledgement of the discard.
    pub(crate) fn discarded(&self) {
        // An acknowledgement for which no request waits is ignored.
        if self.state.compare_exchange(ASKED, ANSWERED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            wake(&self.state);
        }
    }

    /// Records that the helper thread has ended.
    pub(crate) fn over(&self) {
        self.disconnected();
        self.state.store(OVER, Ordering::Release);
        wake(&self.state);
    }

    /// Sends the request over the connection, unless that has carried it already: each copy is acknowledged, and a later
    /// request would take the second acknowledgement for its own. Both the thread that has the request and the helper,
    /// which has a new connection, may come here at once.
    fn ask(&self) {
        let connection = self.connection.load(Ordering::SeqCst);
        if self.asked_over.fetch_max(number(connection), Ordering::SeqCst) < number(connection) {
            let pages = self.pages.load(Ordering::Acquire);
            let pages = Pages { first: (pages >> 32) as u32, count: pages as u32 };
            self.send_over(connection, MessageKind::Discard, &[pages], 0);
        }
    }

    fn announce(&self, kind: MessageKind, pages: &[Pages]) {
        self.send(kind, pages, 0);
    }

    fn send(&self, kind: MessageKind, pages: &[Pages], flags: libc::c_int) {
        self.send_over(self.connection.load(Ordering::SeqCst), kind, pages, flags);
    }

    fn send_over(&self, connection: u64, kind: MessageKind, pages: &[Pages], flags: libc::c_int) {
        let socket = descriptor(connection);
        if socket <= 0 {
            return;
        }
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(kind, pages).encode(&mut bytes);
        loop {
            // SAFETY: the kernel reads `length` bytes of a live buffer. The number is the helper's connection or, just
            // after that was closed, most likely no descriptor; `send` fails on anything but a socket.
            let sent =
                unsafe { libc::send(socket, bytes.as_ptr().cast(), length, libc::MSG_NOSIGNAL | flags) };
            // A wait for an agent that takes nothing is cut short by a signal, by a stop of this process, and by the
            // connection's limit: nothing is sent then, and the connection goes on.
            let cut_short =
                matches!(Error::last_os_error().kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock);
            let goes_on = self.connection.load(Ordering::SeqCst) == connection;
            if sent >= 0 || !cut_short || !goes_on || flags & libc::MSG_DONTWAIT != 0 {
                return;
            }
        }
    }

    fn acquire(&self) {
        if self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.lock.swap(2, Ordering::Acquire) != 0 {
                wait(&self.lock, 2);
            }
        }
    }

    fn release(&self) {
        if self.lock.swap(0, Ordering::Release) == 2 {
            wake(&self.lock);
        }
    }
}

fn number(connection: u64) -> u32 {
    (connection >> 32) as u32
}

/// Descriptor of a connection; less than 1 if it has ended.
fn descriptor(connection: u64) -> i32 {
    (connection as u32).cast_signed()
}

/// Sleeps while `word` is `value`; may return early.
fn wait(word: &AtomicU32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads a live word, and nothing else.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            none,
        )
    };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address of a live word, and reads nothing.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
    };
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::sleep_counter::SleepCounter;
    use crate::socket::send_some;
    use crate::wire::Inbox;

    const PAGES: Pages = Pages { first: 5, count: 3 };

    /// Sends small messages until the peer would have to take some.
    fn fill(socket: &UnixStream) {
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(MessageKind::Cold, &[PAGES]).encode(&mut bytes);
        while send_some(socket.as_fd(), &bytes[..length], &[], libc::MSG_DONTWAIT).is_ok() {}
    }

    /// Reads messages up to one of this kind; returns whether one came.
    fn comes(there: &mut UnixStream, kind: MessageKind) -> bool {
        let mut inbox = Inbox::new();
        loop {
            while let Some(message) = inbox.next().unwrap() {
                if message.kind == kind {
                    return true;
                }
            }
            match there.read(inbox.room()) {
                Ok(0) | Err(_) => return false,
                Ok(bytes) => inbox.put(bytes),
            }
        }
    }

    #[test]
    fn a_discard_reaches_an_agent_that_takes_nothing_for_longer_than_the_limit() {
        let (here, mut there) = UnixStream::pair().unwrap();
        here.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let line = HelperLine::new();
        line.connected(here.as_raw_fd());
        fill(&here);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let discard = scope.spawn(|| {
                tell.send(SleepCounter::this_thread()).unwrap();
                line.discard(PAGES)
            });
            // The second sleep begins when the limit has ended the first.
            told.recv().unwrap().wait_for(2);
            if comes(&mut there, MessageKind::Discard) {
                line.discarded();
            } else {
                line.over();
            }
            assert_eq!(discard.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_discard_goes_once_over_each_connection() {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let line = HelperLine::new();
        // A thread has made its request, and has not sent it yet, when the helper has a connection.
        line.pages.store(5 << 32 | 3, Ordering::Relaxed);
        line.state.store(ASKED, Ordering::SeqCst);
        line.connected(here.as_raw_fd());
        line.ask();
        let mut bytes = [0; 2 * MESSAGE_MAX];
        let mut expected = [0; MESSAGE_MAX];
        let length = Message::new(MessageKind::Discard, &[PAGES]).encode(&mut expected);
        assert_eq!(there.read(&mut bytes).unwrap(), length, "one message");
        assert_eq!(bytes[..length], expected[..length]);

        // A successor gets it as well.
        let (here, mut there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        line.disconnected();
        line.ask();
        line.connected(here.as_raw_fd());
        assert_eq!(there.read(&mut bytes).unwrap(), length, "one message");
    }

    #[test]
    fn a_helper_that_retires_while_it_joins_a_successor_does_not_leave() {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let line = HelperLine::new();
        line.retire();
        line.connected(here.as_raw_fd());
        assert_eq!(there.read(&mut [0; MESSAGE_MAX]).unwrap(), 0, "the connection ends without a message");
    }
}
