//! Words of memory that another process can write at any time.
//!
//! Such words are copied once into private memory, checked in the copy, and used from the copy. [`Untrusted`] gives no
//! other access, and copying consumes it, so that nothing is read twice.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// `N` words in memory that another process can write at any time. The only access is to copy them, which consumes
/// the value.
#[derive(Debug)]
#[must_use]
pub struct Untrusted<'m, const N: usize>(&'m [AtomicU64; N]);

impl<'m, const N: usize> Untrusted<'m, N> {
    /// Wraps the first `N` of `words`.
    ///
    /// # Panics
    /// If `words` has fewer than `N` elements.
    #[inline]
    pub fn new(words: &'m [AtomicU64]) -> Untrusted<'m, N> {
        Untrusted(words.first_chunk().expect("as many words as the value has"))
    }

    /// Copies the words: each value was stored in that word at some time, but the words may be of different times.
    #[inline]
    pub fn copy_out(self) -> [u64; N] {
        array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }

    /// Copies the words; all stores that preceded a release store of one of them are visible afterwards.
    #[inline]
    pub fn acquire(self) -> [u64; N] {
        let words = self.copy_out();
        fence(Ordering::Acquire);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was() {
        let words = [1, 2, 3].map(AtomicU64::new);
        let copy = Untrusted::<2>::new(&words[1..]).acquire();
        words[1].store(7, Ordering::Relaxed);
        assert_eq!(copy, [2, 3]);
        assert_eq!(Untrusted::<1>::new(&words[1..]).copy_out(), [7]);
    }

    #[test]
    #[should_panic(expected = "as many words")]
    fn words_that_are_not_there_are_not_copied() {
        let _ = Untrusted::<2>::new(&[AtomicU64::new(0)]).copy_out();
    }
}
