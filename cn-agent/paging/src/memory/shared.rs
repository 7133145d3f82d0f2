//! Memory that processes share: one memory file, mapped by each process and, without userfaultfd, by the agent.
//!
//! A page is present if the file contains it. The agent does not touch its mapping where the file has a hole:
//! that would fill the hole with zeros. Pages are removed by punching holes, for all processes at once. The
//! agent reads present pages through its mapping; a copy is consistent, because the page is write-protected
//! in every other mapping.
//!
//! **Prepared pages.** Allocating a page and adding it to the file is most of the cost of `UFFDIO_COPY` (2.3 us of a
//! fault, 6 us for an occasional page). For a page that a thread waits for, this is done while the page is in flight:
//! the agent's mapping gets the page, arriving data is copied there, and `UFFDIO_CONTINUE` (0.9 us with the copy)
//! maps it in the process. Until then the file has a page that must not be seen: no process has it in its page table,
//! a touch waits (a *minor* fault), and [`is_present`](Memory::is_present) returns false. If the data does not
//! arrive, the page is punched out again.

#![expect(unsafe_code, reason = "pages of a mapped file are allocated and copied by address")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{Ordering, fence};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

use super::{Mappings, PAGE};
use crate::agent_file::{NotAgentFile, Purpose};
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, ViewId};

/// Maximum number of prepared pages.
const READY_MAX: usize = 4;

/// Pages in a memory file that all processes of a space map.
#[derive(Debug)]
pub struct SharedPages {
    /// Mappings of the file in the processes.
    pub mappings: Mappings,
    file: File,
    alias: MmapRaw,
    /// Prepared pages: the file contains these pages in advance, but they do not count as present until they are
    /// installed.
    ready: Vec<PreparedPage>,
    /// Whether pages are prepared; false if this kernel lacks an operation that the preparation needs.
    makes_ready: bool,
}

/// A page of the file that is allocated and not yet mapped in a process.
#[derive(Clone, Copy, Debug)]
struct PreparedPage {
    page: u32,
    /// Whether the page holds the content to be installed.
    filled: bool,
}

impl SharedPages {
    /// Creates a memory file of `pages` pages, all absent.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(pages: u32) -> io::Result<SharedPages> {
        Self::over(Purpose::Region.create(u64::from(pages) * PAGE)?, pages)
    }

    /// Opens the memory file of a dead agent.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidData`] if no agent created this file for this purpose, or its size
    /// differs.
    pub fn adopt(fd: OwnedFd, pages: u32) -> io::Result<SharedPages> {
        let file = File::from(fd);
        match Purpose::Region.check(&file) {
            Ok(bytes) if bytes == u64::from(pages) * PAGE => {}
            Err(NotAgentFile::Io(error)) => return Err(error),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Self::over(file, pages)
    }

    fn over(file: File, pages: u32) -> io::Result<SharedPages> {
        let alias = MmapOptions::new().len((pages as usize * PAGE_BYTES).max(1)).map_raw(&file)?;
        // With huge pages, preparing one page would add its neighbours to the file too.
        let makes_ready = match alias.advise(Advice::NoHugePage) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => false,
            // A kernel without huge pages refuses this advice, which does not matter.
            _ => true,
        };
        let ready = Vec::with_capacity(READY_MAX);
        Ok(SharedPages { mappings: Mappings::default(), file, alias, ready, makes_ready })
    }

    /// Descriptor of the file, for members to map.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Inode of the file, which identifies it among existing files.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    fn has(&self, page: u32) -> bool {
        let at = (u64::from(page) * PAGE) as i64;
        // `SEEK_DATA` finds pages in swap as well.
        lseek(&self.file, at, Whence::SeekData) == Ok(at)
    }

    fn punch(&self, pages: &Range<u32>) -> Result<(), Errno> {
        let (at, length) = (u64::from(pages.start) * PAGE, u64::from(pages.end - pages.start) * PAGE);
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(self.file.as_fd(), how, at as i64, length as i64)
    }

    #[inline]
    fn ready(&self, page: u32) -> Option<usize> {
        self.ready.iter().position(|ready| ready.page == page)
    }

    /// Removes a prepared page. If that fails the page stays on the list, so that it does not count as present.
    #[cold]
    fn withdraw(&mut self, at: usize) {
        let page = self.ready[at].page;
        match self.punch(&(page..page + 1)) {
            Ok(()) => drop(self.ready.swap_remove(at)),
            Err(errno) => tracing::error!(%errno, page, "prepared memory could not be freed"),
        }
    }

    /// Maps a prepared and filled page into a process.
    #[inline]
    fn install_ready(&mut self, mapping: MappingId, at: usize, protect: bool) -> Result<(), MemoryError> {
        let page = self.ready[at].page;
        match self.mappings.of(mapping).and_then(|mapped| mapped.map(page, protect)) {
            Ok(()) => {
                self.ready.swap_remove(at);
                Ok(())
            }
            Err(error) => {
                // A kernel before Linux 6.4 cannot map the page write-protected; then no further pages are prepared.
                self.makes_ready &= !matches!(error, MemoryError::Os(_));
                self.withdraw(at);
                Err(error)
            }
        }
    }
}

