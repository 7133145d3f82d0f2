//! Memory of this process, which serves its own faults. It is private and anonymous: no file is needed, and
//! installing a page takes half the time.
//!
//! A page is present if the kernel can read it. The agent must not touch a page to find out: the program may
//! just have discarded it with `madvise(2)`, and a touch would be a fault of the serving thread itself. So
//! pages are copied by `pwrite(2)` to a memory file of one page: that call fails for absent pages. Pages are
//! removed by `MADV_DONTNEED`, many ranges in one call where the kernel supports that (Linux 6.14): then the
//! TLBs are flushed once, not for each range.

#![expect(unsafe_code, reason = "pages are copied and dropped by address")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Mapped, PAGE};
use crate::uffd::pagemap;
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, PageRecords, ViewId};

/// Pages in private anonymous memory of this process.
#[derive(Debug)]
pub struct AnonymousPages {
    mapped: Mapped,
    /// Memory file of one page, to which the kernel copies a page of the region; `copied` maps the file for reading.
    file: File,
    copied: MmapRaw,
    /// `/proc/self/pagemap`; `None` if it cannot be read, or does not show write protection.
    table: Option<File>,
    /// Descriptor of this process, for removing many ranges by one call; `None` if that is not supported.
    own: Option<OwnedFd>,
}

/// Maximum number of ranges removed by one call.
const RANGES: usize = 32;

impl AnonymousPages {
    /// Wraps `mapped`, private anonymous memory of this process that is registered with a userfaultfd.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(mapped: Mapped) -> io::Result<AnonymousPages> {
        let file = File::from(memfd_create(c"cxloe-copied", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(PAGE)?;
        let copied = MmapOptions::new().len(PAGE_BYTES).populate().map_raw_read_only(&file)?;
        // SAFETY: only integers are passed; the kernel creates a descriptor, or refuses.
        let own = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
        // SAFETY: the kernel has just made this descriptor; nothing else owns it.
        let own = (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) });
        let table = File::open("/proc/self/pagemap").ok().filter(|_| pagemap::shows_protection());
        Ok(AnonymousPages { mapped, file, copied, table, own })
    }

    /// Removes ranges by as few calls as possible. Returns `false` if some pages may still be present; the caller may
    /// then remove all ranges again, because no page is installed in between.
    fn drop_at_once(&mut self, ranges: &[Range<u32>]) -> bool {
        for some in ranges.chunks(RANGES) {
            let Some(own) = self.own.as_ref().filter(|_| some.len() > 1) else { return false };
            let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RANGES];
            let mut bytes = 0;
            for (part, range) in parts.iter_mut().zip(some) {
                let Some(range) = self.mapped.range(range) else { return false };
                let length = (range.end - range.start) as usize;
                *part = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: length };
                bytes += length;
            }
            // SAFETY: the ranges lie in the registered memory, where the discarded pages are fetched again when they
            // are touched; the array holds that many entries.
            let done = unsafe {
                let (own, parts) = (own.as_raw_fd(), parts.as_ptr());
                libc::syscall(libc::SYS_process_madvise, own, parts, some.len(), libc::MADV_DONTNEED, 0)
            };
            if done < 0 {
                self.own = None;
            }
            if done < 0 || done as usize != bytes {
                return false;
            }
        }
        true
    }

    /// Makes the kernel copy the first `bytes` bytes of `page` to the file; returns the number of bytes
    /// copied.
    fn copy(&self, page: u32, bytes: usize) -> Result<usize, MemoryError> {
        let address = self.mapped.one(page)?.start;
        // SAFETY: the kernel reads the memory, and fails for absent pages; it writes only to the file.
        let copied = unsafe { libc::pwrite(self.file.as_raw_fd(), address as *const libc::c_void, bytes, 0) };
        match Errno::result(copied) {
            Ok(copied) => Ok(copied as usize),
            Err(Errno::EFAULT) => Err(MemoryError::Absent),
            Err(errno) => Err(MemoryError::Os(errno as i32)),
        }
    }
}

impl Memory for AnonymousPages {
    #[inline]
    fn install(&mut self, _: MappingId, page: u32, bytes: &Page, protect: bool) -> Result<(), MemoryError> {
        self.mapped.install(page, bytes, protect)
    }

    #[inline]
    fn install_run(
        &mut self,
        _: MappingId,
        page: u32,
        bytes: &[Page],
        protect: bool,
    ) -> Result<usize, MemoryError> {
        self.mapped.install_run(page, bytes, protect)
    }

    fn map(&mut self, _: MappingId, _: u32, _: bool) -> Result<(), MemoryError> {
        // There is only one mapping, so a page that exists is mapped already.
        Err(MemoryError::Exists)
    }

    #[inline]
    fn protect(&mut self, _: MappingId, pages: Range<u32>) -> Result<(), MemoryError> {
        self.mapped.protect(&pages)
    }

    #[inline]
    fn unprotect(&mut self, _: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mapped.unprotect(page)
    }

    #[inline]
    fn snapshot(&mut self, _: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        if self.copy(page, PAGE_BYTES)? < PAGE_BYTES {
            return Err(MemoryError::Absent);
        }
        // SAFETY: the mapping is as long as a page, and only this method writes to the file.
        unsafe { std::ptr::copy_nonoverlapping(self.copied.as_ptr(), into.as_mut_ptr(), PAGE_BYTES) };
        Ok(())
    }

