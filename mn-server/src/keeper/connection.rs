//! A node's connection to its keeper process.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_mn_core::keeping::{Answer, Request};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::message;

/// Connection of a node to its keeper, over a Unix socket.
#[derive(Debug)]
pub struct Connection(UnixStream);

impl Connection {
    /// Connects to the keeper that listens on `path`; `None` if no keeper listens. Refuses a keeper of another user
    /// than root or this process's own.
    pub fn open(path: &Path) -> io::Result<Option<Connection>> {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let keeper = getsockopt(&stream, PeerCredentials)?;
        if ![0, geteuid().as_raw()].contains(&keeper.uid()) {
            return Err(io::Error::other(format!("a process of user {} listens there", keeper.uid())));
        }
        Ok(Some(Connection(stream)))
    }

    /// Makes a connection of one end of a socket pair.
    pub fn of(stream: UnixStream) -> Connection {
        Connection(stream)
    }

    /// Sends a request, with the memory's descriptor if given.
    pub fn send(&self, request: Request, memory: Option<BorrowedFd<'_>>) -> io::Result<()> {
        message::send(&self.0, message::request_byte(request), memory)
    }

    /// Receives an answer and the descriptor attached, if any; `None` if the keeper has closed the connection.
    /// [`io::ErrorKind::WouldBlock`] if no answer comes within `most`.
    pub fn receive(&self, most: Duration) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        self.0.set_read_timeout(Some(most))?;
        self.next()
    }

    /// Waits until the keeper has ended, at most for `most`.
    pub fn await_end(&self, most: Duration) {
        let _ = self.receive(most);
    }

    fn next(&self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        let Some((byte, memory)) = message::receive(&self.0)? else { return Ok(None) };
        let answer = message::answer(byte).ok_or_else(|| io::Error::other("unknown answer of the keeper"))?;
        Ok(Some((answer, memory)))
    }
}

/// A connection that a thread watches.
#[derive(Debug)]
pub struct Watched {
    connection: Arc<std::sync::Mutex<UnixStream>>,
    released: Arc<AtomicBool>,
}

impl Watched {
    /// Starts a thread that calls `on_yield` when the keeper asks this node to end, and `replace`, for another
    /// connection, when the keeper has ended.
    pub fn start(
        connection: Connection,
        on_yield: impl FnOnce() + Send + 'static,
        replace: impl Fn() -> Option<Connection> + Send + 'static,
    ) -> io::Result<Watched> {
        let released = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(std::sync::Mutex::new(connection.0.try_clone()?));
        let watched = Watched { connection: Arc::clone(&shared), released: Arc::clone(&released) };
        thread::Builder::new().name("keeper".into()).spawn(move || {
            let mut on_yield = Some(on_yield);
            let mut connection = connection;
            loop {
                let answer = connection.0.set_read_timeout(None).and_then(|()| connection.next());
                if released.load(Ordering::Acquire) {
                    return;
                }
                match answer {
                    Ok(Some((Answer::Yield, _))) => {
                        tracing::info!("another process takes the pool's memory over: ending");
                        if let Some(on_yield) = on_yield.take() {
                            on_yield();
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => {
                        let Some(next) = replace() else { return };
                        let Ok(copy) = next.0.try_clone() else { return };
                        *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = copy;
                        connection = next;
                    }
                }
            }
        })?;
        Ok(watched)
    }

    /// Makes the keeper free the memory, and ends the thread.
    pub fn release(self) -> io::Result<()> {
        self.released.store(true, Ordering::Release);
        let stream = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sent = message::send(&stream, message::request_byte(Request::Release), None);
        // The thread's read returns.
        let _ = stream.shutdown(Shutdown::Read);
        sent
    }
}
