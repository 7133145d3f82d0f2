//! The kernel's side: structures and request numbers of `linux/userfaultfd.h` as of Linux 6.8, and the one place that
//! makes the ioctl.

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{_IO, _IOR, _IOWR, Ioctl, c_int};
use nix::errno::Errno;

/// The version of the interface, and the type of its ioctls.
pub const API_VERSION: u64 = 0xAA;
const TYPE: u32 = 0xAA;

/// `userfaultfd(2)`: only faults of user mode.
pub const USER_MODE_ONLY: c_int = 1;

/// `UFFDIO_API`.
#[repr(C)]
#[derive(Debug)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

/// `struct uffdio_range`, first in most of the others.
#[repr(C)]
#[derive(Debug)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// `UFFDIO_REGISTER`.
#[repr(C)]
#[derive(Debug)]
pub struct Register {
    pub range: Span,
    pub mode: u64,
    pub ioctls: u64,
}

/// `UFFDIO_COPY`.
#[repr(C)]
#[derive(Debug)]
pub struct Copy {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes copied, or a negative error.
    pub copied: i64,
}

/// `UFFDIO_ZEROPAGE`, `UFFDIO_CONTINUE` and `UFFDIO_POISON`, which are of one shape.
#[repr(C)]
#[derive(Debug)]
pub struct Fill {
    pub range: Span,
    pub mode: u64,
    /// Bytes done, or a negative error.
    pub filled: i64,
}

/// `UFFDIO_WRITEPROTECT`.
#[repr(C)]
#[derive(Debug)]
pub struct WriteProtect {
    pub range: Span,
    pub mode: u64,
}

/// `UFFDIO_MOVE`.
#[repr(C)]
#[derive(Debug)]
pub struct Move {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes moved, or a negative error.
    pub moved: i64,
}

/// `struct uffd_msg`: what a read brings. Packed there, and of eight-byte fields on eight-byte places here.
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

/// Of COPY and CONTINUE.
pub const MODE_PROTECT: u64 = 1 << 1;
/// Of WRITEPROTECT: set protection; without it, take it away.
pub const PROTECT_SET: u64 = 1 << 0;
/// Of WRITEPROTECT.
pub const PROTECT_DONTWAKE: u64 = 1 << 1;

/// On `/dev/userfaultfd`.
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

/// Makes one ioctl.
///
/// # Safety
/// `request` takes a `T`, and what it does to the memory that `argument` names is something that the caller may do.
#[inline]
pub unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: Ioctl, argument: &mut T) -> Result<c_int, Errno> {
    // SAFETY: the argument is a live value of the type that the request reads and writes; the caller ensures that the
    // request does to memory what it may.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the kernel's own headers on x86-64 and Arm.
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
