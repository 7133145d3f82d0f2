//! Memory of a pool as one contiguous range of this process's addresses; only this module requests memory for the pool
//! from the kernel. It handles pages; lines and extents are in `pool::lines`.

#![expect(unsafe_code, reason = "the pool's memory is mapped, and passed to the kernel by address")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use cxloe_mn_core::pool::HEAD_ALIGN;

/// Bytes populated at a time, so that threads share the work and progress is visible.
const PREFAULT_PIECE: usize = 64 << 20;
const PREFAULT_THREADS_MAX: usize = 8;

/// A mapping of `len` bytes, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses, valid in every thread until it is dropped; safe code gets only the raw
// base address.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; all methods but `drop` only pass the range to the kernel or access it atomically.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file or device, shared, aligned so that transparent huge pages fit.
    pub fn shared(file: &File, len: usize) -> io::Result<Mapping> {
        let mapping = Self::aligned(len, libc::MAP_SHARED, file.as_raw_fd())?;
        mapping.advise_huge();
        Ok(mapping)
    }

    /// Copies the bytes at `offset`. Other processes that change them meanwhile must be kept out by a lock.
    ///
    /// # Panics
    /// If the bytes do not lie in the mapping.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "outside of the mapping");
        // SAFETY: the source is mapped, as just checked; the destination is borrowed from the caller.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Maps the first `len` bytes of memory in huge pages, shared; `len` is a multiple of their size.
    pub fn huge(file: &File, len: usize) -> io::Result<Mapping> {
        Self::map(ptr::null_mut(), len, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(at: *mut libc::c_void, len: usize, flags: i32, fd: i32) -> io::Result<Mapping> {
        // SAFETY: requests a new mapping; if `at` is not null, `aligned` has just reserved the range.
        let base = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps at an address that is a multiple of 2 MiB: reserves more than needed and maps into the middle.
    fn aligned(len: usize, flags: i32, fd: i32) -> io::Result<Mapping> {
        let align = HEAD_ALIGN as usize;
        let reserved = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: requests a new range of addresses without access, in which nothing exists.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = start.addr().next_multiple_of(align) - start.addr();
        let mapping = Self::map(start.wrapping_byte_add(before), len, flags | libc::MAP_FIXED, fd);
        let unmap = |offset: usize, bytes: usize| {
            if bytes > 0 {
                // SAFETY: this part of the reservation is returned; nothing was ever mapped there.
                unsafe { libc::munmap(start.wrapping_byte_add(offset), bytes) };
            }
        };
        match &mapping {
            Ok(_) => {
                let end = (before + len).next_multiple_of(page_bytes());
                unmap(0, before);
                unmap(end, reserved - end);
            }
            Err(_) => unmap(0, reserved),
        }
        mapping
    }

    /// Address of the first byte; valid for [`len`](Self::len) bytes until the mapping is dropped.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn advise_huge(&self) {
        // SAFETY: advice about a range of this process; it changes no content. It fails harmlessly if huge pages are
        // off.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Makes pages that are not present yet come from one NUMA node (number below 1024, checked by the caller).
    pub fn bind(&self, node: u32) -> io::Result<()> {
        let mut mask = [0u64; 16];
        mask[node as usize / 64] = 1 << (node % 64);
        // SAFETY: the range belongs to this mapping; the mask outlives the call and has as many bits as stated.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::MPOL_BIND,
                mask.as_ptr(),
                mask.len() * 64 + 1,
                0,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Locks all pages into memory until the mapping is dropped.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range belongs to this mapping; locking changes no content.
        let done = unsafe { libc::mlock(self.base.as_ptr().cast(), self.len) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes `len` bytes from `offset` (a multiple of the page size) back to the file and waits for them.
    pub fn sync(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the part lies in this mapping, as just checked.
        let done = unsafe { libc::msync(self.base.as_ptr().add(offset).cast(), len, libc::MS_SYNC) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Populates all pages, writable, with several threads; content stays as it is. `progress` gets the bytes done and
    /// the total, from any of the threads.
    pub fn prefault(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> io::Result<()> {
        let pieces = self.len.div_ceil(PREFAULT_PIECE);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(PREFAULT_THREADS_MAX);
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> io::Result<()> {
            loop {
                let offset = match next.fetch_add(1, Ordering::Relaxed) {
                    piece if piece < pieces => piece * PREFAULT_PIECE,
                    _ => return Ok(()),
                };
                let bytes = PREFAULT_PIECE.min(self.len - offset);
                self.populate(offset, bytes)?;
                progress((done.fetch_add(bytes, Ordering::Relaxed) + bytes) as u64, self.len as u64);
            }
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads.min(pieces)).map(|_| scope.spawn(work)).collect();
            let own = work();
            helpers
                .into_iter()
                .map(|helper| helper.join().expect("prefault does not panic"))
                .fold(own, Result::and)
        })
    }

    fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.len));
        // SAFETY: the part lies in this mapping, as just checked; populating changes no content.
        let done =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), bytes, libc::MADV_POPULATE_WRITE) };
        if done == 0 {
            self.collapse(offset, bytes);
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Linux before 5.14 does not support this advice: access each page instead.
            error if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (offset..offset + bytes).step_by(page_bytes()) {
                    // SAFETY: `at` lies in this mapping; an atomic OR with 0 changes nothing, even if other code uses
                    // the byte.
                    unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)).fetch_or(0, Ordering::Relaxed) };
                }
                Ok(())
            }
            error => Err(error),
        }
    }
}

impl Mapping {
    /// Requests transparent huge pages for a range of the mapping. Memory behind a descriptor has no other
    /// way to get them if `/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `never`, as on most systems.
    /// Since Linux 6.1; if the kernel refuses, the pages stay as they are.
    fn collapse(&self, offset: usize, bytes: usize) {
        // SAFETY: the caller has checked that the range is our own; its pages keep their content.
        unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), bytes, libc::MADV_COLLAPSE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and nothing uses it afterwards.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Size of an ordinary page in bytes.
fn page_bytes() -> usize {
    // SAFETY: the call returns a constant.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn byte(mapping: &Mapping, at: usize) -> &AtomicU8 {
        assert!(at < mapping.len());
        // SAFETY: `at` is in range, and these tests only access it atomically.
        unsafe { AtomicU8::from_ptr(mapping.base().as_ptr().add(at)) }
    }

    #[test]
    fn prefault_keeps_content_and_reports_progress() {
        let len = PREFAULT_PIECE + (3 << 20);
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        let mapping = Mapping::shared(&file, len).unwrap();
        assert!(mapping.base().as_ptr().addr().is_multiple_of(2 << 20));
        byte(&mapping, len - 1).store(7, Ordering::Relaxed);
        let seen = Mutex::new(Vec::new());
        mapping.prefault(&|done, all| seen.lock().unwrap().push((done, all))).unwrap();
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[1], (len as u64, len as u64));
        assert_eq!(byte(&mapping, len - 1).load(Ordering::Relaxed), 7);
        assert_eq!(byte(&mapping, 0).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn shared_memory_reaches_its_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        let mapping = Mapping::shared(&file, 4 << 20).unwrap();
        byte(&mapping, 4096).store(9, Ordering::Relaxed);
        mapping.sync(0, 4 << 20).unwrap();
        let mut content = Vec::new();
        io::Read::read_to_end(&mut file, &mut content).unwrap();
        assert_eq!((content.len(), content[4096]), (4 << 20, 9));
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Mapping::shared(&file, usize::MAX - (1 << 20)).is_err());
        assert!(Mapping::shared(&file, 1 << 60).is_err());
    }
}
