//! The thread of one client, from the greeting to the client's end: moves bytes between the client's socket,
//! its [`Conversation`], its [`Requests`] and its [`Port`]. The thread waits for the socket and the agent at
//! the same time, and for nothing else.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno as OsErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, warn};

use super::client_slot::ClientSlot;
use super::conversation::{Conversation, ConversationStep, Offer, ProtocolViolation, Unavailable};
use super::output::{Output, SentItem};
use super::port::{Port, PortError, is_passing, is_transient};
use super::requests::{RETRY_INTERVAL, Requests, RetryLimit};
use super::shared::ServerState;
use cxloe_client::client::{ClientError, OPERATION_TIMEOUT};
use cxloe_client::vectored;

/// Longest time that a client may take to choose an export.
pub const NEGOTIATION_MAX: Duration = Duration::from_secs(10);
/// Longest sleep, after which the thread checks for the server's shutdown.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Maximum number of bytes in flight while the thread spins; with more, it sleeps and leaves the processor to
/// the agent.
const SPIN_BYTES_MAX: u64 = 16 << 10;
/// Time that the thread spins after an answer, if the client's last request also came within this time of an
/// answer. Spinning saves a sleep and a wake-up.
const NEXT_SOON: Duration = Duration::from_micros(40);
/// Bytes read at once from a socket in addition to the payload: room for some hundred headers.
const HEADERS: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    #[error(transparent)]
    Violation(#[from] ProtocolViolation),
    #[error("it chose no export within {NEGOTIATION_MAX:?}")]
    Undecided,
    #[error("it sent no request for {0:?} (--idle)")]
    Idle(Duration),
    #[error("it was idle, and its connection was needed for another client")]
    Displaced,
    /// The port for the client could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Input for which the conversation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedInput {
    Bytes,
    /// Free blocks for a write's payload, or room for one more request; until then nothing is read from the socket.
    Room,
    Nothing,
}

struct Connection<'a> {
    stream: UnixStream,
    shared: &'a ServerState,
    slot: &'a ClientSlot,
    conversation: Conversation,
    output: Output,
    requests: Requests,
    hpa: u64,
    port: Option<Port>,
    /// Time of the next attempt to find an agent.
    again: Instant,
    /// Time at which the agent last answered, or had no operation to answer.
    progress: Instant,
    /// Time of the client's last request.
    asked: Instant,
    /// Time of the last answer, if the client has sent no request since then.
    answered: Option<Instant>,
    /// Whether the client's last request came soon after an answer.
    brisk: bool,
    since: Instant,
    awaits: AwaitedInput,
    /// Whether the last read emptied the socket, and the thread has not waited since then.
    dry: bool,
    leaving: bool,
    /// Whether the client accepts no more answers.
    gone: bool,
    headers: Vec<u8>,
}

/// Serves a client until it disconnects. Requests that the client sent before it disconnected are still answered.
pub fn serve(stream: UnixStream, slot: &ClientSlot, shared: &ServerState) -> Result<(), DisconnectReason> {
    let (place, read_only) = (&shared.options.place, shared.options.read_only);
    let found = place.find().inspect_err(|error| warn!(%error, "nothing to offer to a client"));
    let hpa = found.as_ref().map_or(0, |found| found.hpa);
    let size = found.map(|found| found.size).map_err(|error| Unavailable::Away(error.to_string()));
    let now = Instant::now();
    let mut connection = Connection {
        stream,
        shared,
        slot,
        conversation: Conversation::new(Offer { name: place.region.clone(), size, read_only }),
        output: Output::default(),
        requests: Requests::default(),
        hpa,
        port: None,
        again: now,
        progress: now,
        asked: now,
        answered: None,
        brisk: false,
        since: now,
        awaits: AwaitedInput::Bytes,
        dry: false,
        leaving: false,
        gone: false,
        headers: vec![0; HEADERS],
    };
    connection.run().map_err(|left| if slot.is_displaced() { DisconnectReason::Displaced } else { left })
}

