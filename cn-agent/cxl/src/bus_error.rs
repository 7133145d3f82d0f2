//! A device that is taken away under a mapping of it: SIGBUS, made an ordinary error.
//!
//! When the kernel has no memory behind a mapped page any more, it raises SIGBUS in whoever touches it. The handler here
//! marks the watched range that was touched as gone, then puts anonymous memory in its place, so that the access goes
//! through; whoever made it looks at the mark afterwards and throws away what it read or wrote. The mark comes first:
//! nobody finds the zeros of the new memory before it.
//!
//! The handler ([`sigbus`]) makes one system call here and touches nothing but atomics, so it may come at any moment.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::c_void;

use cxloe_sigbus::Fault;

/// Ranges that can be watched at a time.
pub const RANGES_MAX: usize = 64;

struct Range {
    start: AtomicUsize,
    /// 0: nothing is watched here.
    end: AtomicUsize,
    gone: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), gone: AtomicBool::new(false) } };
        RANGES_MAX];
/// Held while a range is taken.
static TAKING: Mutex<()> = Mutex::new(());

/// A watched range of this process's addresses; no longer watched when dropped, which has to be before it is unmapped.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches a mapping of `bytes` bytes at `start` that belongs to the caller alone: it may be replaced at any time.
    ///
    /// # Errors
    /// What the kernel says to a signal handler; [`io::ErrorKind::QuotaExceeded`] beyond [`RANGES_MAX`].
    ///
    /// # Safety
    /// The range has to be a mapping of its own, made of whole pages, of memory that is used by atomic accesses only, and
    /// has to stay mapped until the watch is dropped.
    pub unsafe fn range(start: *mut u8, bytes: usize) -> io::Result<Watch> {
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        cxloe_sigbus::install(serve)?;
        let free = RANGES.iter().position(|range| range.end.load(Ordering::Acquire) == 0);
        let index = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        let range = &RANGES[index];
        range.gone.store(false, Ordering::SeqCst);
        range.start.store(start as usize, Ordering::SeqCst);
        range.end.store(start as usize + bytes, Ordering::SeqCst);
        Ok(Watch(index))
    }

    /// Whether it is gone: what was read before this was asked may be anything.
    #[inline]
    pub fn is_gone(&self) -> bool {
        RANGES[self.0].gone.load(Ordering::Relaxed)
    }

    /// Makes it gone: no access reaches what was mapped once this returns.
    pub fn give_up(&self) {
        RANGES[self.0].replace();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        RANGES[self.0].end.store(0, Ordering::SeqCst);
    }
}

/// Serves an access to a watched range; whether it can be made again.
pub(crate) fn serve(fault: &Fault) -> bool {
    replace(fault.address as usize)
}

/// Puts anonymous memory in the place of the watched range that holds `address`; whether there is one.
fn replace(address: usize) -> bool {
    let holds = |range: &&Range| {
        let end = range.end.load(Ordering::SeqCst);
        (range.start.load(Ordering::SeqCst)..end).contains(&address)
    };
    RANGES.iter().find(holds).is_some_and(Range::replace)
}

impl Range {
    /// Marks this watched range as gone and puts anonymous memory in its place; whether that is done.
    fn replace(&self) -> bool {
        let (start, end) = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        self.gone.store(true, Ordering::SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping that its owner has given up to replacement (`Watch::range`) and has not unmapped,
        // because it is watched; it is accessed by atomic operations only, which any memory can stand. `errno` is put
        // back, so that interrupted code does not notice.
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

    /// Memory of `bytes` bytes above a page that cannot be touched.
    fn guarded(bytes: usize) -> (MmapRaw, *mut u8) {
        const PAGE: usize = 4096;
        let memory = MmapRaw::from(MmapOptions::new().len(PAGE + bytes).map_anon().unwrap());
        // SAFETY: the first page of memory that was mapped a moment ago.
        assert_eq!(unsafe { libc::mprotect(memory.as_mut_ptr().cast(), PAGE, libc::PROT_NONE) }, 0);
        let start = memory.as_mut_ptr().wrapping_add(PAGE);
        (memory, start)
    }

    /// The kernel's frame fills the signal stack of this thread; what handles the signal is elsewhere.
    #[test]
    fn the_least_signal_stack_will_do() {
        // SAFETY: reads a number.
        let least = unsafe { libc::getauxval(51) } as usize; // AT_MINSIGSTKSZ
        let ss_size = least.max(libc::MINSIGSTKSZ);
        let file = tempfile::tempfile().unwrap();
        let gone = MmapOptions::new().len(1 << 14).map_raw(&file).unwrap();
        // SAFETY: a mapping of its own that outlives the watch.
        let watch = unsafe { Watch::range(gone.as_mut_ptr(), gone.len()) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_memory, start) = guarded(1 << 14);
                let ours = libc::stack_t { ss_sp: start.cast(), ss_flags: 0, ss_size };
                let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
                // SAFETY: the stack lives until the one before is set again; the word is one of the mapping's.
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
