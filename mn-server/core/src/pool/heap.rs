//! Heap memory for a pool: for simulations and tests, which map no memory.

#![expect(unsafe_code, reason = "the allocator returns the memory as a raw pointer")]

use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;

use super::{Backing, PoolError};

/// Alignment in bytes that [`Backing`] requires.
const ALIGN: usize = 4096;

/// Zeroed heap memory. The allocation has [`ALIGN`] spare bytes and is aligned here, because the allocator
/// uses untouched zero pages of the kernel only if no alignment is required.
#[derive(Debug)]
pub(super) struct HeapMemory {
    start: NonNull<u8>,
    allocation: Allocation,
    len: usize,
}

// SAFETY: the memory belongs to this value alone; `Backing` states how threads use it.
unsafe impl Send for HeapMemory {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Allocates `len` bytes, more than 0.
    pub(super) fn zeroed(len: usize) -> HeapMemory {
        let allocation =
            Allocation::from_size_align(len + ALIGN, 16).expect("a pool is smaller than the address space");
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(allocation) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(allocation));
        HeapMemory { start, allocation, len }
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and is freed only once.
        unsafe { dealloc(self.start.as_ptr(), self.allocation) };
    }
}

// SAFETY: the allocation has room for `len` bytes from its first aligned byte on, lives as long as this value, and no
// other code reaches it.
unsafe impl Backing for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        let address = self.start.as_ptr() as usize;
        // SAFETY: the offset is less than ALIGN bytes, which the allocation has in addition.
        unsafe { self.start.add(address.next_multiple_of(ALIGN) - address) }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn sync(&self, _len: usize) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _offset: u64, _len: u64) -> Result<(), PoolError> {
        Ok(())
    }

    fn zero(&self, _offset: u64, _len: u64) -> Result<bool, PoolError> {
        Ok(false)
    }
}
