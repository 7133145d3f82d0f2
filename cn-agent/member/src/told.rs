//! Lines on the standard error of a program that is not ours: from its helper threads, and before it ends. The program
//! does not wait for whoever reads them, and does not end for want of them.

use std::ffi::c_int;

/// How long a reader that is behind is waited for.
const PATIENCE_MS: c_int = 200;
/// Standard error.
pub const STDERR: c_int = 2;

/// Writes a line (its end included) to a descriptor, or leaves it out if nobody takes it in time.
pub fn tell(descriptor: c_int, line: &str) {
    let mut set = [libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 }];
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), 1, PATIENCE_MS) };
    if ready == 1 && set[0].revents & libc::POLLOUT != 0 {
        // SAFETY: the kernel reads a live text. A pipe with room for anything has room for a line.
        unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_is_not_waited_for() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let line = format!("{}\n", "x".repeat(1000));
        // Far more than a socket holds; each line past that costs the patience, so a few of them only.
        writer.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &writer, line.as_bytes()).is_ok() {}
        writer.set_nonblocking(false).unwrap();
        tell(writer.as_raw_fd(), &line);
        let mut room = vec![0; 1 << 20];
        assert!(reader.read(&mut room).unwrap() > 0);
        reader.set_nonblocking(true).unwrap();
        while reader.read(&mut room).is_ok_and(|count| count > 0) {}
        tell(writer.as_raw_fd(), "again\n");
        let count = reader.read(&mut room).unwrap();
        assert_eq!(&room[..count], b"again\n");
        tell(-1, "nowhere\n");
    }
}
