//! Memory that processes share: one file in memory, mapped by each of them and, unregistered and for reading only, by the
//! agent.
//!
//! A page is there if the file has it; where the file has a hole, nobody touches the agent's mapping, which would fill
//! it with zeros. Taking pages away punches holes, for all processes at once. The agent's mapping reads what is there,
//! and the copy is the page because it is write-protected in every other mapping.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};

use super::{Mappings, PAGE};
use crate::shared_state::is_agents;
use cxloe_cn_core::pager::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, ViewId};

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// The memory.
#[derive(Debug)]
pub struct Shared {
    /// Who has it mapped.
    pub mappings: Mappings,
    file: File,
    alias: MmapRaw,
}

impl Shared {
    /// New memory of so many pages, none of them there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(pages: u32) -> io::Result<Shared> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"cxloe-region", flags)?);
        file.set_len(u64::from(pages) * PAGE)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Self::over(file, pages)
    }

    /// The memory of a predecessor.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidData`] if it is not that.
    pub fn adopt(fd: OwnedFd, pages: u32) -> io::Result<Shared> {
        let file = File::from(fd);
        let sealed = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        let metadata = file.metadata()?;
        let ours = is_agents(metadata.uid());
        if !ours || !sealed.contains(SEALS) || metadata.len() != u64::from(pages) * PAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::over(file, pages)
    }

    fn over(file: File, pages: u32) -> io::Result<Shared> {
        let alias = MmapOptions::new().len((pages as usize * PAGE_BYTES).max(1)).map_raw_read_only(&file)?;
        Ok(Shared { mappings: Mappings::default(), file, alias })
    }

    /// The file, for members to map.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What tells its file from all others that are there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    fn has(&self, page: u32) -> bool {
        let at = (u64::from(page) * PAGE) as i64;
        // What is swapped out counts, too.
        lseek(&self.file, at, Whence::SeekData) == Ok(at)
    }
}

impl Memory for Shared {
    #[inline]
    fn install(
        &mut self,
        mapping: MappingId,
        page: u32,
        bytes: &Page,
        protect: bool,
    ) -> Result<(), MemoryError> {
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
        // SAFETY: the page lies in the agent's mapping, whose size is sealed. It is protected in every other, so nobody
        // writes to it meanwhile but who has opened the file otherwise, whose bytes may be torn; bytes are bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.alias.as_ptr().add(at), into.as_mut_ptr(), PAGE_BYTES) };
        Ok(())
    }

    fn drop_pages(&mut self, _view: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        for (index, range) in ranges.iter().enumerate() {
            let (at, length) = (u64::from(range.start) * PAGE, u64::from(range.end - range.start) * PAGE);
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            if let Err(errno) = fallocate(self.file.as_fd(), how, at as i64, length as i64) {
                if index == 0 {
                    return Err(MemoryError::Os(errno as i32));
                }
                // What is left in place is found there when somebody touches it.
                tracing::error!(%errno, fd = self.file.as_raw_fd(), "pages could not be taken away");
            }
        }
        Ok(Drop::Done)
    }

    fn is_present(&mut self, _view: ViewId, page: u32) -> bool {
        self.has(page)
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
    use super::*;

    #[test]
    fn a_hole_is_no_page_and_is_not_filled_by_looking() {
        let mut memory = Shared::create(8).unwrap();
        let (view, mut page) = (ViewId(0), [1; PAGE_BYTES]);
        let file = memory.file.try_clone().unwrap();
        assert_eq!(memory.snapshot(view, 3, &mut page), Err(MemoryError::Absent));
        std::os::unix::fs::FileExt::write_at(&file, &[7; PAGE_BYTES], 3 * PAGE).unwrap();
        assert!(memory.is_present(view, 3) && !memory.is_present(view, 2) && !memory.is_present(view, 4));
        assert_eq!((memory.snapshot(view, 3, &mut page), page[4095]), (Ok(()), 7));
        assert_eq!(memory.drop_pages(view, &[2..4]), Ok(Drop::Done));
        assert!(!memory.is_present(view, 3));
        assert_eq!(memory.snapshot(view, 8, &mut page), Err(MemoryError::Absent));
        let adopted = Shared::adopt(OwnedFd::from(file.try_clone().unwrap()), 8).unwrap();
        assert!(!adopted.has(3));
        assert!(Shared::adopt(OwnedFd::from(file), 9).is_err());
    }
}
