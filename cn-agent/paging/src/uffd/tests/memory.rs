//! Memory of a test, accessed by address only: the optimiser must not assume its content, as another thread fills it
//! in.

#![expect(unsafe_code, reason = "the memory is mapped, and accessed by address only")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::uffd::PAGE;

/// Mapped memory of a test, unmapped when dropped.
pub struct Memory {
    start: NonNull<libc::c_void>,
    pages: u64,
}

// SAFETY: any thread may access the mapping; all accesses are volatile and by address.
unsafe impl Send for Memory {}
// SAFETY: any thread may access the mapping; all accesses are volatile and by address.
unsafe impl Sync for Memory {}

const PROTECTION: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

fn bytes(pages: u64) -> NonZeroUsize {
    NonZeroUsize::new((pages * PAGE) as usize).unwrap()
}

impl Memory {
    /// Private anonymous memory, without huge pages.
    pub fn anonymous(pages: u64) -> Memory {
        // SAFETY: the kernel makes a new mapping at an address that it chooses.
        let start = unsafe { mmap_anonymous(None, bytes(pages), PROTECTION, MapFlags::MAP_PRIVATE) }.unwrap();
        // SAFETY: the range is the mapping that was made above.
        unsafe { madvise(start, bytes(pages).get(), MmapAdvise::MADV_NOHUGEPAGE) }.unwrap();
        Memory { start, pages }
    }

    /// A memory file and two mappings of it.
    pub fn shared(pages: u64) -> (Memory, Memory, OwnedFd) {
        let file = memfd_create("uffd-test", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, (pages * PAGE) as i64).unwrap();
        (Memory::map(file.as_fd(), pages), Memory::map(file.as_fd(), pages), file)
    }

    fn map(file: std::os::fd::BorrowedFd<'_>, pages: u64) -> Memory {
        // SAFETY: the kernel makes a new mapping at an address that it chooses.
        let start = unsafe { mmap(None, bytes(pages), PROTECTION, MapFlags::MAP_SHARED, file, 0) }.unwrap();
        Memory { start, pages }
    }

    /// Address of the page with number `page`; the total number of pages may be passed, too, for the end of the
    /// mapping.
    pub fn at(&self, page: u64) -> u64 {
        assert!(page <= self.pages);
        self.start.as_ptr() as u64 + page * PAGE
    }

    pub fn page(&self, page: u64) -> Range<u64> {
        self.at(page)..self.at(page + 1)
    }

    pub fn all(&self) -> Range<u64> {
        self.at(0)..self.at(self.pages)
    }

    /// Reads a byte from the middle of a page, where a fault's exact address differs from that of the page.
    pub fn read(&self, page: u64) -> u8 {
        // SAFETY: `at` has checked that the address lies in the mapping.
        unsafe { ((self.at(page) + PAGE / 2) as *const u8).read_volatile() }
    }

    /// Writes a byte to the middle of a page, where a fault's exact address differs from that of the page.
    pub fn write(&self, page: u64, byte: u8) {
        // SAFETY: `at` has checked that the address lies in the mapping.
        unsafe { ((self.at(page) + PAGE / 2) as *mut u8).write_volatile(byte) }
    }

    pub fn advise(&self, page: u64, pages: u64, advice: MmapAdvise) {
        let start = NonNull::new(self.at(page) as *mut libc::c_void).unwrap();
        // SAFETY: the range lies in the mapping, and no code relies on its content.
        unsafe { madvise(start, bytes(pages).get(), advice) }.unwrap();
    }

    /// Unmaps the last pages, so that `pages` are left.
    pub fn shorten(&mut self, pages: u64) {
        let start = NonNull::new(self.at(pages) as *mut libc::c_void).unwrap();
        // SAFETY: the range is the end of the mapping, which nothing uses from now on.
        unsafe { munmap(start, bytes(self.pages - pages).get()) }.unwrap();
        self.pages = pages;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing else refers to it.
        let _ = unsafe { munmap(self.start, bytes(self.pages).get()) };
    }
}
