//! Tells which kind of file a client has passed, by calls that a client's file system cannot delay.

#![expect(unsafe_code, reason = "getsockopt takes raw pointers")]

use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd};

/// Whether a descriptor is a userfaultfd, judged by the name that the kernel gives it. No file can have that name,
/// because the path of a file begins with `/`.
pub fn is_userfaultfd(descriptor: impl AsFd) -> bool {
    let name = read_link(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

pub fn is_unix_socket(descriptor: impl AsFd) -> bool {
    let (mut domain, mut length) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes a number into a live value of the given length.
    let found = unsafe {
        let socket = descriptor.as_fd().as_raw_fd();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut length)
    };
    found == 0 && domain == libc::AF_UNIX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uffd = crate::uffd::Uffd::create_user_only().unwrap();
        assert!(is_unix_socket(&unix) && !is_unix_socket(&tcp) && !is_unix_socket(&uffd));
        assert!(is_userfaultfd(&uffd) && !is_userfaultfd(&unix));
    }
}
