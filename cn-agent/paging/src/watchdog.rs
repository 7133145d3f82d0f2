//! A thread that frees the agent's worker from a wait that only the worker could end.
//!
//! The worker copies pages out of processes. If such a page is absent, the kernel may make the worker wait
//! for it, as it would the program; but it is the worker that serves such waits. So during a copy the worker
//! publishes the page; if the copy takes too long, this thread installs zeros at that page. The thread sleeps
//! while no page is copied.

#![expect(unsafe_code, reason = "the descriptor belongs to another thread, which publishes its number")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::uffd::{Access, Uffd};
use cxloe_cn_core::pager::PAGE_BYTES;

/// Interval of the checks. If two successive checks find the same copy under way, zeros are installed at the
/// copy's page.
const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(50);
/// Number of checks in succession without a copy after which the thread sleeps.
const IDLE: u32 = 20;

#[derive(Debug, Default)]
struct Watched {
    /// Serial number of the copy: odd during a copy, and different for each one.
    serial: AtomicU64,
    /// Userfaultfd of the process, which stays open until the copy has ended.
    fd: AtomicU64,
    /// Address of the page in the process.
    address: AtomicU64,
    /// Serial number of the last copy that took too long.
    bitten: AtomicU64,
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// Handle of the thread, which ends when the last clone of the handle is dropped.
#[derive(Clone, Debug)]
pub struct Watchdog {
    watched: Arc<Watched>,
    thread: Thread,
    _end: Arc<WatchdogEnd>,
}

#[derive(Debug)]
struct WatchdogEnd {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for WatchdogEnd {
    fn drop(&mut self) {
        self.watched.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Guard of a copy in progress, which the watchdog observes until the guard is dropped.
#[derive(Debug)]
pub struct WatchedCopy<'a> {
    watched: &'a Watched,
    serial: u64,
}

impl Watchdog {
    /// Starts the thread. Each space of private memory has one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> io::Result<Watchdog> {
        let watched = Arc::new(Watched::default());
        let seen = Arc::clone(&watched);
        let thread = thread::Builder::new().name("watchdog".into()).spawn(move || watch_copies(&seen))?;
        let handle = thread.thread().clone();
        let end = Arc::new(WatchdogEnd { watched: Arc::clone(&watched), thread: Some(thread) });
        Ok(Watchdog { watched, thread: handle, _end: end })
    }

    /// Publishes the copy of the page at `address` in the process that `uffd` belongs to.
    #[inline]
    pub fn watch(&self, uffd: BorrowedFd<'_>, address: u64) -> WatchedCopy<'_> {
        let watched = &*self.watched;
        watched.fd.store(uffd.as_raw_fd() as u64, Ordering::Relaxed);
        watched.address.store(address, Ordering::Relaxed);
        let serial = watched.serial.fetch_add(1, Ordering::SeqCst) + 1;
        // Both sides use SeqCst: either this thread sees `asleep`, or the watchdog sees the new serial before
        // it parks.
        if watched.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        WatchedCopy { watched, serial }
    }
}

impl WatchedCopy<'_> {
    /// Ends the copy. Returns whether it took too long: then the bytes copied may be the zeros, not the page.
    #[inline]
    pub fn is_late(self) -> bool {
        self.watched.bitten.load(Ordering::SeqCst) == self.serial
    }
}

impl Drop for WatchedCopy<'_> {
    #[inline]
    fn drop(&mut self) {
        self.watched.serial.fetch_add(1, Ordering::SeqCst);
    }
}

fn watch_copies(watched: &Watched) {
    let (mut last, mut idle) = (0, 0);
    while !watched.stop.load(Ordering::SeqCst) {
        let serial = watched.serial.load(Ordering::SeqCst);
        if serial == last && serial % 2 == 1 {
            // The same copy as at the last check, so it has waited for at least one interval.
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

/// Installs zeros at the page for which the worker waits.
#[cold]
fn fill(watched: &Watched) {
    let fd = watched.fd.load(Ordering::SeqCst) as i32;
    let address = watched.address.load(Ordering::SeqCst);
    tracing::warn!(
        address = format_args!("{address:#x}"),
        "a process has discarded memory without announcing it; its page reads as zeros"
    );
    // SAFETY: the publisher keeps the descriptor open until its copy has ended, which waits for what follows; if it has
    // just ended, the ioctl acts on another descriptor, which refuses or finds the page present.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Ok(uffd) =
        borrowed.try_clone_to_owned().map_err(drop).and_then(|fd| Uffd::from_fd(fd).map_err(drop))
    {
        let _ = uffd.copy(address, &[0; PAGE_BYTES], Access::Writable);
    }
}
