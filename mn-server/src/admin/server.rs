//! The node's end of the socket: bound before anything else, so that of two nodes with one socket the second does not
//! start; served by one thread, one connection after the other, each within a bounded time.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_daemon::{Bound, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::NodeStatus;

/// How long who asked may take to read the answer.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the node's socket at `path`, for its own user only.
///
/// # Errors
/// Any [`SocketError`].
pub fn bind(path: &Path) -> Result<Bound, SocketError> {
    Bound::bind(path, 0o600, "memory node")
}

/// The running server; ends when dropped, and its socket with it.
#[derive(Debug)]
pub struct Server {
    /// Closing it tells the thread to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts telling whoever connects to `socket` what `status` says.
    ///
    /// # Errors
    /// [`SocketError::Io`] when there is no thread.
    pub fn start(
        socket: Bound,
        status: impl Fn() -> NodeStatus + Send + 'static,
    ) -> Result<Server, SocketError> {
        let failed = || SocketError::io("start the thread that serves", socket.path());
        let (stop, stopped) = UnixStream::pair().map_err(failed())?;
        let failed = failed();
        let thread =
            thread::Builder::new().name("admin".into()).spawn(move || answer(&socket, &stopped, status));
        Ok(Server { stop: Some(stop), thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers until the other end of `stopped` is closed.
fn answer(socket: &Bound, stopped: &UnixStream, status: impl Fn() -> NodeStatus) {
    loop {
        let mut ready = [
            PollFd::new(socket.listener().as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if let Err(error) = poll(&mut ready, PollTimeout::NONE)
            && error != nix::errno::Errno::EINTR
        {
            tracing::error!(%error, "cannot wait for connections; `mn-server sessions` gets no answer from here on");
            return;
        }
        if ready[1].any() == Some(true) {
            return;
        }
        match socket.listener().accept() {
            Ok((mut stream, _)) => {
                if let Err(error) = tell(&mut stream, &status()) {
                    tracing::debug!(%error, "who asked did not wait for the answer");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the node's socket");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn tell(stream: &mut UnixStream, status: &NodeStatus) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    stream.write_all(&serde_json::to_vec(status)?)
}
