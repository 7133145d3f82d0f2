//! A block device of another machine, mapped as an unmodified program would use it: loads and stores, page faults,
//! msync.

#![expect(unsafe_code, reason = "a mapped file may change behind its mapping")]

use std::fs::{File, OpenOptions};
use std::path::Path;

use memmap2::{Advice, MmapMut, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::error::PeerError;
use super::pattern::{LINE, PAGE};
use super::store::{AccessUnit, Store};

/// Mapping of a file or a block device whose content is on another machine. Pages come when they are touched, and go
/// back by msync.
pub struct Mapped {
    map: MmapMut,
    file: File,
}

impl Mapped {
    /// Maps the first `bytes` bytes of the file at `path`.
    pub fn open(path: &Path, bytes: usize) -> Result<Mapped, PeerError> {
        let failed = || PeerError::io(format!("mapping {}", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed())?;
        // SAFETY: the file belongs to this trial only; no other process writes or truncates it while it is mapped.
        let map = unsafe { memmap2::MmapOptions::new().len(bytes).map_mut(&file) }.map_err(failed())?;
        Ok(Mapped { map, file })
    }

    /// Drops pages from the page cache, after they have been written back.
    fn drop_pages(&mut self, at: usize, bytes: usize) -> Result<(), PeerError> {
        let failed = || PeerError::io("dropping pages of the mapping");
        // SAFETY: in a shared file mapping, written data stay in the page cache or at the server when pages are
        // dropped.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, bytes) }.map_err(failed())?;
        posix_fadvise(&self.file, at as i64, bytes as i64, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|e| failed()(e.into()))
    }

    fn advise(&mut self, advice: Advice) -> Result<(), PeerError> {
        self.map.advise(advice).map_err(PeerError::io("advising the mapping"))
    }
}

impl Store for Mapped {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let at = index * unit.bytes();
        out.copy_from_slice(&self.map[at..at + unit.bytes()]);
        Ok(())
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let at = index * LINE;
        self.map[at..at + LINE].copy_from_slice(line);
        self.map.flush_range(at, LINE).map_err(PeerError::io("msync of the mapping"))
    }

    fn read_lines(&mut self, _indices: &[usize], _out: &mut [u8]) -> Result<Option<()>, PeerError> {
        Ok(None)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        for (index, line) in indices.iter().zip(lines.chunks_exact(LINE)) {
            self.map[index * LINE..(index + 1) * LINE].copy_from_slice(line);
        }
        let Some((first, last)) = indices.iter().min().zip(indices.iter().max()) else { return Ok(()) };
        // Pages between them that are clean cost nothing.
        let (at, bytes) = (first * LINE, (last + 1 - first) * LINE);
        self.map.flush_range(at, bytes).map_err(PeerError::io("msync of the mapping"))
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        self.drop_pages(0, out.len())?;
        self.advise(Advice::Sequential)?;
        out.copy_from_slice(&self.map);
        // Disables read-ahead, so that a random access reads one page.
        self.advise(Advice::Random)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        self.advise(Advice::Sequential)?;
        self.map.copy_from_slice(all);
        self.map.flush().map_err(PeerError::io("msync of the mapping"))
    }

    fn forget(&mut self, unit: AccessUnit, index: usize) -> Result<(), PeerError> {
        let at = index * unit.bytes() / PAGE * PAGE;
        self.drop_pages(at, PAGE)
    }
}
