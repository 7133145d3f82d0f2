//! Words of memory in which two processes have rings, as a trait: a model checker runs the code of the rings over words
//! of its own, with every order of the two ends' accesses (`tests/ring_model.rs`).

use std::sync::atomic::Ordering;

use super::memory::SharedMemory;

/// Words that the other end can write at any time: they are copied, and only the copy is checked and used.
pub trait RingMemory {
    /// Copies the `N` words from index `first` on, one after the other: the other end may write between two copies.
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N];

    /// Like [`copy_out`](Self::copy_out), with acquire ordering: if a copied word was stored with release ordering, all
    /// earlier stores of the other end are visible afterwards.
    fn acquire<const N: usize>(&self, first: usize) -> [u64; N];

    /// Stores `value` in the word `index`, where the other end can read it, with the memory ordering `order`.
    fn store(&self, index: usize, value: u64, order: Ordering);

    /// Clears `bits` in the word `index`; returns their former values.
    fn clear_bits(&self, index: usize, bits: u64) -> u64;

    /// Executes a full fence, to order an earlier store of this end before a later load of a word that the other end
    /// stores.
    fn fence(&self);
}

impl RingMemory for SharedMemory {
    #[inline]
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N] {
        self.untrusted(first).copy_out()
    }

    #[inline]
    fn acquire<const N: usize>(&self, first: usize) -> [u64; N] {
        self.untrusted(first).acquire()
    }

    #[inline]
    fn store(&self, index: usize, value: u64, order: Ordering) {
        SharedMemory::store(self, index, value, order);
    }

    #[inline]
    fn clear_bits(&self, index: usize, bits: u64) -> u64 {
        SharedMemory::clear_bits(self, index, bits)
    }

    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
