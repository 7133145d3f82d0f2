//! System calls on sockets, with pointers and lengths checked in one place.

#![expect(unsafe_code, reason = "system calls on sockets take raw pointers")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Takes ownership of the descriptor that a system call has just returned, or returns the call's error.
pub(crate) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts the return value of a system call to a result.
#[inline]
fn checked(rc: isize) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn set_option<T: Copy>(
    fd: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    checked(rc as isize).map(drop)
}

/// Types that the kernel may write into: any bytes are valid.
///
/// # Safety
/// All bit patterns of the type's size must be valid values.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: all bit patterns of an integer are valid.
unsafe impl Plain for libc::c_int {}
// SAFETY: all bit patterns of an integer are valid.
unsafe impl Plain for u32 {}
// SAFETY: all bit patterns of two integers are valid.
unsafe impl Plain for [u32; 2] {}
// SAFETY: the structure has only integers, for which all bit patterns are valid.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: the structure has only integers, for which all bit patterns are valid.
unsafe impl Plain for libc::xdp_statistics {}

pub(crate) fn get_option<T: Plain>(
    fd: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; both outlive the call.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) };
    // SAFETY: all bytes were set, by zeroing or by the kernel, and any are valid.
    checked(rc as isize).map(|_| unsafe { value.assume_init() })
}

/// Binds a socket to an address structure, which begins with the address family.
pub(crate) fn bind<A: Copy>(socket: &OwnedFd, address: &A) -> io::Result<()> {
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    let rc = unsafe {
        libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), size_of::<A>() as libc::socklen_t)
    };
    checked(rc as isize).map(drop)
}

/// Sends one frame without waiting.
#[inline]
pub(crate) fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and length describe `frame`, which outlives the call.
    let rc =
        unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
    checked(rc).map(drop)
}

/// Maximum number of frames that [`send_many`] sends.
pub(crate) const SEND_MAX: usize = 32;

/// Sends up to [`SEND_MAX`] frames in order by one system call, without waiting. Returns the number sent, at
/// least one.
pub(crate) fn send_many<'a>(socket: &OwnedFd, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    // The array is not initialised as a whole, because that would take most of the time for a few frames.
    let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; SEND_MAX];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SEND_MAX];
    let mut count = 0;
    for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(frames) {
        let part =
            part.write(libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() });
        // SAFETY: msghdr is plain data for which zeros are valid: no address, no control data.
        let message = message.write(unsafe { std::mem::zeroed() });
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        count += 1;
    }
    // SAFETY: the first `count` messages are initialised; each has one part that describes a live frame,
    // which the kernel reads.
    let sent = unsafe {
        let socket = socket.as_raw_fd();
        libc::sendmmsg(socket, messages.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT as _)
    };
    checked(sent as isize).map(|sent| sent.max(1))
}

/// Makes the kernel send the marked frames of a ring that it shares with this process, without waiting.
#[inline]
pub(crate) fn kick(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: the call gets no buffer and no address.
    let rc = unsafe {
        libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    };
    checked(rc).map(drop)
}

/// Sleeps until `fd` is readable or `timeout` has passed.
pub(crate) fn poll_in(fd: &impl AsRawFd, timeout: Duration) -> io::Result<()> {
    poll(fd, libc::POLLIN, timeout)
}

/// Sleeps until one of `events` occurs at `fd` or `timeout` has passed. May return early after a signal.
pub(crate) fn poll(fd: &impl AsRawFd, events: libc::c_short, timeout: Duration) -> io::Result<()> {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let ts = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: one pollfd and one timespec, both of which outlive the call; no signal mask.
    let rc = unsafe { libc::ppoll(&mut p, 1, &ts, std::ptr::null()) };
    if rc >= 0 {
        if p.revents & libc::POLLERR != 0 {
            // Clears the error that is pending on a socket after its interface has gone down. While the error is
            // pending, polls return at once instead of sleeping, even if the interface is up again.
            let _ = get_option::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        }
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        e => Err(e),
    }
}
