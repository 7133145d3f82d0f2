//! Interface to the memory of a pool, which the I/O code maps: anonymous memory, a file, or a device.

#![expect(unsafe_code, reason = "the data path relies on the address that a backing returns")]

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::PoolError;

/// Memory of a pool, released on drop.
///
/// # Safety
/// [`base`](Self::base) always returns the same address, aligned to 4 KiB: the first of [`len`](Self::len) bytes that
/// every thread can read and write until this value is dropped. No Rust reference to these bytes exists, and no other
/// code uses them.
pub unsafe trait Backing: Debug + Send + Sync {
    /// Address of the first byte, aligned to 4 KiB.
    fn base(&self) -> NonNull<u8>;

    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0. No pool has a length of 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the first `len` bytes to the file; does nothing without a file.
    ///
    /// # Errors
    /// Error of the system call.
    fn sync(&self, len: usize) -> io::Result<()>;

    /// Reserves disk space for `len` bytes at `offset`; does nothing without a file.
    ///
    /// # Errors
    /// [`PoolError::Disk`] if the disk is full; [`PoolError::Io`] for any other error of a system call.
    fn reserve(&self, offset: u64, len: u64) -> Result<(), PoolError>;

    /// Makes `len` bytes at `offset` read as zeros and reserves their disk space; returns `false` if the caller has to
    /// write the zeros.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    fn zero(&self, offset: u64, len: u64) -> Result<bool, PoolError>;

    /// Descriptor by which a successor process can take over the memory; `None` for a file or device.
    fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
