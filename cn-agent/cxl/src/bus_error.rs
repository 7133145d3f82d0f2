//! Turns SIGBUS on the mapping of a removed device into an ordinary error.
//!
//! When the memory behind a mapped page has vanished, the kernel raises SIGBUS in the thread that touches the page. The
//! handler here marks the watched range as gone, and then maps anonymous memory over it, so that the access succeeds.
//! The caller checks the mark after the access and, if it is set, discards the result. The mark is set first, so that
//! no caller uses the zeros of the new memory.
//!
//! The handler ([`cxloe_sigbus`]) makes one system call here and touches only atomics, so it may run at any moment.

#![expect(unsafe_code, reason = "a signal handler replaces mapped memory")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::c_void;

use cxloe_sigbus::Fault;

/// Maximum number of ranges that are watched at a time.
pub const RANGES_MAX: usize = 64;

struct Range {
    start: AtomicUsize,
    /// End of the range; 0 for a free entry.
    end: AtomicUsize,
    gone: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), gone: AtomicBool::new(false) } };
        RANGES_MAX];
/// Lock that is held while an entry is taken.
static TAKING: Mutex<()> = Mutex::new(());

/// A watched range of addresses of this process. Dropping this ends the watch, which has to happen before the range is
/// unmapped.
#[derive(Debug)]
pub struct WatchedRange(usize);

impl WatchedRange {
    /// Watches a mapping of `bytes` bytes at `start` that belongs to the caller alone; the handler may replace the
    /// mapping at any time.
    ///
    /// # Errors
    /// Errors of installing a signal handler; [`io::ErrorKind::QuotaExceeded`] beyond [`RANGES_MAX`].
    ///
    /// # Safety
    /// The range has to be a separate mapping of whole pages, accessed atomically only, and has to stay mapped until
    /// the watch is dropped.
    pub unsafe fn range(start: *mut u8, bytes: usize) -> io::Result<WatchedRange> {
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        cxloe_sigbus::install(serve)?;
        let free = RANGES.iter().position(|range| range.end.load(Ordering::Acquire) == 0);
        let index = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        let range = &RANGES[index];
        range.gone.store(false, Ordering::SeqCst);
        range.start.store(start as usize, Ordering::SeqCst);
        range.end.store(start as usize + bytes, Ordering::SeqCst);
        Ok(WatchedRange(index))
    }

    /// Whether the memory is gone; then the results of earlier reads are invalid.
    #[inline]
    pub fn is_gone(&self) -> bool {
        RANGES[self.0].gone.load(Ordering::Relaxed)
    }

    /// Marks the memory as gone: no access reaches it once this returns.
    pub fn give_up(&self) {
        RANGES[self.0].replace();
    }
}

impl Drop for WatchedRange {
    fn drop(&mut self) {
        RANGES[self.0].end.store(0, Ordering::SeqCst);
    }
}

/// Serves a fault in a watched range; returns whether the access can be repeated.
pub(crate) fn serve(fault: &Fault) -> bool {
    replace(fault.address as usize)
}

/// Maps anonymous memory over the watched range that holds `address`; returns whether there is such a range.
fn replace(address: usize) -> bool {
    let holds = |range: &&Range| {
        let end = range.end.load(Ordering::SeqCst);
        (range.start.load(Ordering::SeqCst)..end).contains(&address)
    };
    RANGES.iter().find(holds).is_some_and(Range::replace)
}

impl Range {
    /// Marks this watched range as gone and maps anonymous memory over it; returns whether both are done.
    fn replace(&self) -> bool {
        let (start, end) = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        self.gone.store(true, Ordering::SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping that its owner permits to be replaced (`WatchedRange::range`) and has not
        // unmapped, because it is watched; it is accessed by atomic operations only, which are valid on any memory.
        // `errno` is restored for the interrupted code.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let mapped = libc::mmap(start as *mut c_void, end - start, protection, flags, -1, 0);
            *errno = before;
            mapped != libc::MAP_FAILED
        }
    }
}

#[cfg(test)]
mod tests {
    use memmap2::{MmapOptions, MmapRaw};

    use super::*;

    /// Memory of `bytes` bytes above a page that must not be touched.
    fn guarded(bytes: usize) -> (MmapRaw, *mut u8) {
        const PAGE: usize = 4096;
        let memory = MmapRaw::from(MmapOptions::new().len(PAGE + bytes).map_anon().unwrap());
        // SAFETY: the first page of memory that was mapped just now.
        assert_eq!(unsafe { libc::mprotect(memory.as_mut_ptr().cast(), PAGE, libc::PROT_NONE) }, 0);
        let start = memory.as_mut_ptr().wrapping_add(PAGE);
        (memory, start)
    }

    /// Tests a fault in a thread whose own signal stack has room for the kernel's frame only: the handler then runs on
    /// a stack from the library's pool.
    #[test]
    fn the_least_signal_stack_will_do() {
        // SAFETY: the call reads a number that the kernel passed to this process.
        let least = unsafe { libc::getauxval(51) } as usize; // AT_MINSIGSTKSZ
        let ss_size = least.max(libc::MINSIGSTKSZ);
        let file = tempfile::tempfile().unwrap();
        let gone = MmapOptions::new().len(1 << 14).map_raw(&file).unwrap();
        // SAFETY: a mapping of this test that outlives the watch.
        let watch = unsafe { WatchedRange::range(gone.as_mut_ptr(), gone.len()) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_memory, start) = guarded(1 << 14);
                let ours = libc::stack_t { ss_sp: start.cast(), ss_flags: 0, ss_size };
                let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
                // SAFETY: the signal stack lives until the former one is set again; the word lies in the mapping.
                unsafe {
                    assert_eq!(libc::sigaltstack(&ours, &mut before), 0);
                    assert_eq!(gone.as_ptr().cast::<u64>().read_volatile(), 0);
                    assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
                }
            });
        });
        assert!(watch.is_gone());
    }
}