    fn drop_pages(&mut self, _: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        if self.drop_at_once(ranges) {
            return Ok(Drop::Done);
        }
        for (index, range) in ranges.iter().enumerate() {
            let range = self.mapped.range(range).ok_or(MemoryError::Gone)?;
            let (start, length) = (range.start as *mut libc::c_void, (range.end - range.start) as usize);
            // SAFETY: the range lies in the registered memory, where the discarded pages are fetched again when they
            // are touched.
            if unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) } != 0 {
                let errno = Errno::last();
                if index == 0 {
                    return Err(MemoryError::Os(errno as i32));
                }
                // Ignored: if a page is still present, the pager notices that at the page's next fault.
                tracing::error!(%errno, "pages could not be unmapped");
            }
        }
        Ok(Drop::Done)
    }

    fn is_present(&mut self, _: ViewId, page: u32) -> bool {
        self.copy(page, 1) == Ok(1)
    }

    fn shows_protection(&self) -> bool {
        self.table.is_some()
    }

    fn records(&mut self, _: ViewId, first: u32) -> PageRecords {
        let address = self.mapped.address + u64::from(first) * PAGE;
        let entries = self.table.as_ref().and_then(|table| pagemap::read(table, address).ok());
        entries.map_or(PageRecords::UNKNOWN, |entries| pagemap::records(&entries))
    }

    #[inline]
    fn wake(&mut self, _: MappingId, page: u32) {
        self.mapped.wake(page);
    }

    fn poison(&mut self, _: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mapped.poison(page)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range of pages is meant")]
mod tests {
    use super::*;
    use crate::uffd::{Features, Modes, Uffd};

    const ONLY: (MappingId, ViewId) = (MappingId(0), ViewId(0));

    /// Maps eight pages whose faults are not served: the access to an absent page raises SIGBUS.
    fn memory() -> (MmapRaw, AnonymousPages) {
        let memory = MmapRaw::from(MmapOptions::new().len(8 * PAGE_BYTES).map_anon().unwrap());
        let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).unwrap();
        uffd.handshake(Features::SIGBUS | Features::WRITE_PROTECT).unwrap();
        let start = memory.as_ptr() as u64;
        // SAFETY: the memory was mapped a moment ago and is otherwise unused.
        unsafe { uffd.register(start..start + 8 * PAGE, Modes::MISSING | Modes::WRITE_PROTECT) }.unwrap();
        (memory, AnonymousPages::new(Mapped::new(uffd, start, 0, 8, 0, None)).unwrap())
    }

    fn byte(memory: &MmapRaw, at: usize) -> u8 {
        // SAFETY: the address lies within the mapping, and the caller passes that of a present page.
        unsafe { memory.as_ptr().add(at).read_volatile() }
    }

    #[test]
    fn a_page_shows_that_nothing_has_written_to_it() {
        let (raw, mut memory) = memory();
        let (mapping, view) = ONLY;
        if !memory.shows_protection() {
            return;
        }
        let pages = [[1; PAGE_BYTES]; 3];
        assert_eq!(memory.install_run(mapping, 2, &pages, true), Ok(3));
        assert_eq!(memory.install(mapping, 6, &pages[0], false), Ok(()));
        // SAFETY: the memory was registered and has no other user.
        let dropped = unsafe {
            libc::madvise(raw.as_mut_ptr().add(3 * PAGE_BYTES).cast(), PAGE_BYTES, libc::MADV_DONTNEED)
        };
        assert_eq!(dropped, 0);
        let eight = |records: PageRecords| (records.present & 0xFF, records.protected & 0xFF);
        assert_eq!(eight(memory.records(view, 0)), (0b0101_0100, 0b0001_0100));
        assert_eq!(memory.unprotect(mapping, 4), Ok(()));
        assert_eq!(eight(memory.records(view, 0)), (0b0101_0100, 0b0000_0100));
        memory.table = None;
        assert!(!memory.shows_protection() && memory.records(view, 0) == PageRecords::UNKNOWN);
    }

    #[test]
    fn pages_come_in_runs_are_copied_and_go() {
        let (raw, mut memory) = memory();
        let (mapping, view) = ONLY;
        let pages = [[1; PAGE_BYTES], [2; PAGE_BYTES], [3; PAGE_BYTES]];
        assert_eq!(memory.install_run(mapping, 2, &pages, true), Ok(3));
        assert_eq!(memory.install_run(mapping, 4, &pages, true), Err(MemoryError::Exists));
        assert_eq!((byte(&raw, 2 * PAGE_BYTES), byte(&raw, 5 * PAGE_BYTES - 1)), (1, 3));
        let mut page = [0; PAGE_BYTES];
        assert_eq!(memory.snapshot(view, 3, &mut page), Ok(()));
        assert_eq!(page, pages[1]);
        assert_eq!(memory.drop_pages(view, &[2..4]), Ok(Drop::Done));
        let there: Vec<bool> = (0..8).map(|page| memory.is_present(view, page)).collect();
        assert_eq!(there, [false, false, false, false, true, false, false, false]);
        assert_eq!(memory.snapshot(view, 3, &mut page), Err(MemoryError::Absent));
        assert_eq!(page, pages[1], "what is not there is not looked at");
        assert_eq!(memory.snapshot(view, 8, &mut page), Err(MemoryError::Gone));
        // The ranges are removed by one call and, as on older kernels, by one call for each range.
        for at_once in [true, false] {
            for page in [0, 2, 5, 7] {
                assert_eq!(memory.install(mapping, page, &pages[1], false), Ok(()));
            }
            if !at_once {
                memory.own = None;
            }
            let dropped = memory.drop_at_once(&[6..8, 0..1, 5..6]);
            assert!(at_once || !dropped);
            assert_eq!(memory.drop_pages(view, &[6..8, 0..1, 5..6]), Ok(Drop::Done));
            let there: Vec<u32> = (0..8).filter(|page| memory.is_present(view, *page)).collect();
            assert_eq!(there, [2, 4]);
            assert_eq!(memory.drop_pages(view, &[2..3]), Ok(Drop::Done));
        }
    }
}
