//! A block device of another machine, mapped as an unmodified program would use it: loads and stores, page faults,
//! msync.

#![expect(unsafe_code, reason = "a mapped file may change behind its mapping")]

use std::fs::{File, OpenOptions};
use std::path::Path;

use memmap2::{Advice, MmapMut, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::error::PeerError;
use super::pattern::AccessOrder;
use super::store::Store;
use super::unit::{AccessUnit, LINE, PAGE};

/// Bytes that the kernel is asked for in one call: it shortens longer requests to its read-ahead, which is this by
/// default.
const ASKED: usize = 128 << 10;

/// Mapping of a file or a block device whose content is on another machine. Pages come when they are touched, and go
/// back by msync.
pub struct Mapped {
    map: MmapMut,
    file: File,
    depth: usize,
}

impl Mapped {
    /// Maps the first `bytes` bytes of the file at `path`. Reads of many lines ask the kernel for `depth` of them
    /// ahead.
    pub fn open(path: &Path, bytes: usize, depth: usize) -> Result<Mapped, PeerError> {
        let failed = || PeerError::io(format!("mapping {}", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed())?;
        // SAFETY: the file belongs to this trial only; no other process writes or truncates it while it is mapped.
        let map = unsafe { memmap2::MmapOptions::new().len(bytes).map_mut(&file) }.map_err(failed())?;
        Ok(Mapped { map, file, depth })
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

    /// Asks the kernel for pages ahead of the access to them.
    fn ask(&self, at: usize, bytes: usize) -> Result<(), PeerError> {
        for start in (at..at + bytes).step_by(ASKED) {
            let asked = self.map.advise_range(Advice::WillNeed, start, ASKED.min(at + bytes - start));
            asked.map_err(PeerError::io("asking for pages of the mapping"))?;
        }
        Ok(())
    }

    fn advise(&mut self, advice: Advice) -> Result<(), PeerError> {
        self.map.advise(advice).map_err(PeerError::io("advising the mapping"))
    }
}

impl Store for Mapped {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let at = index * unit.bytes();
        if unit == AccessUnit::Stretch {
            self.ask(at, unit.bytes())?;
        }
        out.copy_from_slice(&self.map[at..at + unit.bytes()]);
        Ok(())
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let at = index * LINE;
        self.map[at..at + LINE].copy_from_slice(line);
        self.map.flush_range(at, LINE).map_err(PeerError::io("msync of the mapping"))
    }

    /// A thread that touches pages has one fault at a time, so it asks for those that follow by madvise.
    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError> {
        let (in_flight, mut asked) = (unit.in_flight(self.depth), 0);
        for (done, (index, found)) in indices.iter().zip(out.chunks_exact_mut(unit.bytes())).enumerate() {
            let ahead = indices.len().min(done + in_flight);
            for next in &indices[asked.min(ahead)..ahead] {
                self.ask(next * unit.bytes(), unit.bytes())?;
            }
            asked = ahead;
            self.read(unit, *index, found)?;
        }
        Ok(Some(()))
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

    /// In order, the kernel reads ahead; at random places, an access reads one page.
    fn prepare(&mut self, order: AccessOrder) -> Result<(), PeerError> {
        match order {
            AccessOrder::Random => self.advise(Advice::Random),
            AccessOrder::Sequential => {
                self.drop_pages(0, self.map.len())?;
                self.advise(Advice::Sequential)
            }
        }
    }

    fn forget(&mut self, unit: AccessUnit, index: usize) -> Result<(), PeerError> {
        let at = index * unit.bytes() / PAGE * PAGE;
        self.drop_pages(at, unit.bytes().max(PAGE))
    }
}
