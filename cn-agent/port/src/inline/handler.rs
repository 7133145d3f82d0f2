//! Table of mappings by address, for the SIGBUS handler.

#![expect(unsafe_code, reason = "a signal handler reaches the core through a raw pointer")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use memmap2::MmapRaw;

use super::InlineError;
use super::core::Core;
use super::counter::PageRequestResult;
use cxloe_sigbus::Fault;

/// Maximum number of mappings with inline faults in one process.
const HANDLER_SLOTS: usize = 16;

/// A mapping in the table, which the SIGBUS handler finds by the faulting address.
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
    core: AtomicPtr<Core>,
    /// Index of the mapped region in its core.
    space: AtomicU8,
    /// Number of handlers that are using the entry now.
    inside: AtomicUsize,
}

static ENTRIES: [Entry; HANDLER_SLOTS] = [const {
    Entry {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        core: AtomicPtr::new(std::ptr::null_mut()),
        space: AtomicU8::new(0),
        inside: AtomicUsize::new(0),
    }
}; HANDLER_SLOTS];

/// Lock that is held while entries of the table change. The signal handler never takes it.
static CHANGING: Mutex<()> = Mutex::new(());

/// Ownership of an entry in the handler's table.
#[derive(Debug)]
pub struct HandlerSlot {
    at: usize,
    /// Process that made the entry; a forked child does not own it.
    process: u32,
    core: Option<Arc<Core>>,
}

impl HandlerSlot {
    /// Registers the addresses `range` as region `space` of `core`: from then on faults there are served.
    pub fn take(range: Range<u64>, core: &Arc<Core>, space: u8) -> Result<HandlerSlot, InlineError> {
        if !cxloe_sigbus::HAS_STACKS {
            return Err(InlineError::Architecture(std::env::consts::ARCH));
        }
        cxloe_sigbus::install(serve).map_err(super::system("handle SIGBUS"))?;
        let _changing = CHANGING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if cxloe_sigbus::is_child() {
            // In a forked child, clear the parent's entries: their mappings do not exist in this process.
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
        ENTRIES[at].space.store(space, Ordering::Relaxed);
        ENTRIES[at].core.store(Arc::as_ptr(core).cast_mut(), Ordering::Release);
        Ok(HandlerSlot { at, process: std::process::id(), core: Some(Arc::clone(core)) })
    }

    /// Whether this process made the entry, and not its parent before a fork.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Removes the entry, and waits for handlers that use it.
    pub fn leave(&mut self) {
        if self.core.is_none() || !self.is_ours() {
            // A child must not drop the parent's core, which would end the parent's sessions.
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

/// Serves a fault of the calling thread if its address lies in a mapping; returns whether the access can be repeated.
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
        // The handler is counted before it reads the core, so `leave` either waits for this handler or has removed the
        // core already.
        entry.inside.fetch_add(1, Ordering::SeqCst);
        let core = entry.core.load(Ordering::SeqCst);
        let mut served = false;
        if !core.is_null() {
            let page = ((address - start) / cxloe_paging::uffd::PAGE) as u32;
            let space = entry.space.load(Ordering::Relaxed);
            // SAFETY: the core's owner removes it from the entry and waits until `inside` is zero before dropping it.
            served = unsafe { &*core }.serve(space, page, write) == PageRequestResult::Served;
        }
        entry.inside.fetch_sub(1, Ordering::SeqCst);
        return served;
    }
    false
}

/// Excludes a mapping from forked children: their faults could not be served, and absent pages would read as zeros.
pub fn exclude_from_children(start: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: changes only how a fork treats a range that was mapped a moment ago.
    match unsafe { libc::madvise(start as *mut libc::c_void, bytes as usize, libc::MADV_DONTFORK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the memory of a mapping as words.
pub fn as_words(memory: &MmapRaw) -> &[AtomicU64] {
    let words = memory.len() / size_of::<AtomicU64>();
    // SAFETY: the memory is mapped for reading and writing as long as `memory` lives, page-aligned, and every access
    // through the slice is atomic. A touch of an absent page faults and gets the region's content.
    unsafe { std::slice::from_raw_parts(memory.as_mut_ptr().cast(), words) }
}
