//! What a pool lies in: a range of memory and, behind some, a file.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::PoolError;

/// Memory for a pool, given back when this is dropped.
///
/// # Safety
/// [`base`](Self::base) is the first of [`len`](Self::len) bytes that can be read and written by every thread until this is
/// dropped, aligned to 4 KiB, and always the same. No Rust reference to them exists, and nobody else uses them.
pub unsafe trait Backing: Debug + Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// Bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the first `len` bytes to the file, if there is one.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self, len: usize) -> io::Result<()>;

    /// Reserves room on disk for `len` bytes at `offset`, where that is possible.
    ///
    /// # Errors
    /// [`PoolError::Disk`] when there is none left; [`PoolError::Io`] with what else the system says.
    fn reserve(&self, offset: u64, len: u64) -> Result<(), PoolError>;

    /// Has `len` bytes at `offset` read as zeros, their room on disk reserved; `false` where they have to be written.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    fn zero(&self, offset: u64, len: u64) -> Result<bool, PoolError>;

    /// The descriptor of memory that a successor can take over.
    fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
