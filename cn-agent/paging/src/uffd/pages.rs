//! Operations on ranges and their pages. All addresses are those of the process to which the userfaultfd belongs.
//!
//! Each operation that installs pages wakes the threads that wait for them. No operation replaces a present page
//! ([`UffdError::Exists`]): of two operations for one page, the first takes effect.

#![expect(unsafe_code, reason = "ioctls of userfaultfd act on memory by address")]

use std::ops::Range;
use std::os::fd::AsFd;

use libc::Ioctl;
use nix::errno::Errno;

use super::abi::{self, Span};
use super::{Ioctls, Modes, Uffd, UffdError};

/// Permitted accesses to an installed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Writable,
    /// Reads are permitted; the first write is a fault (write-protect mode), or is marked (asynchronous mode).
    Protected,
}

impl Access {
    fn mode(self) -> u64 {
        match self {
            Access::Writable => 0,
            Access::Protected => abi::MODE_PROTECT,
        }
    }
}

fn span(range: &Range<u64>) -> Span {
    Span { start: range.start, len: range.end.wrapping_sub(range.start) }
}

impl Uffd {
    /// Registers `range` for the faults in `modes`. Returns the operations available on the range.
    ///
    /// # Errors
    /// `NotMapped` if the range is not mapped, or is memory that cannot have these faults; `Busy` if it is registered
    /// with another userfaultfd; EPERM for a shared file that this process may not write to.
    ///
    /// # Safety
    /// From now on an absent page of the range gets the content that is installed, and not the zeros that the
    /// language and the allocator promise: memory of this process in the range may be used only by code that expects
    /// that.
    pub unsafe fn register(&self, range: Range<u64>, modes: Modes) -> Result<Ioctls, UffdError> {
        let mut register = abi::Register { range: span(&range), mode: modes.bits(), ioctls: 0 };
        // SAFETY: the request changes the handling of faults, which the caller permits.
        unsafe { abi::ioctl(self.as_fd(), abi::REGISTER, &mut register) }
            .map_err(|errno| UffdError::new("UFFDIO_REGISTER", errno))?;
        Ok(Ioctls::from_bits_retain(register.ioctls))
    }

    /// Unregisters `range`, and wakes the threads that wait for its pages: absent pages read as zeros from
    /// now on.
    pub fn unregister(&self, range: Range<u64>) -> Result<(), UffdError> {
        // SAFETY: only ranges registered with this userfaultfd are affected, and the code that uses them does not rely
        // on the content of absent pages.
        unsafe { self.on_span("UFFDIO_UNREGISTER", abi::UNREGISTER, &range) }
    }

    /// Fills absent pages from `dst` on with `data`. Returns the number of bytes filled; it is smaller than
    /// `data.len()` if an error occurred after some of the pages; the next call then returns that error.
    ///
    /// # Errors
    /// Those of [`UffdError`] except `NoPage` and `Busy`. `NotMapped` also if `data` is not whole pages.
    #[inline]
    pub fn copy(&self, dst: u64, data: &[u8], access: Access) -> Result<usize, UffdError> {
        let (src, len) = (data.as_ptr() as u64, data.len() as u64);
        let mut copy = abi::Copy { dst, src, len, mode: access.mode(), copied: 0 };
        // SAFETY: the source is a live slice of that length; the destination is absent pages of registered ranges,
        // or the kernel refuses.
        let done = unsafe { abi::ioctl(self.as_fd(), abi::COPY, &mut copy) };
        filled("UFFDIO_COPY", done.map(drop), copy.copied, len)
    }

    /// Maps pages at `range` that the memory file has already. Returns the number of bytes mapped.
    ///
    /// # Errors
    /// `NoPage` if the file lacks a page; otherwise as [`copy`](Self::copy). `Access::Protected` needs Linux 6.4.
    #[inline]
    pub fn continue_(&self, range: Range<u64>, access: Access) -> Result<usize, UffdError> {
        match self.fill("UFFDIO_CONTINUE", abi::CONTINUE, &range, access.mode()) {
            Err(UffdError::Os { errno: Errno::EFAULT, .. }) => Err(UffdError::NoPage),
            other => other,
        }
    }

    /// Fills absent pages with zeros, writable. Returns the number of bytes filled. A page that was absent *and*
    /// write-protected stays so, and is reported as [`Exists`](UffdError::Exists): use `copy` for zeros there.
    #[inline]
    pub fn zero(&self, range: Range<u64>) -> Result<usize, UffdError> {
        self.fill("UFFDIO_ZEROPAGE", abi::ZEROPAGE, &range, 0)
    }

    /// Makes every access to these absent pages raise SIGBUS (or, in a system call, EFAULT), until they are unmapped
    /// or dropped by `madvise(2)`.
    pub fn poison(&self, range: Range<u64>) -> Result<usize, UffdError> {
        self.fill("UFFDIO_POISON", abi::POISON, &range, 0)
    }

