//! The server's shell: a thread that accepts clients, and one for each of them that moves bytes between its socket, its
//! [`Conversation`] and its [`Volume`].
//!
//! The number of clients is bounded, so is the time in which one has to choose an export, and what one can make the
//! server keep. At the end nobody is accepted any more, what was received whole is still carried out and answered, and
//! then every client is hung up on.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_gmm::daemon::Bound;
use nix::errno::Errno as OsErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, info, warn};

use super::conversation::{Command, Conversation, Offer, Request, Step, Violation};
use super::port::{Place, Port, PortError};
use super::seldom::Seldom;
use super::stripes::Stripes;
use super::volume::Volume;
use super::wire::Errno;

/// How long a client may take to choose an export.
const NEGOTIATION_MAX: Duration = Duration::from_secs(10);
/// How long clients have, once the server is to end, to take the answers that are still due to them.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How often the server looks whether it is to end, in milliseconds.
const LOOK_MS: u8 = 100;
/// Bytes read from a socket at once.
const READ: usize = 256 << 10;

/// What is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's socket, the region, and how long to wait for them.
    pub place: Place,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Clients at a time.
    pub connections_max: usize,
}

/// Why a client was left.
#[derive(Debug, thiserror::Error)]
enum Left {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("it chose no export within {NEGOTIATION_MAX:?}")]
    Undecided,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What clients can have the log filled with.
#[derive(Debug, Default)]
struct Said {
    failed: Seldom,
    nothing: Seldom,
    turned_away: Seldom,
    hung_up: Seldom,
}

/// What accepting and serving threads share.
#[derive(Debug)]
struct Shared {
    options: Options,
    stripes: Arc<Stripes>,
    said: Said,
    /// The sockets of those being served, by the order in which they came.
    clients: Mutex<HashMap<u64, UnixStream>>,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        // Each change of it is one call, so that a panic elsewhere leaves it whole.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ending(&self) -> &AtomicBool {
        &self.options.place.ending
    }
}

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
        let shared = Arc::new(Shared {
            options,
            stripes: Arc::default(),
            said: Said::default(),
            clients: Mutex::default(),
        });
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
    for number in 0.. {
        let Some(stream) = next_client(socket, shared) else { break };
        threads.retain(|thread| !thread.is_finished());
        let limit = shared.options.connections_max;
        if threads.len() >= limit {
            if let Some(left_out) = shared.said.turned_away.may_say(Instant::now()) {
                let what = "a client was turned away: there are as many as there may be; raise --connections";
                warn!(limit, left_out, "{what}");
            }
            continue;
        }
        match admit(stream, number, shared) {
            Ok(thread) => threads.push(thread),
            Err(error) => warn!(%error, "a client could not be served"),
        }
    }
    for stream in shared.clients().values() {
        let _ = stream.shutdown(Shutdown::Read);
    }
    let deadline = Instant::now() + LEAVE_MAX;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(LOOK_MS.into()) / 10);
    }
    // Those who do not take their answers.
    for stream in shared.clients().values() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// The next client, or `None` at the end.
fn next_client(socket: &Bound, shared: &Shared) -> Option<UnixStream> {
    while !shared.ending().load(Ordering::Relaxed) {
        match socket.listener().accept() {
            Ok((stream, _)) => return Some(stream),
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
    stream.set_nonblocking(false)?;
    let another = stream.try_clone()?;
    let for_thread = Arc::clone(shared);
    // Before the thread is there, so that it cannot leave before it was entered.
    shared.clients().insert(number, another);
    let thread = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        debug!(client = number, "connected");
        match serve(stream, number, &for_thread) {
            Ok(()) => debug!(client = number, "left"),
            Err(error) => {
                if let Some(left_out) = for_thread.said.hung_up.may_say(Instant::now()) {
                    info!(client = number, %error, left_out, "a client was hung up on");
                }
            }
        }
        for_thread.clients().remove(&number);
    });
    thread.inspect_err(|_| drop(shared.clients().remove(&number)))
}

/// Serves a client until it leaves.
fn serve(mut stream: UnixStream, number: u64, shared: &Shared) -> Result<(), Left> {
    let Options { place, read_only, .. } = &shared.options;
    let (port, size) = match place.clone().open() {
        Ok(port) => {
            let size = port.size();
            (Some(port), Ok(size))
        }
        Err(error) => {
            if let Some(left_out) = shared.said.nothing.may_say(Instant::now()) {
                warn!(client = number, %error, left_out, "nothing to offer to a client");
            }
            (None, Err(error.to_string()))
        }
    };
    let offer = Offer { name: place.region.clone(), size, read_only: *read_only };
    let mut conversation = Conversation::new(offer);
    let mut volume = port.map(|port| Volume::new(port, Arc::clone(&shared.stripes)));
    let mut data = Vec::new();
    let mut received = vec![0; READ];
    let undecided = Instant::now() + NEGOTIATION_MAX;
    loop {
        let step = conversation.step()?;
        if let (Step::Carry(request), Some(volume)) = (&step, &mut volume) {
            carry(request, volume, &mut conversation, &mut data, &shared.said.failed);
        }
        stream.write_all(conversation.output())?;
        conversation.output().clear();
        match step {
            Step::Carry(_) => {}
            Step::Leave => return Ok(()),
            Step::Receive(_) => {
                let limit = match conversation.is_negotiating() {
                    true => Some(undecided.checked_duration_since(Instant::now()).ok_or(Left::Undecided)?),
                    false => None,
                };
                // A limit of zero would mean none.
                stream.set_read_timeout(limit.map(|limit| limit.max(Duration::from_millis(1))))?;
                match stream.read(&mut received) {
                    Ok(0) => return Ok(()),
                    Ok(length) => conversation.receive(&received[..length]),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(Left::Undecided),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Does what a request asks for, and answers it.
fn carry(
    request: &Request,
    volume: &mut Volume<Port>,
    conversation: &mut Conversation,
    data: &mut Vec<u8>,
    said: &Seldom,
) {
    let cookie = request.cookie;
    let outcome: Result<(), PortError> = match &request.command {
        Command::Read { offset, length } => volume.read(*offset, *length, data),
        Command::Write { offset, data } => volume.write(*offset, data),
        Command::WriteZeroes { offset, length } => volume.zero(*offset, *length),
        // Each write was at its memory node before it was answered; and there is no giving back a part of a region.
        Command::Flush | Command::Trim { .. } => Ok(()),
    };
    match (outcome, &request.command) {
        (Ok(()), Command::Read { offset, .. }) => conversation.answer_data(cookie, *offset, data),
        (Ok(()), _) => conversation.answer_done(cookie),
        (Err(error), _) => {
            if let Some(left_out) = said.may_say(Instant::now()) {
                warn!(%error, left_out, "a request failed");
            }
            conversation.answer_error(cookie, Errno::Io, &error.to_string());
        }
    }
}
