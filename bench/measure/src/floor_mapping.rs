//! Memory for the lower limits of faults: a file in memory, mapped shared and registered like a mapped
//! region. Also the signal handler by which the faulting thread serves faults. All unsafe code of these
//! limits is here.

#![expect(unsafe_code, reason = "faults on mapped memory are served, also in a signal handler")]

use std::fs::File;
use std::io;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cxloe_paging::uffd::{Access, EventBuffer, Features, Modes, PAGE, Uffd, UffdError, UffdEvent};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::MeasureError;

pub const PAGE_BYTES: usize = PAGE as usize;
/// Number of local pages from which faults are served in rotation, equal to the fetches that a pager has in
/// flight.
const FRAMES: usize = 16;

#[derive(Clone)]
#[repr(align(4096))]
struct Frame([u8; PAGE_BYTES]);

/// Memory registered with a userfaultfd, which serves its faults from local pages.
pub struct Mapping {
    memory: MmapRaw,
    file: File,
    uffd: Uffd,
    /// Contents for absent pages, each frame filled with a non-zero byte; already in local memory.
    frames: Box<[Frame]>,
}

impl Mapping {
    /// Maps `pages` absent pages. Faults become events of the userfaultfd or, with `sigbus`, signals to the
    /// faulting thread.
    pub fn new(pages: usize, sigbus: bool) -> Result<Mapping, MeasureError> {
        // Without privileges, only a userfaultfd for faults in user space is available; these faults are of
        // that kind.
        let uffd = Uffd::create().or_else(|_| Uffd::create_user_only())?;
        let shared = Features::MISSING_SHMEM | Features::MINOR_SHMEM | Features::WRITE_PROTECT_SHMEM;
        uffd.handshake(if sigbus { shared | Features::SIGBUS } else { shared })?;
        let file = File::from(memfd_create("cxloe-floor", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
        file.set_len((pages * PAGE_BYTES) as u64)?;
        let memory = MmapOptions::new().map_raw(&file)?;
        let frames = (1..=FRAMES as u8).map(|n| Frame([n; PAGE_BYTES])).collect();
        let mapping = Mapping { memory, file, uffd, frames };
        let modes = Modes::MISSING | Modes::MINOR | Modes::WRITE_PROTECT;
        // SAFETY: this value owns the mapping and reads it through pointers only.
        unsafe { mapping.uffd.register(mapping.start()..mapping.end(), modes)? };
        Ok(mapping)
    }

    fn start(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn end(&self) -> u64 {
        self.start() + self.memory.len() as u64
    }

    /// Reads the first word of a page, which faults if the page is absent.
    #[inline]
    pub fn touch(&self, page: usize) -> u64 {
        assert!(page < self.memory.len() / PAGE_BYTES);
        // SAFETY: the address is inside the mapping, whose contents are plain bytes.
        unsafe { self.memory.as_ptr().add(page * PAGE_BYTES).cast::<u64>().read_volatile() }
    }

    /// Makes all pages absent again, by punching a hole into the file.
    pub fn empty(&self) -> Result<(), MeasureError> {
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&self.file, punch, 0, self.memory.len() as i64).map_err(io::Error::from)?;
        Ok(())
    }

    /// Serves a fault as a pager serves a read: copies a page in, write-protected.
    #[inline]
    fn serve(&self, address: u64) -> Result<(), UffdError> {
        let page = address & !(PAGE - 1);
        let frame = &self.frames[(page / PAGE) as usize % FRAMES];
        self.uffd.copy(page, &frame.0, Access::Protected).map(drop)
    }

    /// Unregisters the mapping, so that no thread waits for a server that has ended; absent pages then read
    /// as zeros.
    pub fn abandon(&self) {
        // If it fails, there is no other way to release the waiting thread.
        let _ = self.uffd.unregister(self.start()..self.end());
    }

    /// Serves faults without sleeping until `stop` is set and no fault is left.
    pub fn serve_until(&self, stop: &AtomicBool) -> Result<(), UffdError> {
        let mut buffer = EventBuffer::new();
        loop {
            let mut served = false;
            for event in self.uffd.events(&mut buffer)? {
                if let UffdEvent::Fault { address, .. } = event {
                    self.serve(address)?;
                    served = true;
                }
            }
            if !served && stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
}

/// Mapping whose faults the signal handler serves; null when no handler is installed.
static SERVED: AtomicPtr<Mapping> = AtomicPtr::new(null_mut());

/// Lock of the SIGBUS handler: a process can have only one.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Installed signal handler: while this value exists, the faulting threads serve the faults of its mapping.
pub struct Inline<'m> {
    mapping: &'m Mapping,
    before: SigAction,
    _only: MutexGuard<'static, ()>,
}

impl<'m> Inline<'m> {
    /// Installs the handler; waits while the handler for another mapping is installed.
    pub fn begin(mapping: &'m Mapping) -> Result<Inline<'m>, MeasureError> {
        let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        SERVED.store(from_ref(mapping).cast_mut(), Ordering::Release);
        let action = SigAction::new(SigHandler::SigAction(on_sigbus), SaFlags::SA_SIGINFO, SigSet::empty());
        // SAFETY: the handler is async-signal-safe: it only makes system calls, and restores errno.
        let before = unsafe { sigaction(Signal::SIGBUS, &action) }.map_err(io::Error::from)?;
        Ok(Inline { mapping, before, _only: only })
    }

    /// Reads the first word of a page; if the page is absent, this thread serves the fault.
    #[inline]
    pub fn touch(&self, page: usize) -> u64 {
        self.mapping.touch(page)
    }
}

impl Drop for Inline<'_> {
    fn drop(&mut self) {
        // SAFETY: restores the action that `begin` replaced.
        let _ = unsafe { sigaction(Signal::SIGBUS, &self.before) };
        SERVED.store(null_mut(), Ordering::Release);
    }
}

/// Serves a fault in the faulting thread; a SIGBUS outside of the mapping ends the process, as it would
/// without a handler.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record of this signal; for SIGBUS it contains the address.
    let address = unsafe { (*info).si_addr() } as u64;
    // SAFETY: the pointer is set and cleared by `Inline`, which borrows the mapping.
    let mapping = unsafe { SERVED.load(Ordering::Acquire).as_ref() };
    let served = mapping.filter(|m| (m.start()..m.end()).contains(&address)).is_some_and(|mapping| {
        // The interrupted code may be about to read errno.
        let errno = Errno::last();
        let served = mapping.serve(address);
        errno.set();
        served.is_ok()
    });
    if !served {
        // SAFETY: restores the default action; the faulting access is then repeated and ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn absent_pages_come_from_the_frames_either_way_and_again_once_emptied() {
        let (served, inline) = (Mapping::new(8, false).unwrap(), Mapping::new(8, true).unwrap());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let pager = scope.spawn(|| served.serve_until(&stop));
            let in_place = Inline::begin(&inline).unwrap();
            for _ in 0..2 {
                for page in 0..8 {
                    // All frames are filled with non-zero bytes, so a zero word would mean that the kernel
                    // supplied the page.
                    let (one, other) = (served.touch(page), in_place.touch(page));
                    assert!([one, other].iter().all(|word| (1..=FRAMES as u64).contains(&(word & 0xFF))));
                    assert_eq!(one.rotate_left(8), one, "a frame is of one byte");
                }
                served.empty().unwrap();
                inline.empty().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            pager.join().unwrap().unwrap();
        });
    }

    #[test]
    fn no_thread_waits_for_a_failed_pager() {
        let mapping = Mapping::new(2, false).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| mapping.touch(1));
            assert!(mapping.uffd.wait(std::time::Duration::from_secs(20)).unwrap(), "it waits");
            mapping.abandon();
            assert_eq!(waiting.join().unwrap(), 0);
        });
    }
}
