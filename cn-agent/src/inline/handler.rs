//! The signal: which mapping an address belongs to, and what becomes of signals that are not ours.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Once, OnceLock};

use memmap2::MmapRaw;

use super::InlineError;
use super::core::Core;
use super::counter::End;

/// Mappings with inline faults of one process.
const SEATS: usize = 16;

/// A mapping as the handler finds it.
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
    core: AtomicPtr<Core>,
    /// Handlers at work for it.
    inside: AtomicUsize,
}

static ENTRIES: [Entry; SEATS] = [const {
    Entry {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        core: AtomicPtr::new(std::ptr::null_mut()),
        inside: AtomicUsize::new(0),
    }
}; SEATS];

/// Held while entries change; never by the handler.
static CHANGING: Mutex<()> = Mutex::new(());

/// A mapping's place in the handler's table.
#[derive(Debug)]
pub struct Seat {
    at: usize,
    core: Option<Arc<Core>>,
}

impl Seat {
    /// Has faults in `range` served by `core`.
    pub fn take(range: Range<u64>, core: &Arc<Core>) -> Result<Seat, InlineError> {
        install()?;
        let _changing = CHANGING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let free = ENTRIES.iter().position(|entry| entry.core.load(Ordering::Relaxed).is_null());
        let at = free.ok_or(InlineError::Full(SEATS))?;
        ENTRIES[at].start.store(range.start, Ordering::Relaxed);
        ENTRIES[at].end.store(range.end, Ordering::Relaxed);
        ENTRIES[at].core.store(Arc::as_ptr(core).cast_mut(), Ordering::Release);
        Ok(Seat { at, core: Some(Arc::clone(core)) })
    }

    /// Gives the place up, and waits for handlers that are at work for it.
    pub fn leave(&mut self) {
        if self.core.is_none() {
            return;
        }
        {
            let _changing = CHANGING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            ENTRIES[self.at].core.store(std::ptr::null_mut(), Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        while ENTRIES[self.at].inside.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        self.core = None;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What SIGBUS did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn install() -> Result<(), InlineError> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| {
        // SAFETY: an action of zeros is one without flags and with an empty mask; both calls get valid pointers, and the
        // handler has the signature that SA_SIGINFO asks for.
        outcome = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            // First known, then replaced: a signal in between still finds what was.
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
                Err(io::Error::last_os_error())
            } else {
                let _ = BEFORE.set(before);
                match libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            }
        };
    });
    outcome.map_err(super::system("handle SIGBUS"))
}

/// Whether the access that ended in this signal was a write.
#[inline]
fn is_write(context: *mut libc::c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel hands a ucontext to every handler with SA_SIGINFO; bit 1 of the page fault's error code
        // says that it was a write.
        let code = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
        code & 2 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // Not known here: a page that was only read counts as written, and is compared with its twin when it leaves.
        let _ = context;
        true
    }
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel hands a siginfo to every handler with SA_SIGINFO, and for SIGBUS it has an address.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    let served = code == libc::BUS_ADRERR && serve(address, is_write(context));
    if !served {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[inline]
fn serve(address: u64, write: bool) -> bool {
    for entry in &ENTRIES {
        let (start, end) = (entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Relaxed));
        if !(start..end).contains(&address) {
            continue;
        }
        entry.inside.fetch_add(1, Ordering::SeqCst);
        let core = entry.core.load(Ordering::SeqCst);
        let mut served = false;
        if !core.is_null() {
            // SAFETY: whoever takes the core out of the entry waits until nobody is inside before it lets go of it.
            served =
                unsafe { &*core }.serve(((address - start) / crate::uffd::PAGE) as u32, write) == End::Served;
        }
        entry.inside.fetch_sub(1, Ordering::SeqCst);
        return served;
    }
    false
}

/// A signal that is not ours goes where it would have gone.
#[cold]
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: restores what the kernel does by itself; the access is made again, and ends the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
        return;
    }
    let with_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: this is the handler that was there before, called as the kernel would call it.
    unsafe {
        if with_info {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

/// Blocks every signal in the calling thread.
pub fn block_signals() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Keeps a mapping from children: its faults could not be served there, and would read as zeros.
pub fn alone(start: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: changes what a fork does with a range that was mapped a moment ago.
    match unsafe { libc::madvise(start as *mut libc::c_void, bytes as usize, libc::MADV_DONTFORK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping's memory as words.
pub fn as_words(memory: &MmapRaw) -> &[AtomicU64] {
    let words = memory.len() / size_of::<AtomicU64>();
    // SAFETY: the memory is mapped for reading and writing as long as `memory` lives, page-aligned, and every access
    // through the slice is atomic. What an absent page holds is what comes for it.
    unsafe { std::slice::from_raw_parts(memory.as_mut_ptr().cast(), words) }
}
