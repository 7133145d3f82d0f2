//! A device that is taken away under a mapping of it: SIGBUS, made an ordinary error.
//!
//! When the kernel has no memory behind a mapped page any more, it raises SIGBUS in whoever touches it. The handler here
//! marks the watched range that was touched as gone, then puts anonymous memory in its place, so that the access goes
//! through; whoever made it looks at the mark afterwards and throws away what it read or wrote. The mark comes first:
//! nobody finds the zeros of the new memory before it.
//!
//! The handler makes one system call and touches nothing but atomics, so it may come at any moment. A SIGBUS elsewhere
//! goes on to the handler that was there before.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_void, sigaction, siginfo_t};

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
static BEFORE: OnceLock<sigaction> = OnceLock::new();

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
        install()?;
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

/// Puts the handler in place, once.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: `before` has room for what is there now; nothing is changed.
    if unsafe { sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are a valid `sigaction`, and the call above has filled it in.
    let before = unsafe { before.assume_init() };
    // Known before the handler can be called.
    let _ = BEFORE.set(before);
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus_error;
    // SAFETY: zeros are a valid `sigaction`.
    let mut ours: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `ours` is complete, and its handler async-signal-safe.
    match unsafe { sigaction(libc::SIGBUS, &ours, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid `siginfo_t` to a handler with SA_SIGINFO; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if replace(address) {
        return;
    }
    // SAFETY: `BEFORE` holds what `sigaction` said was there; a handler in it takes what its flags say.
    unsafe {
        match BEFORE.get() {
            Some(before) if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN => {
                // The access is made again when this returns, and ends the process.
                let mut default: sigaction = MaybeUninit::zeroed().assume_init();
                default.sa_sigaction = libc::SIG_DFL;
                sigaction(signal, &default, std::ptr::null_mut());
            }
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let next: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute(before.sa_sigaction);
                next(signal, info, context);
            }
            Some(before) => {
                let next: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                next(signal);
            }
            None => {}
        }
    }
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