    /// Write-protects `range`. Absent pages are skipped unless
    /// [`WRITE_PROTECT_UNPOPULATED`](super::Features::WRITE_PROTECT_UNPOPULATED) was negotiated.
    #[inline]
    pub fn protect(&self, range: Range<u64>) -> Result<(), UffdError> {
        self.write_protect(&range, abi::PROTECT_SET)
    }

    /// Unprotects `range`; with `wake`, also wakes the threads that wait for it.
    #[inline]
    pub fn unprotect(&self, range: Range<u64>, wake: bool) -> Result<(), UffdError> {
        self.write_protect(&range, if wake { 0 } else { abi::PROTECT_DONTWAKE })
    }

    /// Wakes the threads that wait for pages of `range`; each repeats its access.
    #[inline]
    pub fn wake(&self, range: Range<u64>) -> Result<(), UffdError> {
        // SAFETY: the request touches no memory.
        unsafe { self.on_span("UFFDIO_WAKE", abi::WAKE, &range) }
    }

    /// Moves the `len` bytes of pages at `src` to the absent pages at `dst`, atomically for all threads; then `src`
    /// is absent. Both must be private anonymous memory of the process, and `dst` registered. Returns the number of
    /// bytes moved, as [`copy`](Self::copy) does. Protection and write marks are not moved.
    ///
    /// # Errors
    /// `Busy` for a page that is pinned for I/O or shared with a forked child; otherwise as [`copy`](Self::copy).
    ///
    /// # Safety
    /// If `src` is unregistered memory of this process, no code may rely on its content: it reads as zeros
    /// afterwards.
    pub unsafe fn move_(&self, dst: u64, src: u64, len: u64) -> Result<usize, UffdError> {
        let mut moving = abi::Move { dst, src, len, mode: 0, moved: 0 };
        // SAFETY: the destination is absent pages of registered ranges, or the kernel refuses; the caller permits
        // moving the source.
        let done = unsafe { abi::ioctl(self.as_fd(), abi::MOVE, &mut moving) };
        filled("UFFDIO_MOVE", done.map(drop), moving.moved, len)
    }

    #[inline]
    fn fill(
        &self,
        doing: &'static str,
        request: Ioctl,
        range: &Range<u64>,
        mode: u64,
    ) -> Result<usize, UffdError> {
        let mut fill = abi::Fill { range: span(range), mode, filled: 0 };
        // SAFETY: every caller passes a request that takes this structure and only fills absent pages of registered
        // ranges.
        let done = unsafe { abi::ioctl(self.as_fd(), request, &mut fill) };
        filled(doing, done.map(drop), fill.filled, fill.range.len)
    }

    #[inline]
    fn write_protect(&self, range: &Range<u64>, mode: u64) -> Result<(), UffdError> {
        let mut protect = abi::WriteProtect { range: span(range), mode };
        // SAFETY: the request determines which writes to registered ranges are faults, and changes no byte.
        let done = unsafe { abi::ioctl(self.as_fd(), abi::WRITEPROTECT, &mut protect) };
        done.map(drop).map_err(|errno| UffdError::new("UFFDIO_WRITEPROTECT", errno))
    }

    /// # Safety
    /// That of [`abi::ioctl`], for a `request` that takes a range.
    #[inline]
    unsafe fn on_span(
        &self,
        doing: &'static str,
        request: Ioctl,
        range: &Range<u64>,
    ) -> Result<(), UffdError> {
        // SAFETY: the request takes a range, and the caller ensures that its effect on that range is permitted.
        let done = unsafe { abi::ioctl(self.as_fd(), request, &mut span(range)) };
        done.map(drop).map_err(|errno| UffdError::new(doing, errno))
    }
}

/// Result of a request that may stop half-way. The kernel stores the number of bytes done, or a negative error, in
/// `bytes`; it returns EAGAIN both if the request stopped and if it did not begin.
#[inline]
fn filled(doing: &'static str, done: Result<(), Errno>, bytes: i64, wanted: u64) -> Result<usize, UffdError> {
    match done {
        Ok(()) => Ok(wanted as usize),
        Err(Errno::EAGAIN) if bytes > 0 => Ok(bytes as usize),
        Err(errno) => Err(UffdError::new(doing, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_half_way_differs_from_not_having_begun() {
        assert_eq!(filled("x", Ok(()), 8192, 8192), Ok(8192));
        assert_eq!(filled("x", Err(Errno::EAGAIN), 4096, 8192), Ok(4096));
        assert_eq!(filled("x", Err(Errno::EAGAIN), -11, 8192), Err(UffdError::Again));
        assert_eq!(
            filled("x", Err(Errno::EAGAIN), 0, 8192),
            Err(UffdError::Again),
            "kernels that leave it unset"
        );
        assert_eq!(filled("x", Err(Errno::EEXIST), -17, 8192), Err(UffdError::Exists));
        let other = UffdError::Os { doing: "x", errno: Errno::ENOMEM };
        assert_eq!(filled("x", Err(Errno::ENOMEM), -12, 8192), Err(other));
    }
}
