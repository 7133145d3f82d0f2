//! A thread that frees the agent's worker when it waits for itself.
//!
//! The worker copies pages out of processes. If such a page is not there, the kernel has the worker wait for it as it
//! would have the program wait, and it is the worker who serves such waits. So while it copies, it says what it waits
//! for; what takes too long, this thread fills with zeros. It sleeps while nothing is copied.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::uffd::{Access, Uffd};
use cxloe_cn_core::pager::PAGE_BYTES;

/// How long a copy may take.
const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(50);
/// Looks without a copy before the thread sleeps.
const IDLE: u32 = 20;

#[derive(Debug, Default)]
struct Watched {
    /// Odd while something is being copied; another number for each copy.
    serial: AtomicU64,
    /// Its userfaultfd, which stays open until the copy has ended.
    fd: AtomicU64,
    /// Where it is.
    address: AtomicU64,
    /// The serial of the copy that took too long.
    bitten: AtomicU64,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// The thread; ends with the last of its clones.
#[derive(Clone, Debug)]
pub struct Watchdog {
    watched: Arc<Watched>,
    thread: Thread,
    _end: Arc<End>,
}

#[derive(Debug)]
struct End {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.watched.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A copy under way; ends when dropped.
#[derive(Debug)]
pub struct Watch<'a> {
    watched: &'a Watched,
    serial: u64,
}

impl Watchdog {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread.
    pub fn start() -> io::Result<Watchdog> {
        let watched = Arc::new(Watched::default());
        let seen = Arc::clone(&watched);
        let thread = thread::Builder::new().name("watchdog".into()).spawn(move || look_on(&seen))?;
        let handle = thread.thread().clone();
        let end = Arc::new(End { watched: Arc::clone(&watched), thread: Some(thread) });
        Ok(Watchdog { watched, thread: handle, _end: end })
    }

    /// Says what is copied from now on: the page at `address` of the process that `uffd` belongs to.
    #[inline]
    pub fn watch(&self, uffd: BorrowedFd<'_>, address: u64) -> Watch<'_> {
        let watched = &*self.watched;
        watched.fd.store(uffd.as_raw_fd() as u64, Ordering::Relaxed);
        watched.address.store(address, Ordering::Relaxed);
        let serial = watched.serial.fetch_add(1, Ordering::SeqCst) + 1;
        if watched.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Watch { watched, serial }
    }
}

impl Watch<'_> {
    /// Ends the copy. Whether it took too long, so that what was copied is not the page.
    #[inline]
    pub fn bit(self) -> bool {
        self.watched.bitten.load(Ordering::SeqCst) == self.serial
    }
}

impl Drop for Watch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.watched.serial.fetch_add(1, Ordering::SeqCst);
    }
}

fn look_on(watched: &Watched) {
    let (mut last, mut idle) = (0, 0);
    while !watched.stop.load(Ordering::SeqCst) {
        let serial = watched.serial.load(Ordering::SeqCst);
        if serial == last && serial % 2 == 1 {
            // The same copy as before.
            watched.bitten.store(serial, Ordering::SeqCst);
            fill(watched);
        }
        idle = if serial == last && serial.is_multiple_of(2) { idle + 1 } else { 0 };
        last = serial;
        if idle < IDLE {
            thread::park_timeout(WATCHDOG_TIMEOUT);
            continue;
        }
        watched.asleep.store(true, Ordering::SeqCst);
        if watched.serial.load(Ordering::SeqCst) == last && !watched.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        watched.asleep.store(false, Ordering::SeqCst);
        idle = 0;
    }
}

/// Puts zeros where the worker waits.
#[cold]
fn fill(watched: &Watched) {
    let fd = watched.fd.load(Ordering::SeqCst) as i32;
    let address = watched.address.load(Ordering::SeqCst);
    tracing::warn!(
        address = format_args!("{address:#x}"),
        "a process has discarded memory without telling; its page is zeros"
    );
    // SAFETY: whoever watches keeps the descriptor open until its copy has ended, which waits for what follows; if it
    // has ended in this moment, a copy is tried on another descriptor, which refuses or finds the page there.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Ok(uffd) =
        borrowed.try_clone_to_owned().map_err(drop).and_then(|fd| Uffd::from_fd(fd).map_err(drop))
    {
        let _ = uffd.copy(address, &[0; PAGE_BYTES], Access::Writable);
    }
}
