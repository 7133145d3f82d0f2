//! Writes lines to the standard error of a program that loads this library, from helper threads and before
//! the program ends. A slow reader delays the program for a bounded time only, and a closed descriptor does
//! not end the program.

#![expect(unsafe_code, reason = "poll and write take raw pointers")]

use std::ffi::c_int;

/// Longest wait for a reader to make room, in milliseconds.
const WRITE_TIMEOUT_MS: c_int = 200;
pub const STDERR: c_int = 2;

/// Writes a line, including its line feed, to a descriptor; drops the line if the reader makes no room in time.
pub fn write_bounded(descriptor: c_int, line: &str) {
    let mut set = [libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 }];
    // SAFETY: the array has one live entry.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), 1, WRITE_TIMEOUT_MS) };
    if ready == 1 && set[0].revents & libc::POLLOUT != 0 {
        // SAFETY: the kernel reads a live text. A pipe that polls writable has room for a whole line.
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
        // Fills the socket without waiting, so that only the next line, which `write_bounded` drops, takes its time
        // limit.
        writer.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &writer, line.as_bytes()).is_ok() {}
        writer.set_nonblocking(false).unwrap();
        write_bounded(writer.as_raw_fd(), &line);
        let mut room = vec![0; 1 << 20];
        assert!(reader.read(&mut room).unwrap() > 0);
        reader.set_nonblocking(true).unwrap();
        while reader.read(&mut room).is_ok_and(|count| count > 0) {}
        write_bounded(writer.as_raw_fd(), "again\n");
        let count = reader.read(&mut room).unwrap();
        assert_eq!(&room[..count], b"again\n");
        write_bounded(-1, "nowhere\n");
    }
}
