//! A file mapped shared, read and written as 64-bit atomic words: others may have it mapped too, and it may vanish.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

use super::bus_error::Watch;
use cxloe_cn_core::engine::MemoryGone;

const WORD: usize = size_of::<u64>();

/// A mapping. What is gone stays gone.
#[derive(Debug)]
pub struct Mapping {
    // Dropped before the mapping is.
    watch: Watch,
    map: MmapRaw,
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`, a multiple of what it is aligned to.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::QuotaExceeded`] if there are too many.
    pub fn of(file: &File, bytes: usize) -> io::Result<Mapping> {
        let map = MmapOptions::new().len(bytes).map_raw(file)?;
        // SAFETY: the mapping is ours and nobody else's, whole pages, unmapped only after `watch` is dropped (the order of
        // the fields), and accessed by nothing but `word`.
        let watch = unsafe { Watch::range(map.as_mut_ptr(), map.len()) }?;
        Ok(Mapping { watch, map })
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The words from the byte `offset` on that `bytes` bytes are.
    ///
    /// # Panics
    /// If they are not whole words within the mapping.
    #[inline]
    fn words(&self, offset: u64, bytes: usize) -> &[AtomicU64] {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.map.len() as u64)
                && offset.is_multiple_of(WORD as u64)
                && bytes.is_multiple_of(WORD)
        );
        // SAFETY: the words lie inside the mapping (checked above), which begins at a page boundary, so that they are
        // aligned, and stays mapped as long as `self` is borrowed: a device that vanishes is replaced by other memory. All
        // accesses of this process are atomic; those of others cannot break Rust's rules.
        unsafe {
            let first = self.map.as_ptr().cast::<AtomicU64>().add(offset as usize / WORD);
            std::slice::from_raw_parts(first, bytes / WORD)
        }
    }

    /// Reads whole words from `offset` on.
    ///
    /// # Errors
    /// [`MemoryGone`]; `out` holds anything then.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        let words = self.words(offset, out.len());
        for (bytes, word) in out.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.outcome()
    }

    /// Writes whole words from `offset` on.
    ///
    /// # Errors
    /// [`MemoryGone`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryGone> {
        let words = self.words(offset, data.len());
        for (bytes, word) in data.as_chunks::<WORD>().0.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.outcome()
    }

    /// Makes zeros of `bytes` bytes from `offset` on, whole words.
    ///
    /// # Errors
    /// [`MemoryGone`].
    pub fn clear(&self, offset: u64, bytes: u64) -> Result<(), MemoryGone> {
        self.words(offset, bytes as usize).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.outcome()
    }

    /// Whether accesses made until now were to the file's memory.
    #[inline]
    fn outcome(&self) -> Result<(), MemoryGone> {
        // The mark is looked at after the accesses, by this thread and all others.
        fence(Ordering::SeqCst);
        if self.is_gone() { Err(MemoryGone) } else { Ok(()) }
    }

    /// Whether it is gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.watch.is_gone()
    }

    /// Has all further accesses fail: none reaches the file once this returns.
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

    /// A file that shrinks takes its pages away as a device does that is unplugged.
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
        // By a write at first, and by clearing.
        other_file.set_len(0).unwrap();
        assert_eq!(other.clear(0, 4096), Err(MemoryGone));
    }

    /// All threads learn of it, whichever touches it first.
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

    /// Many more, one after the other, than there may be at a time.
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
