//! A thread that frees the agent's worker from a wait that only the worker could end.
//!
//! The worker copies pages out of processes. If such a page is absent, the kernel may make the worker wait
//! for it, as it would the program; but it is the worker that serves such waits. So during a copy the worker
//! publishes the page; if the copy takes too long, this thread installs zeros at that page, which the kernel refuses
//! if the page is present: then the copy is only slow. While the thread does that, the copy cannot end, so that the
//! page and the descriptor stay those of this copy. The thread sleeps while no page is copied.

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
/// Bit of the serial number that the watchdog sets while it acts on the copy.
const CLAIMED: u64 = 1 << 63;
/// Number of checks in succession without a copy after which the thread sleeps.
const IDLE: u32 = 20;

#[derive(Debug, Default)]
struct Watched {
    /// Serial number, odd while a page is being copied; it grows at the start and at the end of every copy.
    serial: AtomicU64,
    /// Userfaultfd of the process, which stays open until the copy has ended.
    fd: AtomicU64,
    /// Address of the page in the process.
    address: AtomicU64,
    /// Serial number of the last copy whose page got zeros.
    zeroed: AtomicU64,
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
    ended: bool,
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
    pub fn watch<'a>(&'a self, uffd: BorrowedFd<'a>, address: u64) -> WatchedCopy<'a> {
        let watched = &*self.watched;
        watched.fd.store(uffd.as_raw_fd() as u64, Ordering::Relaxed);
        watched.address.store(address, Ordering::Relaxed);
        let serial = watched.serial.fetch_add(1, Ordering::SeqCst) + 1;
        // Both sides use SeqCst: either this thread sees `asleep`, or the watchdog sees the new serial before
        // it parks.
        if watched.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        WatchedCopy { watched, serial, ended: false }
    }
}

impl WatchedCopy<'_> {
    /// Ends the copy. Returns whether its page was absent and got zeros: then the bytes copied may be zeros, not the
    /// page.
    #[inline]
    pub fn was_zeroed(mut self) -> bool {
        self.end();
        self.watched.zeroed.load(Ordering::SeqCst) == self.serial
    }

    #[inline]
    fn end(&mut self) {
        self.ended = true;
        let (serial, next) = (self.serial, self.serial + 1);
        while self.watched.serial.compare_exchange(serial, next, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            // Claimed by the watchdog, for one system call.
            thread::yield_now();
        }
    }
}

impl Drop for WatchedCopy<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

fn watch_copies(watched: &Watched) {
    let (mut last, mut idle) = (0, 0);
    while !watched.stop.load(Ordering::SeqCst) {
        let serial = watched.serial.load(Ordering::SeqCst);
        if serial == last && serial % 2 == 1 {
            // The same copy as at the last check, so it has taken at least one interval.
            fill(watched, serial);
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

/// Installs zeros at the page of copy `serial`, if that copy has not ended and the page is absent.
#[cold]
fn fill(watched: &Watched, serial: u64) {
    let claimed = serial | CLAIMED;
    if watched.serial.compare_exchange(serial, claimed, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    let fd = watched.fd.load(Ordering::SeqCst) as i32;
    let address = watched.address.load(Ordering::SeqCst);
    // SAFETY: `WatchedCopy` borrows the descriptor, and cannot end while the copy is claimed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let uffd = borrowed.try_clone_to_owned().map_err(drop).and_then(|fd| Uffd::from_fd(fd).map_err(drop));
    // A page that is present is refused: the copy is slow for another reason, such as a fork of the process.
    if uffd.is_ok_and(|uffd| uffd.copy(address, &[0; PAGE_BYTES], Access::Writable).is_ok()) {
        watched.zeroed.store(serial, Ordering::SeqCst);
        tracing::warn!(
            address = format_args!("{address:#x}"),
            "a process has discarded memory without announcing it; its page reads as zeros"
        );
    }
    watched.serial.store(serial, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use memmap2::{MmapMut, MmapOptions};

    use super::*;
    use crate::uffd::{Features, Modes};

    /// A page of this process, absent and registered with a userfaultfd.
    fn page() -> (MmapMut, Uffd) {
        let memory = MmapOptions::new().len(PAGE_BYTES).map_anon().unwrap();
        let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).unwrap();
        uffd.handshake(Features::empty()).unwrap();
        let start = memory.as_ptr() as u64;
        // SAFETY: the memory is the test's own, and read by address only.
        unsafe { uffd.register(start..start + PAGE_BYTES as u64, Modes::MISSING) }.unwrap();
        (memory, uffd)
    }

    fn first_byte(memory: &MmapMut) -> u8 {
        // SAFETY: the page is mapped; the kernel or the watchdog may change it meanwhile.
        unsafe { memory.as_ptr().read_volatile() }
    }

    #[test]
    fn a_copy_that_waits_for_an_absent_page_gets_zeros() {
        let (memory, uffd) = page();
        let watchdog = Watchdog::start().unwrap();
        let copy = watchdog.watch(uffd.as_fd(), memory.as_ptr() as u64);
        assert_eq!(first_byte(&memory), 0);
        assert!(copy.was_zeroed());
    }

    /// A thread that stood still, or waited for another lock of the kernel, has copied the page all the same.
    #[test]
    fn a_slow_copy_of_a_page_that_is_present_is_right() {
        let (memory, uffd) = page();
        let address = memory.as_ptr() as u64;
        uffd.copy(address, &[7; PAGE_BYTES], Access::Writable).unwrap();
        let watchdog = Watchdog::start().unwrap();
        let copy = watchdog.watch(uffd.as_fd(), address);
        // Nothing shows that the watchdog has found the copy slow.
        thread::sleep(4 * WATCHDOG_TIMEOUT);
        assert_eq!(first_byte(&memory), 7);
        assert!(!copy.was_zeroed());
    }

    #[test]
    fn a_copy_that_has_ended_is_left_alone() {
        let (memory, uffd) = page();
        let (watched, address) = (Watched::default(), memory.as_ptr() as u64);
        watched.fd.store(uffd.as_fd().as_raw_fd() as u64, Ordering::SeqCst);
        watched.address.store(address, Ordering::SeqCst);
        watched.serial.store(3, Ordering::SeqCst);
        fill(&watched, 1);
        assert_eq!((watched.serial.load(Ordering::SeqCst), watched.zeroed.load(Ordering::SeqCst)), (3, 0));
        // The page is still absent.
        assert_eq!(uffd.copy(address, &[9; PAGE_BYTES], Access::Writable), Ok(PAGE_BYTES));
        assert_eq!(first_byte(&memory), 9);
    }
}
