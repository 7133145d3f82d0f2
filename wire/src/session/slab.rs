//! A fixed number of buffers of one size, allocated once. They hold payloads that may have to be sent again
//! or that came early.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub(super) type Handle = u32;

/// Handle that stands for no buffer.
pub(super) const NONE: Handle = u32::MAX;

/// Buffers of one size, with a list of the free ones. Nothing is allocated after the start, so memory use is
/// bounded (R10).
pub(super) struct Slab {
    bytes: Box<[u8]>,
    size: usize,
    free: Vec<Handle>,
    count: usize,
}

impl Slab {
    pub fn new(count: usize, size: usize) -> Slab {
        Slab {
            bytes: vec![0; count * size].into_boxed_slice(),
            size,
            free: (0..count as Handle).rev().collect(),
            count,
        }
    }

    /// Copies `data` into a free buffer. Returns `None` if no buffer is free or `data` is longer than a
    /// buffer.
    #[inline]
    pub fn store(&mut self, data: &[u8]) -> Option<Handle> {
        if data.len() > self.size {
            return None;
        }
        let handle = self.free.pop()?;
        let at = handle as usize * self.size;
        self.bytes[at..at + data.len()].copy_from_slice(data);
        Some(handle)
    }

    /// Returns the first `len` bytes of buffer `handle`.
    #[inline]
    pub fn get(&self, handle: Handle, len: usize) -> &[u8] {
        let at = handle as usize * self.size;
        &self.bytes[at..at + len.min(self.size)]
    }

    /// Frees a buffer; does nothing for [`NONE`].
    #[inline]
    pub fn release(&mut self, handle: Handle) {
        if handle != NONE {
            debug_assert!(self.free.len() < self.count);
            self.free.push(handle);
        }
    }

    pub fn used(&self) -> usize {
        self.count - self.free.len()
    }
}