impl Memory for SharedPages {
    #[inline]
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError> {
        match self.ready(page) {
            Some(at) if self.ready[at].filled => return self.install_ready(mapping, at, protect),
            Some(at) => self.withdraw(at),
            None => {}
        }
        self.mappings.of(mapping)?.install(page, bytes, protect)
    }

    #[inline]
    fn install_run(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &[Page],
        protect: bool,
    ) -> Result<usize, MemoryError> {
        self.mappings.of(mapping)?.install_run(page, bytes, protect)
    }

    #[inline]
    fn makes_ready(&self) -> bool {
        self.makes_ready
    }

    #[inline]
    fn make_ready(&mut self, _view: ViewId, page: u32) {
        let at = page as usize * PAGE_BYTES;
        let room = self.ready.len() < READY_MAX && at + PAGE_BYTES <= self.alias.len();
        if !room || !self.makes_ready || self.ready(page).is_some() {
            return;
        }
        // The page is allocated by a system call, which fails if memory is short; a write to the mapping would raise
        // SIGBUS instead.
        // SAFETY: the range lies in the agent's mapping; allocating memory for it does not change its content.
        let taken = unsafe {
            let start = self.alias.as_mut_ptr().add(at).cast();
            libc::madvise(start, PAGE_BYTES, libc::MADV_POPULATE_WRITE)
        };
        if taken == 0 {
            self.ready.push(PreparedPage { page, filled: false });
        } else if Errno::last() == Errno::EINVAL {
            // The kernel is older than Linux 5.14 and lacks this advice; no further pages are prepared.
            self.makes_ready = false;
        }
    }

    #[inline]
    fn fill(&mut self, _view: ViewId, page: u32, bytes: &Page) {
        let Some(at) = self.ready(page) else { return };
        // SAFETY: `make_ready` has checked that the page lies in the agent's mapping, and the size of the file is
        // sealed. No process has the page in its page table; a process that has opened the file by other means sees
        // plain bytes.
        unsafe {
            let to = self.alias.as_mut_ptr().add(page as usize * PAGE_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE_BYTES);
        }
        self.ready[at].filled = true;
        // The content must be stored before the page becomes visible.
        fence(Ordering::Release);
    }

    #[inline]
    fn give_up(&mut self, _view: ViewId, page: u32) {
        if let Some(at) = self.ready(page) {
            self.withdraw(at);
        }
    }