impl Connection<'_> {
    fn run(&mut self) -> Result<(), DisconnectReason> {
        loop {
            let mut work = self.receive_input()?;
            work |= self.carry();
            work |= self.send_output()?;
            // A client that disconnects still gets the answers to its earlier requests.
            if self.leaving && self.requests.is_empty() && self.output.is_empty() {
                return Ok(());
            }
            if !work {
                self.wait()?;
            }
        }
    }

    fn retry_limit(&self) -> RetryLimit {
        RetryLimit { now: Instant::now(), most: self.shared.options.place.retry_limit() }
    }

    /// Receives bytes from the client; returns whether any arrived.
    fn receive_input(&mut self) -> Result<bool, DisconnectReason> {
        let mut work = self.parse()?;
        if self.awaits == AwaitedInput::Bytes && !self.dry && !self.leaving {
            work |= self.receive()?;
        }
        Ok(work)
    }

    /// Parses the received bytes and begins the requests in them.
    fn parse(&mut self) -> Result<bool, DisconnectReason> {
        let mut work = false;
        while !self.leaving {
            if !self.requests.has_room(&self.output) {
                self.awaits = AwaitedInput::Room;
                return Ok(work);
            }
            match self.conversation.step(&mut self.output)? {
                ConversationStep::Carry(request) => {
                    self.open()?;
                    self.slot.set_asked();
                    self.asked = Instant::now();
                    if let Some(answered) = self.answered.take() {
                        self.brisk = self.asked.duration_since(answered) < NEXT_SOON;
                    }
                    self.requests.begin(request, &mut self.output);
                }
                ConversationStep::Payload(_) => {
                    self.requests.cut(&mut self.output);
                    let Some((at, length)) = self.requests.places().next() else {
                        self.awaits = AwaitedInput::Room;
                        return Ok(work);
                    };
                    let bytes = self.conversation.payload(length);
                    if bytes.is_empty() {
                        break;
                    }
                    if let Some(port) = &self.port {
                        let (memory, base) = port.data();
                        memory.put(base + at, bytes);
                    }
                    let length = bytes.len();
                    self.requests.fill(length, &mut self.output);
                }
                ConversationStep::Receive(_) => break,
                ConversationStep::Leave => (self.leaving, self.awaits) = (true, AwaitedInput::Nothing),
            }
            work = true;
        }
        if !self.leaving {
            self.awaits = AwaitedInput::Bytes;
            self.slot.set_chosen(!self.conversation.is_negotiating());
        }
        Ok(work)
    }

    /// Opens a port for the client, if it has sent a request and has no port; waits for an absent agent.
    fn open(&mut self) -> Result<(), DisconnectReason> {
        let place = &self.shared.options.place;
        let started = Instant::now();
        while self.port.is_none() {
            match Port::open(place.clone(), self.hpa) {
                Ok(port) => self.port = Some(port),
                Err(error) if is_transient(&error) && started.elapsed() < place.retry_limit() => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, DisconnectReason> {
        let received = match &self.port {
            Some(port) => {
                let (memory, base) = port.data();
                let places = || self.requests.places().take(vectored::STRETCHES_MAX - 1);
                let paid: usize = places().map(|(_, length)| length).sum();
                let shared = places().map(|(at, length)| (base + at, length));
                vectored::receive(self.stream.as_fd(), Some(memory), shared, &mut self.headers)
                    .map(|received| (received, received.min(paid)))
            }
            None => vectored::receive(self.stream.as_fd(), None, [], &mut self.headers)
                .map(|received| (received, 0)),
        };
        match received {
            Ok((0, _)) => {
                (self.leaving, self.awaits) = (true, AwaitedInput::Nothing);
                self.requests.hang_up(&mut self.output);
                Ok(true)
            }
            Ok((received, paid)) => {
                // The read did not fill the buffer: the socket is empty.
                self.dry = received - paid < HEADERS;
                self.conversation.paid(paid);
                self.requests.fill(paid, &mut self.output);
                self.conversation.receive(&self.headers[..received - paid]);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.dry = e.kind() == io::ErrorKind::WouldBlock;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Submits operations to the agent and takes completions; returns whether there were any operations or completions.
    fn carry(&mut self) -> bool {
        self.requests.cut(&mut self.output);
        if self.requests.given() == 0 && !self.requests.is_waiting() {
            return false;
        }
        let mut work = self.collect();
        if self.port.as_mut().is_none_or(|port| port.client().is_none()) {
            return self.find_agent() || work;
        }
        let Some(port) = &mut self.port else { return work };
        let idle = self.requests.given() == 0;
        let mut given = false;
        while let Some(order) = self.requests.next(Instant::now()) {
            port.submit(&order);
            given = true;
        }
        if given {
            work = true;
            if idle {
                self.progress = Instant::now();
            }
            if let Some(Err(error)) = port.client().map(|client| client.kick()) {
                self.mark_lost(&error.into());
            }
        }
        work
    }

    /// Takes completions from the agent; returns whether there were any.
    fn collect(&mut self) -> bool {
        let mut work = false;
        let lost = loop {
            let Some(port) = &mut self.port else { return work };
            let Some(client) = port.client() else { return work };
            match client.take() {
                Ok(None) => {
                    // An agent that has answered no operation for this long counts as dead.
                    if self.requests.given() > 0 && self.progress.elapsed() > OPERATION_TIMEOUT {
                        break client.silent();
                    }
                    return work;
                }
                Ok(Some((tag, outcome))) => {
                    (work, self.progress) = (true, Instant::now());
                    let known = match outcome {
                        Ok(()) => {
                            let (memory, base) = port.data();
                            self.requests.ended(tag, memory, base, &mut self.output)
                        }
                        Err(error) => {
                            let wait_limit = self.retry_limit();
                            let (passes, why) = (is_passing(error), ClientError::Engine(error));
                            let failed =
                                self.requests.failed(tag, &why, passes, wait_limit, &mut self.output);
                            if failed == Some(true) {
                                warn!(error = %PortError::from(why), "a request failed");
                            }
                            failed.is_some()
                        }
                    };
                    if !known {
                        let path = self.shared.options.place.agent.clone();
                        let reason = format!("unknown operation tag {tag}");
                        break ClientError::Protocol { path, reason };
                    }
                }
                Err(error) => break error,
            }
        };
        self.mark_lost(&lost.into());
        true
    }

    /// Logs the error of the agent's port, and keeps the requests until another port can be opened.
    fn mark_lost(&mut self, error: &PortError) {
        debug!(%error, "the port is lost");
        if let Some(port) = &mut self.port {
            port.mark_lost(self.requests.used_blocks());
        }
        let wait_limit = self.retry_limit();
        self.requests.lost(wait_limit);
        self.again = wait_limit.now;
        if !is_transient(error) && self.requests.expire(error, true, wait_limit.now, &mut self.output) {
            warn!(%error, "a request failed");
        }
    }

    /// At intervals, looks for an agent for pending requests; returns whether one was found or requests have
    /// failed.
    fn find_agent(&mut self) -> bool {
        let wait_limit = self.retry_limit();
        if wait_limit.now < self.again || !self.requests.is_waiting() {
            return false;
        }
        self.requests.away(wait_limit);
        let place = &self.shared.options.place;
        let Some(port) = &mut self.port else { return false };
        let found = port.reopen(self.requests.used_blocks());
        let Err(error) = found else { return true };
        let error = if place.ending.load(Ordering::Relaxed) { PortError::Ending } else { error };
        self.again = Instant::now() + RETRY_INTERVAL;
        let no_use = !is_transient(&error);
        let expired = self.requests.expire(&error, no_use, Instant::now(), &mut self.output);
        if expired {
            warn!(%error, "a request failed");
        }
        expired
    }

    /// Sends as much output as the client takes; returns whether the client took any.
    fn send_output(&mut self) -> Result<bool, DisconnectReason> {
        if self.output.is_empty() {
            return Ok(false);
        }
        let sent = match &self.port {
            _ if self.gone => Ok(usize::MAX),
            Some(port) => {
                let (memory, base) = port.data();
                vectored::send(self.stream.as_fd(), self.output.stretches(Some(memory), base))
            }
            None => vectored::send(self.stream.as_fd(), self.output.stretches(None, 0)),
        };
        match sent {
            Ok(mut length) => {
                let Connection { output, requests, .. } = self;
                while output.next_sent(&mut length).is_some_and(|sent| match sent {
                    SentItem::Part(part) => {
                        requests.sent(part);
                        true
                    }
                    SentItem::Staged(bytes) => {
                        requests.staged_sent(bytes);
                        true
                    }
                    SentItem::Bytes => true,
                }) {}
                self.answered = requests.is_empty().then(Instant::now);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            // A client that has disconnected cannot receive its answers; this is not an error.
            Err(_) if self.leaving => {
                self.gone = true;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until the client's socket or the agent is ready, or the next deadline has passed.
    fn wait(&mut self) -> Result<(), DisconnectReason> {
        let soon = (1..=SPIN_BYTES_MAX).contains(&self.requests.given_bytes());
        let mut client = self.port.as_mut().and_then(Port::client);
        if soon && client.as_mut().is_some_and(|client| client.spin()) {
            // A client with a single request in flight most likely sends the next one only after the answer.
            self.dry &= self.requests.given() == 1;
            return Ok(());
        }
        self.dry = false;
        if self.brisk && self.answered.is_some_and(|answered| answered.elapsed() < NEXT_SOON) {
            // The thread yields instead of spinning, because the agent may need this CPU.
            std::thread::yield_now();
            return Ok(());
        }
        let mut agent = None;
        if let Some(client) = client {
            // The thread is marked as asleep before it checks for completions once more: the agent wakes it for every
            // completion after that check.
            client.set_asleep(true);
            if client.news() {
                client.set_asleep(false);
                return Ok(());
            }
            agent = Some(&*client);
        }
        let now = Instant::now();
        let mut most = SLEEP_MAX;
        if self.conversation.is_negotiating() && !self.leaving {
            let until = self.since + NEGOTIATION_MAX;
            most = most.min(until.checked_duration_since(now).ok_or(DisconnectReason::Undecided)?);
        }
        if let Some(idle) = self.shared.options.idle
            && self.requests.is_empty()
            && self.output.is_empty()
            && !self.conversation.is_negotiating()
        {
            let left = (self.asked + idle).checked_duration_since(now).ok_or(DisconnectReason::Idle(idle))?;
            most = most.min(left);
        }
        let away = agent.is_none() && self.requests.is_waiting();
        for due in [self.requests.due(), away.then_some(self.again)].into_iter().flatten() {
            most = most.min(due.saturating_duration_since(now));
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.awaits == AwaitedInput::Bytes);
        let client_fd = |events| PollFd::new(self.stream.as_fd(), events);
        events.set(PollFlags::POLLOUT, !self.output.is_empty());
        let (hung_up, woken) = {
            // A socket that the client has closed is left out of the poll, which would otherwise return at once every
            // time.
            let first = usize::from(self.gone);
            let mut set = [client_fd(events), client_fd(PollFlags::empty())];
            let mut end = 1;
            if let Some(client) = agent {
                set[1] = PollFd::new(client.as_fd(), PollFlags::POLLIN);
                end = 2;
            }
            // The time-out is rounded up to whole milliseconds: a thread that woke before the deadline would spin until
            // then.
            let most = PollTimeout::from(most.as_micros().div_ceil(1000).min(1000) as u16);
            match poll(&mut set[first.min(end)..end], most) {
                Ok(_) | Err(OsErrno::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            let over = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
            let hung_up = first == 0 && set[0].revents().is_some_and(|revents| revents.intersects(over));
            (hung_up, end == 2 && set[1].revents().is_some_and(|revents| !revents.is_empty()))
        };
        if let Some(client) = self.port.as_mut().and_then(Port::client) {
            client.set_asleep(false);
            if woken && let Err(error) = client.drain_wakeups() {
                self.mark_lost(&error.into());
            }
        }
        match self.awaits {
            // Not an error yet: bytes that the client sent before it hung up can still be received.
            AwaitedInput::Bytes => Ok(()),
            _ if !hung_up => Ok(()),
            // The client hung up, and all of its requests are done.
            AwaitedInput::Nothing => {
                self.gone = true;
                Ok(())
            }
            AwaitedInput::Room => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }
}
