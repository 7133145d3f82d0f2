//! How the other threads of a process reach its helper thread: they announce what they are about to discard, and wait
//! until the agent knows. One at a time; no lock but this one, and nothing is allocated.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::wire::{Kind, MESSAGE_MAX, Message, Pages};

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;
const OVER: u32 = 3;

/// The line between threads and their helper; may be a `static`.
#[derive(Debug, Default)]
pub struct Line {
    /// Who may use it: 0 nobody does, 1 somebody does, 2 and others wait.
    lock: AtomicU32,
    state: AtomicU32,
    /// First page and count of what is to be discarded.
    pages: AtomicU64,
    /// The connection's descriptor; less than 1 while there is none.
    socket: AtomicI32,
    leaving: AtomicU32,
}

/// The member has left, or its helper thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process is no member of the space any more")]
pub struct Over;

impl Line {
    /// A line nobody listens on yet.
    pub const fn new() -> Line {
        Line {
            lock: AtomicU32::new(0),
            state: AtomicU32::new(IDLE),
            pages: AtomicU64::new(0),
            socket: AtomicI32::new(0),
            leaving: AtomicU32::new(0),
        }
    }

    /// As new: for a forked child, where nobody else is.
    pub fn reset(&self) {
        [&self.lock, &self.state, &self.leaving].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.socket.store(0, Ordering::Relaxed);
    }

    /// Tells the agent that these pages are about to be discarded; returns when it knows. Waits for a successor of the
    /// agent if it has died.
    ///
    /// # Errors
    /// [`Over`].
    pub fn discard(&self, pages: Pages) -> Result<(), Over> {
        self.acquire();
        self.pages.store(u64::from(pages.first) << 32 | u64::from(pages.count), Ordering::Relaxed);
        let mut outcome = self.state.compare_exchange(IDLE, ASKED, Ordering::AcqRel, Ordering::Acquire);
        if outcome.is_ok() {
            // Whatever goes wrong here, the helper notices the hang-up and says it again to the successor.
            self.say(Kind::Discard, &[pages]);
            while self.state.load(Ordering::Acquire) == ASKED {
                wait(&self.state, ASKED);
            }
            outcome = self.state.compare_exchange(ANSWERED, IDLE, Ordering::AcqRel, Ordering::Acquire);
        }
        self.release();
        outcome.map(drop).map_err(|_| Over)
    }

    /// Tells the agent what this process will do with pages: [`Kind::WillRead`] and the kinds behind it. Waits for nothing,
    /// and nothing depends on whether it is heard.
    pub fn hint(&self, kind: Kind, pages: Pages) {
        self.send(kind, &[pages], libc::MSG_DONTWAIT);
    }

    /// Tells the agent that this process leaves; the helper thread ends when the agent has hung up.
    pub fn leave(&self) {
        self.leaving.store(1, Ordering::Release);
        self.say(Kind::Leave, &[]);
    }

    /// Has the helper thread end without a word to the agent, which goes on serving this process: it comes again.
    pub fn retire(&self) {
        self.leaving.store(1, Ordering::Release);
        let socket = self.socket.load(Ordering::SeqCst);
        if socket > 0 {
            // SAFETY: plain values. The number is the helper's connection, or no socket's any more.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
    }

    /// Whether the helper thread is to end: [`leave`](Self::leave) or [`retire`](Self::retire) was called.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0
    }

    /// The helper has this connection from now on; what is asked and not answered is asked again.
    pub(crate) fn connected(&self, socket: i32) {
        self.socket.store(socket, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == ASKED {
            let pages = self.pages.load(Ordering::Acquire);
            self.say(Kind::Discard, &[Pages { first: (pages >> 32) as u32, count: pages as u32 }]);
        }
        if self.is_leaving() {
            self.say(Kind::Leave, &[]);
        }
    }

    /// There is no connection at present.
    pub(crate) fn disconnected(&self) {
        self.socket.store(0, Ordering::SeqCst);
    }

    /// The agent knows what is discarded. (An answer more than asked is to a question that was asked twice.)
    pub(crate) fn discarded(&self) {
        if self.state.compare_exchange(ASKED, ANSWERED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            wake(&self.state);
        }
    }

    /// Nobody listens any more.
    pub(crate) fn over(&self) {
        self.disconnected();
        self.state.store(OVER, Ordering::Release);
        wake(&self.state);
    }

    fn say(&self, kind: Kind, pages: &[Pages]) {
        self.send(kind, pages, 0);
    }

    fn send(&self, kind: Kind, pages: &[Pages], flags: libc::c_int) {
        let socket = self.socket.load(Ordering::SeqCst);
        if socket > 0 {
            let mut bytes = [0; MESSAGE_MAX];
            let length = Message::new(kind, pages).encode(&mut bytes);
            // SAFETY: the kernel reads `length` bytes of a live buffer. The number is the helper's connection, or, if
            // that has just been closed, most likely none; on anything but a socket `send` does nothing.
            unsafe { libc::send(socket, bytes.as_ptr().cast(), length, libc::MSG_NOSIGNAL | flags) };
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
