//! Makes a userfaultfd for this process, by any permitted way. The agent sets features and ranges later.

#![expect(unsafe_code, reason = "the C library has no function for userfaultfd")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `USERFAULTFD_IOC_NEW` of `linux/userfaultfd.h`.
const NEW: libc::Ioctl = 0xAA00;
/// `UFFD_USER_MODE_ONLY` of `linux/userfaultfd.h`.
const USER_MODE_ONLY: i32 = 1;

/// Makes a userfaultfd for all faults on this process's memory, those inside the kernel included: by the system call,
/// or else by `device`, an open `/dev/userfaultfd`.
///
/// # Errors
/// The system call's error: EPERM if neither is permitted.
pub fn create(device: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the call takes flags by value and touches no memory.
    let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
    if fd < 0
        && let Some(device) = device
    {
        // SAFETY: the request takes flags by value and touches no memory.
        fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags) };
    }
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a userfaultfd for faults of user mode alone, which needs no right (Linux 5.11): a system call whose buffer has
/// absent or write-protected pages fails with EFAULT.
///
/// # Errors
/// Errors of the system call.
pub fn create_user_only() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: the call takes flags by value and touches no memory.
    match unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}
