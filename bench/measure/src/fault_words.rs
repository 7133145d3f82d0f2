//! Access to mapped memory word by word. The content is checked at each access, so that a wrong page is not
//! counted as a fast one.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use cxloe_wire::frame::{LINE_SIZE, PAGE_LINES};

use super::MeasureError;

pub const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u64>();
const LINE_WORDS: usize = LINE_SIZE / size_of::<u64>();
pub const PAGE_BYTES: usize = PAGE_LINES * LINE_SIZE;

/// Returns the first word of page `page` after the lines of [`marks`] are written.
#[inline]
pub fn mark(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the first line of each of `pages` pages of a region that begins at `hpa`: the page's mark, then
/// zeros.
pub fn marks(hpa: u64, pages: usize) -> impl Iterator<Item = (u64, [u8; LINE_SIZE])> {
    (0..pages).map(move |page| {
        let mut line = [0; LINE_SIZE];
        line[..8].copy_from_slice(&mark(page).to_ne_bytes());
        (hpa + (page * PAGE_BYTES) as u64, line)
    })
}

/// Words of mapped memory, which other threads and processes may change at any time.
#[derive(Clone, Copy)]
pub struct Words<'m>(pub &'m [AtomicU64]);

impl Words<'_> {
    /// Returns the number of whole pages in the mapping.
    pub fn pages(self) -> usize {
        self.0.len() / PAGE_WORDS
    }

    /// Reads the first word of a page, which faults if the page is absent.
    #[inline]
    pub fn touch(self, page: usize) -> u64 {
        self.0[page * PAGE_WORDS].load(Ordering::Relaxed)
    }

    /// Checks the first word of a page, as [`touch`](Self::touch) returned it, against the page's mark.
    #[inline]
    pub fn check(self, page: usize, word: u64) -> Result<(), MeasureError> {
        if word == mark(page) { Ok(()) } else { Err(MeasureError::WrongPage { page, found: word }) }
    }

    /// Reads every word of the first `pages` pages in order, and checks the first word of each.
    pub fn read_through(self, pages: usize) -> Result<(), MeasureError> {
        for (page, words) in self.0.chunks_exact(PAGE_WORDS).take(pages).enumerate() {
            self.check(page, words[0].load(Ordering::Relaxed))?;
            black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Ordering::Relaxed))));
        }
        Ok(())
    }

    /// Writes `value` to the last word of each of the last `lines` lines of a page, which leaves the page's
    /// mark intact; with 0 lines, only reads the page.
    #[inline]
    pub fn write(self, page: usize, lines: usize, value: u64) {
        if lines == 0 {
            black_box(self.touch(page));
        }
        let words = &self.0[page * PAGE_WORDS..][..PAGE_WORDS];
        words.rchunks_exact(LINE_WORDS).take(lines).for_each(|line| {
            line[LINE_WORDS - 1].store(value, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(pages: usize) -> Vec<AtomicU64> {
        let words: Vec<AtomicU64> = (0..pages * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        for (hpa, line) in marks(1 << 20, pages) {
            let at = (hpa - (1 << 20)) as usize / 8;
            words[at].store(u64::from_ne_bytes(line[..8].try_into().unwrap()), Ordering::Relaxed);
        }
        words
    }

    #[test]
    fn a_marked_region_passes_and_a_wrong_page_does_not() {
        let memory = marked(4);
        let words = Words(&memory);
        assert_eq!(words.pages(), 4);
        (0..4).for_each(|page| words.check(page, words.touch(page)).unwrap());
        words.read_through(4).unwrap();
        assert!(matches!(words.check(2, words.touch(1)), Err(MeasureError::WrongPage { page: 2, .. })));
        assert!(words.check(0, 0).is_err(), "zeros are not the page");
        memory[PAGE_WORDS + 9].store(1, Ordering::Relaxed);
        words.read_through(4).unwrap();
        memory[3 * PAGE_WORDS].store(1, Ordering::Relaxed);
        words.read_through(3).unwrap();
        assert!(matches!(words.read_through(4), Err(MeasureError::WrongPage { page: 3, found: 1 })));
    }

    #[test]
    fn writes_dirty_as_many_lines_as_they_are_told() {
        for lines in [0, 1, 3, PAGE_LINES] {
            let memory = marked(2);
            Words(&memory).write(1, lines, 7);
            let dirty = memory
                .chunks(LINE_WORDS)
                .filter(|line| line.iter().any(|word| word.load(Ordering::Relaxed) == 7));
            assert_eq!(dirty.count(), lines);
            assert!(memory[..PAGE_WORDS].iter().skip(1).all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
