//! A fixed number of buffers of one size, allocated once: payloads that wait to be sent again or to come
//! into order.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Index of a buffer in a [`Slab`].
pub(super) type Handle = u32;

/// Handle that names no buffer.
pub(super) const NONE: Handle = u32::MAX;

/// Buffers of one size, with a list of the free ones.
pub(super) struct Slab {
    bytes: Box<[u8]>,
    size: usize,
    free: Vec<Handle>,
    count: usize,
}

impl Slab {
    /// Allocates `count` buffers of `size` bytes each.
    pub fn new(count: usize, size: usize) -> Slab {
        Slab {
            bytes: vec![0; count * size].into_boxed_slice(),
            size,
            free: (0..count as Handle).rev().collect(),
            count,
        }
    }

    /// Copies `data` into a free buffer; `None` if no buffer is free or `data` is longer than one.
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

    /// First `len` bytes of the buffer `handle`.
    #[inline]
    pub fn get(&self, handle: Handle, len: usize) -> &[u8] {
        let at = handle as usize * self.size;
        &self.bytes[at..at + len.min(self.size)]
    }

    /// Frees a buffer; [`NONE`] is allowed.
    #[inline]
    pub fn release(&mut self, handle: Handle) {
        if handle != NONE {
            debug_assert!(self.free.len() < self.count);
            self.free.push(handle);
        }
    }

    /// Number of buffers in use.
    pub fn used(&self) -> usize {
        self.count - self.free.len()
    }
}
