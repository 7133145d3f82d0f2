//! The server's threads: one that accepts clients, and one for each client (`connection`).
//!
//! The server limits the number of clients, the time in which a client has to choose an export, and the memory that a
//! client can make the server use. At shutdown it accepts no further client, carries out and answers the requests that
//! were completely received, and then disconnects every client.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_daemon::Bound;
use nix::errno::Errno as OsErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use tracing::{debug, info, warn};

use super::client_slot::{ClientSlot, ClientSlots};
use super::connection::serve;
use super::shared::ServerState;
use super::surplus_clients::SurplusClients;

pub use super::shared::Options;

/// Longest time at shutdown for clients to take outstanding answers.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// Requested size of a socket's send buffer, in bytes.
const ANSWERS_MAX: usize = 1 << 20;
/// Interval of checks for shutdown, in milliseconds.
const LOOK_MS: u8 = 100;

/// The running server, which shuts down and removes its socket when this is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve clients that connect to `socket`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(socket: Bound, options: Options) -> io::Result<Server> {
        let slots = ClientSlots::new(options.connections_max);
        let shared = Arc::new(ServerState { options, slots });
        let for_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("nbd-accept".into()).spawn(move || accept(&socket, &for_thread))?;
        Ok(Server { shared, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ending().store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result is ignored: a thread that panicked has printed its message already.
            let _ = thread.join();
        }
    }
}

/// Accepts clients until shutdown, and then waits for all clients to leave.
fn accept(socket: &Bound, shared: &Arc<ServerState>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let turned_away = SurplusClients::default();
    while let Some(stream) = next_client(socket, shared) {
        threads.retain(|thread| !thread.is_finished());
        match serve_client(&stream, shared) {
            Ok(Some(slot)) => match start(stream, slot, shared) {
                Ok(thread) => threads.push(thread),
                Err(error) => warn!(%error, "a client could not be served"),
            },
            Ok(None) => {
                let limit = shared.options.connections_max;
                let what = "a client was refused: the limit is reached; raise --connections";
                warn!(limit, "{what}");
                turned_away.answer(stream, &shared.options.place.region, limit);
            }
            Err(error) => warn!(%error, "a client could not be served"),
        }
    }
    // The sockets are closed for reading only, so that requests that were received completely are still answered.
    shared.slots.shut_down(Shutdown::Read);
    let deadline = Instant::now() + LEAVE_MAX;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(LOOK_MS.into()) / 10);
    }
    // Disconnects clients that have not taken their answers.
    shared.slots.shut_down(Shutdown::Both);
}

/// Waits for the next client; `None` at shutdown.
fn next_client(socket: &Bound, shared: &ServerState) -> Option<UnixStream> {
    while !shared.ending().load(Ordering::Relaxed) {
        match socket.listener().accept() {
            Ok((stream, _)) if socket.admits(&stream) => return Some(stream),
            Ok(_) => {
                warn!("a client was refused: it runs as another user than this server");
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut set = [PollFd::new(socket.listener().as_fd(), PollFlags::POLLIN)];
                if let Err(error) = poll(&mut set, PollTimeout::from(LOOK_MS))
                    && error != OsErrno::EINTR
                {
                    warn!(%error, "cannot wait for clients");
                    thread::sleep(Duration::from_millis(LOOK_MS.into()));
                }
            }
            Err(error) => {
                // A pause, because the next attempt would most likely fail as well.
                warn!(%error, "cannot accept a client");
                thread::sleep(Duration::from_millis(LOOK_MS.into()));
            }
        }
    }
    None
}

/// Takes a slot for a client; `None` if all slots are in use.
fn serve_client(stream: &UnixStream, shared: &ServerState) -> io::Result<Option<ClientSlot>> {
    // The send buffer is made as large as the kernel allows: with a small one, an answer of a mebibyte takes many
    // sends, and client and server sleep for each.
    let _ = setsockopt(stream, SndBuf, &ANSWERS_MAX);
    Ok(shared.slots.take(stream.try_clone()?, Instant::now()))
}

fn start(stream: UnixStream, slot: ClientSlot, shared: &Arc<ServerState>) -> io::Result<JoinHandle<()>> {
    let for_thread = Arc::clone(shared);
    let client = slot.number();
    thread::Builder::new().name(format!("nbd-{client}")).spawn(move || {
        debug!(client, "connected");
        match serve(stream, &slot, &for_thread) {
            Ok(()) => debug!(client, "left"),
            Err(error) => info!(client, %error, "a client was disconnected"),
        }
    })
}
