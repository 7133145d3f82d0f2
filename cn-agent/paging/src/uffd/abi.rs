//! The kernel's interface: structures and request numbers of `linux/userfaultfd.h` as of Linux 6.8, and the only call
//! of `ioctl(2)`.

#![expect(unsafe_code, reason = "ioctls of userfaultfd take raw pointers")]

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{_IO, _IOR, _IOWR, Ioctl, c_int};
use nix::errno::Errno;

/// Version of the interface, for `UFFDIO_API`; the type byte of its ioctls has the same value.
pub const API_VERSION: u64 = 0xAA;
const TYPE: u32 = 0xAA;

/// Flag of `userfaultfd(2)`: only faults of user mode are reported.
pub const USER_MODE_ONLY: c_int = 1;

/// Argument of `UFFDIO_API`.
#[repr(C)]
#[derive(Debug)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

/// `struct uffdio_range`, the first field of most other structures.
#[repr(C)]
#[derive(Debug)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// Argument of `UFFDIO_REGISTER`.
#[repr(C)]
#[derive(Debug)]
pub struct Register {
    pub range: Span,
    pub mode: u64,
    pub ioctls: u64,
}

/// Argument of `UFFDIO_COPY`.
#[repr(C)]
#[derive(Debug)]
pub struct Copy {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Set by the kernel: number of bytes copied, or a negative error.
    pub copied: i64,
}

/// Argument of `UFFDIO_ZEROPAGE`, `UFFDIO_CONTINUE` and `UFFDIO_POISON`, whose structures have the same layout.
#[repr(C)]
#[derive(Debug)]
pub struct Fill {
    pub range: Span,
    pub mode: u64,
    /// Set by the kernel: number of bytes filled, or a negative error.
    pub filled: i64,
}

/// Argument of `UFFDIO_WRITEPROTECT`.
#[repr(C)]
#[derive(Debug)]
pub struct WriteProtect {
    pub range: Span,
    pub mode: u64,
}

/// Argument of `UFFDIO_MOVE`.
#[repr(C)]
#[derive(Debug)]
pub struct Move {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Set by the kernel: number of bytes moved, or a negative error.
    pub moved: i64,
}

/// `struct uffd_msg`, the unit of a read. The kernel's structure is packed; in this one the eight-byte fields are
/// aligned, and the layout is the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    pub arguments: [u64; 3],
}

pub const EVENT_FAULT: u8 = 0x12;
pub const EVENT_FORK: u8 = 0x13;
pub const EVENT_REMAP: u8 = 0x14;
pub const EVENT_REMOVE: u8 = 0x15;
pub const EVENT_UNMAP: u8 = 0x16;

pub const FAULT_WRITE: u64 = 1 << 0;
pub const FAULT_PROTECTED: u64 = 1 << 1;
pub const FAULT_MINOR: u64 = 1 << 2;

/// Mode of COPY and CONTINUE: install the page write-protected.
pub const MODE_PROTECT: u64 = 1 << 1;
/// Mode of WRITEPROTECT: set the protection; without it, remove it.
pub const PROTECT_SET: u64 = 1 << 0;
/// Mode of WRITEPROTECT: do not wake waiting threads.
pub const PROTECT_DONTWAKE: u64 = 1 << 1;

/// Request on `/dev/userfaultfd` for a new userfaultfd.
pub const NEW: Ioctl = _IO(TYPE, 0x00);
pub const API: Ioctl = _IOWR::<Api>(TYPE, 0x3F);
pub const REGISTER: Ioctl = _IOWR::<Register>(TYPE, 0x00);
pub const UNREGISTER: Ioctl = _IOR::<Span>(TYPE, 0x01);
pub const WAKE: Ioctl = _IOR::<Span>(TYPE, 0x02);
pub const COPY: Ioctl = _IOWR::<Copy>(TYPE, 0x03);
pub const ZEROPAGE: Ioctl = _IOWR::<Fill>(TYPE, 0x04);
pub const MOVE: Ioctl = _IOWR::<Move>(TYPE, 0x05);
pub const WRITEPROTECT: Ioctl = _IOWR::<WriteProtect>(TYPE, 0x06);
pub const CONTINUE: Ioctl = _IOWR::<Fill>(TYPE, 0x07);
pub const POISON: Ioctl = _IOWR::<Fill>(TYPE, 0x08);

/// # Safety
/// `request` takes a `T`, and the caller may let the request act on the memory that `argument` names.
#[inline]
pub unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: Ioctl, argument: &mut T) -> Result<c_int, Errno> {
    // SAFETY: the argument is a live value of the type that the request reads and writes; the caller ensures that the
    // request's effect on memory is permitted.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request numbers equal those of the kernel's headers on x86-64 and Arm.
    #[test]
    fn request_numbers_are_the_kernels() {
        assert_eq!(NEW, 0xAA00);
        assert_eq!(API, 0xC018_AA3F);
        assert_eq!(REGISTER, 0xC020_AA00);
        assert_eq!(UNREGISTER, 0x8010_AA01);
        assert_eq!(WAKE, 0x8010_AA02);
        assert_eq!(COPY, 0xC028_AA03);
        assert_eq!(ZEROPAGE, 0xC020_AA04);
        assert_eq!(MOVE, 0xC028_AA05);
        assert_eq!(WRITEPROTECT, 0xC018_AA06);
        assert_eq!(CONTINUE, 0xC020_AA07);
        assert_eq!(POISON, 0xC020_AA08);
        assert_eq!(size_of::<Message>(), 32);
    }
}
