//! Wait of a sleeping client for data of its socket, up to a moment that is shorter away than the socket's time-out.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

/// Sleeps until the socket has data or an error to be read, or `until` has passed; true if it has.
pub fn is_readable(socket: &impl AsFd, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut sockets = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut sockets, Some(left.into()), None) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn data_end_the_wait_and_so_does_the_moment() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let soon = Instant::now() + Duration::from_millis(1);
        assert!(!is_readable(&far, soon).unwrap());
        assert!(Instant::now() >= soon);
        near.write_all(&[1]).unwrap();
        assert!(is_readable(&far, Instant::now()).unwrap(), "it looks once");
    }
}