    #[inline]
    fn map(&mut self, mapping: MappingId, page: u32, protect: bool) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.map(page, protect)
    }

    #[inline]
    fn protect(&mut self, mapping: MappingId, pages: Range<u32>) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.protect(&pages)
    }

    #[inline]
    fn unprotect(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mappings.of(mapping)?.unprotect(page)
    }

    #[inline]
    fn snapshot(&mut self, _view: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        if !self.has(page) {
            return Err(MemoryError::Absent);
        }
        let at = page as usize * PAGE_BYTES;
        if at + PAGE_BYTES > self.alias.len() {
            return Err(MemoryError::Absent);
        }
        // SAFETY: the page lies in the agent's mapping, whose size is sealed. It is protected in every
        // member's mapping, so only a process that has opened the file by other means may write to it
        // meanwhile; such a copy may be torn, but any bytes are valid.
        unsafe { std::ptr::copy_nonoverlapping(self.alias.as_ptr().add(at), into.as_mut_ptr(), PAGE_BYTES) };
        Ok(())
    }

    fn drop_pages(&mut self, _view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        for (index, range) in ranges.iter().enumerate() {
            if let Err(errno) = self.punch(range) {
                if index == 0 {
                    return Err(MemoryError::Os(errno as i32));
                }
                // Ignored: if a page is still present, the pager notices that at the page's next fault.
                tracing::error!(%errno, fd = self.file.as_raw_fd(), "pages could not be unmapped");
            }
        }
        Ok(Drop::Done)
    }

    fn is_present(&mut self, _view: ViewId, page: u32) -> bool {
        self.ready(page).is_none() && self.has(page)
    }

    #[inline]
    fn wake(&mut self, mapping: MappingId, page: u32) {
        if let Some(mapped) = self.mappings.get(mapping) {
            mapped.wake(page);
        }
    }

    fn poison(&mut self, mapping: MappingId, page: u32) -> Result<(), MemoryError> {
        self.mappings.get_mut(mapping).ok_or(MemoryError::Gone)?.poison(page)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range of pages is meant")]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::super::Mapped;
    use super::*;
    use crate::uffd::{Features, Uffd};

    const ONLY: (MappingId, ViewId) = (MappingId(0), ViewId(0));

    /// A mapping of eight pages whose faults are not served, and its memory.
    fn mapped() -> (MmapRaw, SharedPages) {
        let mut memory = SharedPages::create(8).unwrap();
        let raw = MmapOptions::new().len(8 * PAGE_BYTES).map_raw(&memory.file).unwrap();
        let uffd = Uffd::create().or_else(|_| Uffd::create_user_only()).unwrap();
        let (features, modes) = super::super::required_features(cxloe_cn_core::mapped::MappingKind::Shared);
        uffd.handshake(features | Features::SIGBUS).unwrap();
        let start = raw.as_ptr() as u64;
        // SAFETY: the memory was mapped a moment ago.
        unsafe { uffd.register(start..start + 8 * PAGE, modes) }.unwrap();
        memory.mappings.add(ONLY.0, Mapped::new(uffd, start, 0, 8, 0, None));
        (raw, memory)
    }

    /// Number of bytes of a page that a system call can read; negative if the page is absent and its fault would have
    /// to be served.
    fn look(raw: &MmapRaw, page: usize, into: &std::fs::File) -> isize {
        // SAFETY: the kernel reads the memory, and fails for absent pages.
        unsafe { libc::pwrite(into.as_raw_fd(), raw.as_ptr().add(page * PAGE_BYTES).cast(), PAGE_BYTES, 0) }
    }

    #[test]
    fn a_page_that_an_outsider_made_gets_the_content() {
        let (raw, mut memory) = mapped();
        let (mapping, view) = ONLY;
        let copied = std::fs::File::from(memfd_create(c"copied", MFdFlags::MFD_CLOEXEC).unwrap());
        let outsider = MmapOptions::new().len(8 * PAGE_BYTES).map_raw(&memory.file).unwrap();
        // SAFETY: the mapping has eight pages, and any bytes are valid.
        let seen = || unsafe { outsider.as_ptr().add(3 * PAGE_BYTES).read_volatile() };
        assert_eq!((seen(), memory.is_present(view, 3)), (0, true), "the kernel made a page of zeros");
        assert_eq!(memory.install(mapping, 3, &[7; PAGE_BYTES], true), Err(MemoryError::Exists));
        memory.make_ready(view, 3);
        assert!(!memory.is_present(view, 3));
        assert_eq!(look(&raw, 3, &copied), -1, "a member waits");
        memory.fill(view, 3, &[7; PAGE_BYTES]);
        assert_eq!(memory.install(mapping, 3, &[7; PAGE_BYTES], true), Ok(()));
        assert_eq!((look(&raw, 3, &copied), seen()), (PAGE_BYTES as isize, 7));
    }

    #[test]
    fn what_is_made_ready_is_no_page_before_it_is_installed() {
        let (raw, mut memory) = mapped();
        let (mapping, view) = ONLY;
        let copied = std::fs::File::from(memfd_create(c"copied", MFdFlags::MFD_CLOEXEC).unwrap());
        let pages = [[1; PAGE_BYTES], [2; PAGE_BYTES]];
        memory.make_ready(view, 3);
        assert!(memory.has(3) && !memory.is_present(view, 3), "the file has it, and nobody may know");
        assert_eq!(look(&raw, 3, &copied), -1, "who touches it waits");
        memory.fill(view, 3, &pages[0]);
        assert!(!memory.is_present(view, 3));
        assert_eq!(look(&raw, 3, &copied), -1);
        assert_eq!(memory.install(mapping, 3, &pages[0], true), Ok(()));
        assert!(memory.is_present(view, 3) && memory.ready.is_empty());
        let mut page = [0; PAGE_BYTES];
        assert_eq!((memory.snapshot(view, 3, &mut page), page), (Ok(()), pages[0]));
        assert_eq!(look(&raw, 3, &copied), PAGE_BYTES as isize);
        // The page is installed write-protected, so the kernel cannot write to it in a system call either.
        // SAFETY: the kernel writes to memory of this test, or fails.
        let write =
            || unsafe { libc::pread(copied.as_raw_fd(), raw.as_mut_ptr().add(3 * PAGE_BYTES).cast(), 1, 0) };
        assert_eq!(write(), -1);
        assert_eq!(memory.unprotect(mapping, 3), Ok(()));
        assert_eq!(write(), 1);
        // Prepares pages up to the limit: the data of page 4 does not arrive, and page 5 is installed without having
        // been filled.
        for page in [4, 5, 6, 7, 0] {
            memory.make_ready(view, page);
        }
        assert_eq!(memory.ready.len(), READY_MAX);
        assert!(!memory.has(0), "no more than so many");
        memory.give_up(view, 4);
        assert!(!memory.has(4));
        assert_eq!(memory.install(mapping, 5, &pages[1], false), Ok(()));
        assert_eq!((memory.snapshot(view, 5, &mut page), page), (Ok(()), pages[1]));
        // The page was filled and then removed through the file: it is absent, and can be installed again.
        memory.fill(view, 6, &pages[1]);
        memory.punch(&(6..7)).unwrap();
        assert_eq!(memory.install(mapping, 6, &pages[1], true), Err(MemoryError::Absent));
        assert_eq!(memory.install(mapping, 6, &pages[1], true), Ok(()));
        // A page is installed writable at once; installing it again fails.
        memory.fill(view, 7, &pages[0]);
        assert_eq!(memory.install(mapping, 7, &pages[0], false), Ok(()));
        assert_eq!(memory.install(mapping, 7, &pages[0], false), Err(MemoryError::Exists));
        assert!(memory.ready.is_empty());
        // Installing a page for a mapping that does not exist fails, and removes the prepared page.
        memory.make_ready(view, 1);
        memory.fill(view, 1, &pages[0]);
        assert_eq!(memory.install(MappingId(1), 1, &pages[0], true), Err(MemoryError::Gone));
        assert!(!memory.has(1), "nobody finds it later");
    }

    #[test]
    fn a_hole_is_no_page_and_is_not_filled_by_looking() {
        let mut memory = SharedPages::create(8).unwrap();
        let (view, mut page) = (ViewId(0), [1; PAGE_BYTES]);
        let file = memory.file.try_clone().unwrap();
        assert_eq!(memory.snapshot(view, 3, &mut page), Err(MemoryError::Absent));
        std::os::unix::fs::FileExt::write_at(&file, &[7; PAGE_BYTES], 3 * PAGE).unwrap();
        assert!(memory.is_present(view, 3) && !memory.is_present(view, 2) && !memory.is_present(view, 4));
        assert_eq!((memory.snapshot(view, 3, &mut page), page[4095]), (Ok(()), 7));
        assert_eq!(memory.drop_pages(view, &[2..4]), Ok(Drop::Done));
        assert!(!memory.is_present(view, 3));
        assert_eq!(memory.snapshot(view, 8, &mut page), Err(MemoryError::Absent));
        let adopted = SharedPages::adopt(OwnedFd::from(file.try_clone().unwrap()), 8).unwrap();
        assert!(!adopted.has(3));
        assert!(SharedPages::adopt(OwnedFd::from(file), 9).is_err());
    }
}
