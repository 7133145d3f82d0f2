//! The server's shell: a thread that accepts clients, and one for each of them (`connection`).
//!
//! The number of clients is bounded, so is the time in which one has to choose an export, and what one can make the
//! server keep. At the end nobody is accepted any more, what was received whole is still carried out and answered, and
//! then every client is hung up on.

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

use super::client_slot::ClientSlots;
use super::connection::serve;
use super::shared::{Said, Shared};
use super::turned_away::TurnedAway;

pub use super::shared::Options;

/// How long clients have, once the server is to end, to take the answers that are still due to them.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// Bytes of answers that the kernel may keep for a client that has not taken them yet.
const ANSWERS_MAX: usize = 1 << 20;
/// How often the server looks whether it is to end, in milliseconds.
const LOOK_MS: u8 = 100;
/// How long the thread of a client that was hung up on may take to end.
const DISPLACE_MAX: Duration = Duration::from_millis(200);

/// The running server; it ends when dropped, and its socket with it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves clients that connect to `socket`.
    ///
    /// # Errors
    /// When there is no thread left.
    pub fn start(socket: Bound, options: Options) -> io::Result<Server> {
        let shared = Arc::new(Shared { options, said: Said::default(), slots: ClientSlots::default() });
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
            // It has panicked, if so, with a message of its own.
            let _ = thread.join();
        }
    }
}

/// Accepts clients until the end, then sees them off.
fn accept(socket: &Bound, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let turned_away = TurnedAway::default();
    for number in 0.. {
        let Some(stream) = next_client(socket, shared) else { break };
        threads.retain(|thread| !thread.is_finished());
        let limit = shared.options.connections_max;
        if shared.slots.count() >= limit && !make_room(shared, limit) {
            if let Some(left_out) = shared.said.turned_away.may_say(Instant::now()) {
                let what = "a client was turned away: there are as many as there may be; raise --connections";
                warn!(limit, left_out, "{what}");
            }
            turned_away.answer(stream, &shared.options.place.region, limit);
            continue;
        }
        match admit(stream, number, shared) {
            Ok(thread) => threads.push(thread),
            Err(error) => warn!(%error, "a client could not be served"),
        }
    }
    shared.slots.shut_down(Shutdown::Read);
    let deadline = Instant::now() + LEAVE_MAX;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(LOOK_MS.into()) / 10);
    }
    // Those who do not take their answers.
    shared.slots.shut_down(Shutdown::Both);
}

/// Makes room for another client, if one keeps a place that it does not use.
fn make_room(shared: &Shared, limit: usize) -> bool {
    let deadline = Instant::now() + DISPLACE_MAX;
    if !shared.slots.displace(Instant::now()) {
        return false;
    }
    while shared.slots.count() >= limit && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    shared.slots.count() < limit
}

/// The next client, or `None` at the end.
fn next_client(socket: &Bound, shared: &Shared) -> Option<UnixStream> {
    while !shared.ending().load(Ordering::Relaxed) {
        match socket.listener().accept() {
            Ok((stream, _)) if socket.admits(&stream) => return Some(stream),
            Ok(_) => {
                if let Some(left_out) = shared.said.strangers.may_say(Instant::now()) {
                    let what = "a client was turned away: it is another user's than this server, and the socket is not its";
                    warn!(left_out, "{what}");
                }
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
                warn!(%error, "cannot accept a client");
                thread::sleep(Duration::from_millis(LOOK_MS.into()));
            }
        }
    }
    None
}

/// Starts the thread of a client.
fn admit(stream: UnixStream, number: u64, shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    // As large as the kernel lets it be: else an answer of a mebibyte goes in many parts, and for each of them both ends sleep.
    let _ = setsockopt(&stream, SndBuf, &ANSWERS_MAX);
    let another = stream.try_clone()?;
    let for_thread = Arc::clone(shared);
    // Before the thread is there, so that it cannot leave before it was entered.
    let slot = shared.slots.take(number, another);
    let thread = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        debug!(client = number, "connected");
        match serve(stream, &slot, &for_thread) {
            Ok(()) => debug!(client = number, "left"),
            Err(error) => {
                if let Some(left_out) = for_thread.said.hung_up.may_say(Instant::now()) {
                    info!(client = number, %error, left_out, "a client was hung up on");
                }
            }
        }
        for_thread.slots.leave(number);
    });
    thread.inspect_err(|_| shared.slots.leave(number))
}
