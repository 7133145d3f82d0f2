//! What is done to ranges and their pages. All addresses are those of the process that the userfaultfd belongs to.
//!
//! Each operation that brings pages in wakes the threads that wait for them. Filling never replaces a page: one that
//! is there stays ([`UffdError::Exists`]), so of two fills of one page the first counts.

use std::ops::Range;
use std::os::fd::AsFd;

use libc::Ioctl;
use nix::errno::Errno;

use super::abi::{self, Span};
use super::{Ioctls, Modes, Uffd, UffdError};

/// What may be done with a page that is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    Writable,
    /// Read; the first write is a fault (write-protect mode), or is marked (asynchronous mode).
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
    /// Has faults in `range` of the kinds `modes` come here. What comes back is what can be done about them there.
    ///
    /// # Errors
    /// `NotMapped` if the range is not mapped, or is memory that cannot have these faults; `Busy` if it is registered
    /// with another userfaultfd; EPERM for a shared file that this process may not write to.
    ///
    /// # Safety
    /// From here on an absent page of the range holds whatever is filled in, and not the zeros that the language and
    /// the allocator promise: nothing but what knows of it may use the range, if it is memory of this process.
    pub unsafe fn register(&self, range: Range<u64>, modes: Modes) -> Result<Ioctls, UffdError> {
        let mut register = abi::Register { range: span(&range), mode: modes.bits(), ioctls: 0 };
        // SAFETY: the request changes who hears of faults, which the caller answers for.
        unsafe { abi::ioctl(self.as_fd(), abi::REGISTER, &mut register) }
            .map_err(|errno| UffdError::new("UFFDIO_REGISTER", errno))?;
        Ok(Ioctls::from_bits_retain(register.ioctls))
    }

    /// Leaves the faults of `range` to the kernel again, and wakes whoever waits there: absent pages are zeros then.
    pub fn unregister(&self, range: Range<u64>) -> Result<(), UffdError> {
        // SAFETY: only registered ranges are touched, whose pages are nobody's business but the registrant's.
        unsafe { self.on_span("UFFDIO_UNREGISTER", abi::UNREGISTER, &range) }
    }

    /// Fills absent pages from `dst` on with `data`, and returns how many bytes were: fewer than `data.len()` if
    /// something stopped it between two pages, which the next call says.
    ///
    /// # Errors
    /// Those of [`UffdError`] but `NoPage` and `Busy`. `data` that is not whole pages is `NotMapped`.
    #[inline]
    pub fn copy(&self, dst: u64, data: &[u8], access: Access) -> Result<usize, UffdError> {
        let (src, len) = (data.as_ptr() as u64, data.len() as u64);
        let mut copy = abi::Copy { dst, src, len, mode: access.mode(), copied: 0 };
        // SAFETY: the source is a live slice of that length; the destination is absent pages of registered ranges,
        // or the kernel refuses.
        let done = unsafe { abi::ioctl(self.as_fd(), abi::COPY, &mut copy) };
        filled("UFFDIO_COPY", done.map(drop), copy.copied, len)
    }

    /// Maps pages that the file has at `range` already, and returns how many bytes.
    ///
    /// # Errors
    /// `NoPage` where the file has none; else as [`copy`](Self::copy). `Access::Protected` needs Linux 6.4.
    #[inline]
    pub fn continue_(&self, range: Range<u64>, access: Access) -> Result<usize, UffdError> {
        match self.fill("UFFDIO_CONTINUE", abi::CONTINUE, &range, access.mode()) {
            Err(UffdError::Os { errno: Errno::EFAULT, .. }) => Err(UffdError::NoPage),
            other => other,
        }
    }

    /// Fills absent pages with zeros, writable, and returns how many bytes were. A page that was absent *and*
    /// protected stays so, and counts as [`Exists`](UffdError::Exists): copy zeros there.
    #[inline]
    pub fn zero(&self, range: Range<u64>) -> Result<usize, UffdError> {
        self.fill("UFFDIO_ZEROPAGE", abi::ZEROPAGE, &range, 0)
    }

    /// Has every touch of these absent pages end in SIGBUS (or, within a system call, EFAULT), now and later, until
    /// they are unmapped or dropped by `madvise(2)`.
    pub fn poison(&self, range: Range<u64>) -> Result<usize, UffdError> {
        self.fill("UFFDIO_POISON", abi::POISON, &range, 0)
    }

    /// Write-protects `range`. Absent pages are passed over unless
    /// [`WRITE_PROTECT_UNPOPULATED`](super::Features::WRITE_PROTECT_UNPOPULATED) was agreed on.
    #[inline]
    pub fn protect(&self, range: Range<u64>) -> Result<(), UffdError> {
        self.write_protect(&range, abi::PROTECT_SET)
    }

    /// Takes the protection from `range`, and with `wake` wakes the threads that wait for it.
    #[inline]
    pub fn unprotect(&self, range: Range<u64>, wake: bool) -> Result<(), UffdError> {
        self.write_protect(&range, if wake { 0 } else { abi::PROTECT_DONTWAKE })
    }

    /// Wakes the threads that wait for pages of `range`; each tries its access again.
    #[inline]
    pub fn wake(&self, range: Range<u64>) -> Result<(), UffdError> {
        // SAFETY: the request touches no memory.
        unsafe { self.on_span("UFFDIO_WAKE", abi::WAKE, &range) }
    }

    /// Moves the pages at `src` to the absent pages at `dst`, `len` bytes, in one step that no thread sees half done:
    /// `src` is absent then. Both are private anonymous memory of the process, `dst` registered. Returns how many
    /// bytes were moved, as [`copy`](Self::copy) does. Protection and marks of writing do not move along.
    ///
    /// # Errors
    /// `Busy` for a page that is pinned for I/O or shared with a forked child; else as [`copy`](Self::copy).
    ///
    /// # Safety
    /// Nothing may rely on what `src` holds, if it is memory of this process that is not registered: it reads as zeros
    /// afterwards.
    pub unsafe fn move_(&self, dst: u64, src: u64, len: u64) -> Result<usize, UffdError> {
        let mut moving = abi::Move { dst, src, len, mode: 0, moved: 0 };
        // SAFETY: the destination is absent pages of registered ranges, or the kernel refuses; the source is the
        // caller's to give.
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
        // SAFETY: every caller names a request of this shape, which fills absent pages of registered ranges alone.
        let done = unsafe { abi::ioctl(self.as_fd(), request, &mut fill) };
        filled(doing, done.map(drop), fill.filled, fill.range.len)
    }

    #[inline]
    fn write_protect(&self, range: &Range<u64>, mode: u64) -> Result<(), UffdError> {
        let mut protect = abi::WriteProtect { range: span(range), mode };
        // SAFETY: the request decides which writes to registered ranges are faults, and changes no byte.
        let done = unsafe { abi::ioctl(self.as_fd(), abi::WRITEPROTECT, &mut protect) };
        done.map(drop).map_err(|errno| UffdError::new("UFFDIO_WRITEPROTECT", errno))
    }

    /// # Safety
    /// That of [`abi::ioctl`], for a request that takes a range.
    #[inline]
    unsafe fn on_span(
        &self,
        doing: &'static str,
        request: Ioctl,
        range: &Range<u64>,
    ) -> Result<(), UffdError> {
        // SAFETY: the request takes a range, and the caller ensures that it does to that range what it may.
        let done = unsafe { abi::ioctl(self.as_fd(), request, &mut span(range)) };
        done.map(drop).map_err(|errno| UffdError::new(doing, errno))
    }
}

/// What a request that may stop half-way has done. It leaves the bytes done, or a negative error, in `bytes`, and says
/// EAGAIN for having stopped as well as for not having begun.
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
    fn a_stop_half_way_is_told_from_not_having_begun() {
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
