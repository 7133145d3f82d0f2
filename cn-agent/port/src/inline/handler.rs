//! Which mapping an address belongs to, for the handler of SIGBUS.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use memmap2::MmapRaw;

use super::InlineError;
use super::core::Core;
use super::counter::End;
use cxloe_sigbus::Fault;

/// Mappings with inline faults of one process.
const HANDLER_SLOTS: usize = 16;

/// A mapping as the handler finds it.
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
    core: AtomicPtr<Core>,
    /// Handlers at work for it.
    inside: AtomicUsize,
}

static ENTRIES: [Entry; HANDLER_SLOTS] = [const {
    Entry {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        core: AtomicPtr::new(std::ptr::null_mut()),
        inside: AtomicUsize::new(0),
    }
}; HANDLER_SLOTS];

/// Held while entries change; never by the handler.
static CHANGING: Mutex<()> = Mutex::new(());

/// A mapping's place in the handler's table.
#[derive(Debug)]
pub struct HandlerSlot {
    at: usize,
    /// The process that has it; a child does not.
    process: u32,
    core: Option<Arc<Core>>,
}

impl HandlerSlot {
    /// Has faults in `range` served by `core`.
    pub fn take(range: Range<u64>, core: &Arc<Core>) -> Result<HandlerSlot, InlineError> {
        if !cxloe_sigbus::HAS_STACKS {
            return Err(InlineError::Architecture(std::env::consts::ARCH));
        }
        cxloe_sigbus::install(serve).map_err(super::system("handle SIGBUS"))?;
        let _changing = CHANGING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if cxloe_sigbus::is_child() {
            // What stands here is of the parent's mappings, which are not in this process.
            for entry in &ENTRIES {
                entry.core.store(std::ptr::null_mut(), Ordering::SeqCst);
                entry.inside.store(0, Ordering::SeqCst);
            }
        }
        cxloe_sigbus::adopt();
        let free = ENTRIES.iter().position(|entry| entry.core.load(Ordering::Relaxed).is_null());
        let at = free.ok_or(InlineError::Full(HANDLER_SLOTS))?;
        ENTRIES[at].start.store(range.start, Ordering::Relaxed);
        ENTRIES[at].end.store(range.end, Ordering::Relaxed);
        ENTRIES[at].core.store(Arc::as_ptr(core).cast_mut(), Ordering::Release);
        Ok(HandlerSlot { at, process: std::process::id(), core: Some(Arc::clone(core)) })
    }

    /// Whether this process has it, and was not merely forked from the one that has.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Gives the place up, and waits for handlers that are at work for it.
    pub fn leave(&mut self) {
        if self.core.is_none() || !self.is_ours() {
            // What a child lets go of is the parent's: its link is not to be closed with words of farewell.
            std::mem::forget(self.core.take());
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

impl Drop for HandlerSlot {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Serves a fault of the calling thread, if it is one of a mapping's; whether the access can be made again.
#[inline]
pub fn serve(fault: &Fault) -> bool {
    let &Fault { address, write, code } = fault;
    if code != libc::BUS_ADRERR || cxloe_sigbus::is_child() {
        return false;
    }
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
            served = unsafe { &*core }.serve(((address - start) / cxloe_paging::uffd::PAGE) as u32, write)
                == End::Served;
        }
        entry.inside.fetch_sub(1, Ordering::SeqCst);
        return served;
    }
    false
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
