//! Words of memory in which two processes have rings. A trait, so that a model checker runs the rings' code over words
//! of its own, with every order of the two ends' accesses (`tests/ring_model.rs`).

use std::sync::atomic::Ordering;

use super::memory::SharedMemory;

/// Words that the other end can write at any time: they are copied out, checked in the copy, and used from there.
pub trait RingMemory {
    /// Copies the `N` words from index `first` on, each at a time of its own.
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N];

    /// Like [`copy_out`](Self::copy_out), but all stores before a release store of one of the words are
    /// visible afterwards.
    fn acquire<const N: usize>(&self, first: usize) -> [u64; N];

    /// Stores `value` in the word `index`, where the other end can read it, with the memory ordering `order`.
    fn store(&self, index: usize, value: u64, order: Ordering);

    /// Clears `bits` in the word `index`; returns their former values.
    fn clear_bits(&self, index: usize, bits: u64) -> u64;

    /// A full fence, between a store here and a load of what the other end stores.
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
