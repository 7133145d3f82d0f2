//! A node's connection to its keeper process.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use cxloe_mn_core::keeping::{Answer, Request};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::message;

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

    pub fn send(&self, request: Request, memory: Option<BorrowedFd<'_>>) -> io::Result<()> {
        message::send(&self.0, message::request_byte(request), memory)
    }

    /// Receives an answer and the descriptor attached, if any; `None` if the keeper has closed the connection.
    /// [`io::ErrorKind::WouldBlock`] if no answer comes within `most`.
    pub fn receive(&self, most: Duration) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        self.0.set_read_timeout(Some(most))?;
        self.next()
    }

    /// Waits until the keeper has ended, for at most `most`.
    pub fn await_end(&self, most: Duration) {
        // The result is ignored: the caller does not wait longer for a slow keeper.
        let _ = self.receive(most);
    }

    fn next(&self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        let Some((byte, memory)) = message::receive(&self.0)? else { return Ok(None) };
        let answer = message::answer(byte).ok_or_else(|| io::Error::other("unknown answer of the keeper"))?;
        Ok(Some((answer, memory)))
    }
}

/// Minimum and maximum pause between attempts to start a keeper, doubled after each failed attempt.
const START_PAUSE_MIN: Duration = Duration::from_millis(200);
const START_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Connection to the keeper, which a thread watches.
#[derive(Debug)]
pub struct Watched(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Connection to the running keeper; `None` while no keeper runs.
    connection: Option<UnixStream>,
    released: bool,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Watched {
    /// Starts a thread. The thread calls `on_yield` when the keeper asks this node to end. While there is no
    /// keeper, the thread calls `replace` at intervals until `replace` returns a connection: a machine that
    /// lacks memory or processor time now may have both later.
    pub fn start(
        connection: Option<Connection>,
        on_yield: impl FnOnce() + Send + 'static,
        replace: impl Fn() -> Option<Connection> + Send + 'static,
    ) -> io::Result<Watched> {
        let copy = connection.as_ref().map(|connection| connection.0.try_clone()).transpose()?;
        let state = Arc::new(Mutex::new(State { connection: copy, released: false }));
        let watched = Watched(Arc::clone(&state));
        thread::Builder::new().name("keeper".into()).spawn(move || {
            let mut on_yield = Some(on_yield);
            let mut connection = connection;
            let mut pause = START_PAUSE_MIN;
            loop {
                let answer = match &connection {
                    Some(connection) => connection.0.set_read_timeout(None).and_then(|()| connection.next()),
                    None => Ok(None),
                };
                if locked(&state).released {
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
                        locked(&state).connection = None;
                        connection = replace();
                        let copy = connection.as_ref().and_then(|next| next.0.try_clone().ok());
                        let mut state = locked(&state);
                        if state.released {
                            // The memory was released while this keeper started, so the keeper has to free
                            // the memory too.
                            let _ = connection.map(|next| next.send(Request::Release, None));
                            return;
                        }
                        if copy.is_some() {
                            state.connection = copy;
                            pause = START_PAUSE_MIN;
                            continue;
                        }
                        drop(state);
                        connection = None;
                        thread::sleep(pause);
                        pause = (pause * 2).min(START_PAUSE_MAX);
                    }
                }
            }
        })?;
        Ok(watched)
    }

    /// Makes the keeper, if one runs, free the memory, and ends the thread.
    pub fn release(self) -> io::Result<()> {
        let mut state = locked(&self.0);
        state.released = true;
        let Some(stream) = state.connection.take() else { return Ok(()) };
        let sent = message::send(&stream, message::request_byte(Request::Release), None);
        // Makes the thread's read return, so that the thread can end.
        let _ = stream.shutdown(Shutdown::Read);
        sent
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A keeper whose first two starts fail must start at the third attempt, and get the request to release the memory.
    #[test]
    fn a_keeper_is_started_until_one_runs() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        its.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let attempts = Arc::new(AtomicUsize::new(0));
        let made = Arc::clone(&attempts);
        let keeper = Mutex::new(Some(ours));
        let replace = move || match made.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => None,
            _ => keeper.lock().unwrap().take().map(Connection::of),
        };
        let watched = Watched::start(None, || {}, replace).unwrap();
        for _ in 0..6000 {
            if locked(&watched.0).connection.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(attempts.load(Ordering::SeqCst), 3);
        watched.release().unwrap();
        let mut byte = [0];
        its.read_exact(&mut byte).unwrap();
        assert_eq!(message::request(byte[0]), Some(Request::Release));
    }

    /// A keeper that is still being started when the node ends in order must free the memory.
    #[test]
    fn a_keeper_started_during_the_release_frees_the_memory() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        its.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, released) = std::sync::mpsc::channel::<()>();
        let keeper = Mutex::new(Some(ours));
        let replace = move || {
            begun.send(()).unwrap();
            released.recv().unwrap();
            keeper.lock().unwrap().take().map(Connection::of)
        };
        let watched = Watched::start(None, || {}, replace).unwrap();
        begins.recv().unwrap();
        watched.release().unwrap();
        go_on.send(()).unwrap();
        let mut byte = [0];
        its.read_exact(&mut byte).unwrap();
        assert_eq!(message::request(byte[0]), Some(Request::Release));
    }
}
