//! A shared mapping of a file, accessed as 64-bit atomic words: other processes may map the file too, and it may
//! vanish.

#![expect(unsafe_code, reason = "device memory is mapped, and accessed as atomic words")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

use super::bus_error::WatchedRange;
use cxloe_cn_core::engine::MemoryGone;

const WORD: usize = size_of::<u64>();

/// A mapping of a file. Once its memory has vanished, all accesses fail.
#[derive(Debug)]
pub struct Mapping {
    // The first field is dropped first, so the watch ends before the mapping is removed.
    watch: WatchedRange,
    map: MmapRaw,
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`; `bytes` is a multiple of the device's alignment.
    ///
    /// # Errors
    /// The system call's error; [`io::ErrorKind::QuotaExceeded`] if too many ranges are watched.
    pub fn of(file: &File, bytes: usize) -> io::Result<Mapping> {
        let map = MmapOptions::new().len(bytes).map_raw(file)?;
        // SAFETY: a separate mapping of whole pages, unmapped only after `watch` is dropped (by the order of the
        // fields), and accessed only by `words`.
        let watch = unsafe { WatchedRange::range(map.as_mut_ptr(), map.len()) }?;
        Ok(Mapping { watch, map })
    }

    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The words in `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not whole words within the mapping.
    #[inline]
    fn words(&self, offset: u64, bytes: usize) -> &[AtomicU64] {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.map.len() as u64)
                && offset.is_multiple_of(WORD as u64)
                && bytes.is_multiple_of(WORD)
        );
        // SAFETY: the words lie inside the mapping (checked above), which begins at a page boundary, so they are
        // aligned, and which stays mapped while `self` is borrowed: if the device vanishes, other memory replaces it.
        // All accesses of this process are atomic; those of other processes cannot break Rust's rules.
        unsafe {
            let first = self.map.as_ptr().cast::<AtomicU64>().add(offset as usize / WORD);
            std::slice::from_raw_parts(first, bytes / WORD)
        }
    }

    /// Reads `out.len()` bytes from `offset` on; both are multiples of 8.
    ///
    /// # Errors
    /// [`MemoryGone`]; then the content of `out` is undefined.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        let words = self.words(offset, out.len());
        for (bytes, word) in out.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.outcome()
    }

    /// Writes `data` from `offset` on; the offset and the length are multiples of 8.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryGone> {
        let words = self.words(offset, data.len());
        for (bytes, word) in data.as_chunks::<WORD>().0.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.outcome()
    }

    /// Writes zeros to `bytes` bytes from `offset` on; both are multiples of 8.
    pub fn clear(&self, offset: u64, bytes: u64) -> Result<(), MemoryGone> {
        self.words(offset, bytes as usize).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.outcome()
    }

    /// The outcome of all accesses until now: [`MemoryGone`] if some of them may not have reached the file's memory.
    #[inline]
    fn outcome(&self) -> Result<(), MemoryGone> {
        // The fence orders the accesses of this thread before the read of the mark.
        fence(Ordering::SeqCst);
        if self.is_gone() { Err(MemoryGone) } else { Ok(()) }
    }

    #[inline]
    pub fn is_gone(&self) -> bool {
        self.watch.is_gone()
    }

    /// Makes all further accesses fail: none reaches the file once this returns.
    pub fn give_up(&self) {
        self.watch.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn mapped() -> (File, Mapping) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MIB as u64).unwrap();
        let mapping = Mapping::of(&file, MIB).unwrap();
        (file, mapping)
    }

    #[test]
    fn what_is_written_is_in_the_file() {
        use std::os::unix::fs::FileExt;
        let (file, mapping) = mapped();
        mapping.write(4096, &[7; 64]).unwrap();
        let mut found = [0; 64];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, [7; 64]);
        file.write_all_at(&[9; 64], 64).unwrap();
        mapping.read(64, &mut found).unwrap();
        assert_eq!(found, [9; 64]);
        mapping.clear(0, 128).unwrap();
        mapping.read(64, &mut found).unwrap();
        assert_eq!(found, [0; 64]);
        mapping.read(4096, &mut found).unwrap();
        assert_eq!(found, [7; 64], "beyond what was cleared");
    }

    /// Tests with a file that shrinks, which loses its pages as a removed device does.
    #[test]
    fn what_vanishes_fails_and_never_reads_as_zeros() {
        let (file, mapping) = mapped();
        let (other_file, other) = mapped();
        mapping.write(0, &[7; 64]).unwrap();
        other.write(0, &[8; 64]).unwrap();
        file.set_len(0).unwrap();
        let mut line = [0; 64];
        assert_eq!(mapping.read(0, &mut line), Err(MemoryGone));
        assert_eq!(mapping.write(64, &line), Err(MemoryGone));
        file.set_len(MIB as u64).unwrap();
        assert_eq!(mapping.read(0, &mut line), Err(MemoryGone), "gone for good");
        drop(mapping);
        other.read(0, &mut line).unwrap();
        assert_eq!(line, [8; 64], "another is not touched");
        // Clearing detects the loss as well.
        other_file.set_len(0).unwrap();
        assert_eq!(other.clear(0, 4096), Err(MemoryGone));
    }

    /// Tests that all threads see the mark, whichever of them touches the range first.
    #[test]
    fn every_thread_notices() {
        let (file, mapping) = mapped();
        for offset in (0..MIB as u64).step_by(64) {
            mapping.write(offset, &[1; 64]).unwrap();
        }
        std::thread::scope(|scope| {
            for start in 0..3 {
                let mapping = &mapping;
                scope.spawn(move || {
                    let mut line = [0; 64];
                    for offset in (0..MIB as u64).step_by(64).cycle().skip(start * 5000).take(4_000_000) {
                        match mapping.read(offset, &mut line) {
                            Ok(()) => assert_eq!(line, [1; 64]),
                            Err(MemoryGone) => return,
                        }
                    }
                    panic!("never noticed");
                });
            }
            file.set_len(0).unwrap();
        });
    }

    /// Tests more mappings, one after the other, than may exist at a time.
    #[test]
    fn places_are_used_again() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        for _ in 0..4 * super::super::bus_error::RANGES_MAX {
            assert!(!Mapping::of(&file, 4096).unwrap().is_gone());
        }
    }

    #[test]
    #[should_panic]
    fn nothing_beyond_the_end() {
        let (_file, mapping) = mapped();
        let _ = mapping.read(MIB as u64 - 8, &mut [0; 16]);
    }
}
