//! Server of the administration socket. The node binds the socket before it opens its pool, so that the
//! second of two nodes with one socket does not start. One thread serves the connections one after the other,
//! each for a limited time.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_daemon::{Bound, SocketError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::NodeStatus;

/// Maximum time for which the server waits for a client that does not read the answer; other clients wait meanwhile.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed accept, which most likely lacked descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the node's socket at `path`, with access for the node's user only.
pub fn bind(path: &Path) -> Result<Bound, SocketError> {
    Bound::bind(path, 0o600, "memory node")
}

/// A running server; dropping it stops the server and removes the socket.
#[derive(Debug)]
pub struct Server {
    /// Socket whose closing makes the thread stop; the thread has the other end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a thread that answers each client of `socket` with the result of `status`.
    ///
    /// # Errors
    /// [`SocketError::Io`] if the thread cannot be started.
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
            // A panic of the thread is in the log already.
            let _ = thread.join();
        }
    }
}

/// Answers clients until the other end of `stopped` is closed.
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
                if let Err(error) = send_status(&mut stream, &status()) {
                    tracing::debug!(%error, "the client did not wait for the answer");
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

fn send_status(stream: &mut UnixStream, status: &NodeStatus) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    stream.write_all(&serde_json::to_vec(status)?)
}
