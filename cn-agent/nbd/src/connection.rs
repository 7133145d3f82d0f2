//! One client, from its greeting to its end: the thread that moves bytes between its socket, its [`Conversation`], its
//! [`Requests`] and its [`Port`]. It waits for the socket and the agent at once, and for nothing else.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno as OsErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, warn};

use super::client_slot::ClientSlot;
use super::conversation::{Conversation, Offer, Step, Unavailable, Violation};
use super::output::{Output, Sent};
use super::port::{Port, PortError, is_passing, may_pass};
use super::requests::{Patience, RETRY_INTERVAL, Requests};
use super::shared::Shared;
use cxloe_client::client::{ClientError, OPERATION_TIMEOUT};
use cxloe_client::vectored;

/// How long a client may take to choose an export.
pub const NEGOTIATION_MAX: Duration = Duration::from_secs(10);
/// The longest sleep, so that the server's end is seen.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// What is soon done is spun for; for more than this, sleeping leaves the processor to those who move it.
const SPIN_BYTES_MAX: u64 = 16 << 10;
/// Who asked for the next thing so soon after an answer is waited for awake, for a little longer than that: no sleep, and nobody
/// to wake this thread.
const NEXT_SOON: Duration = Duration::from_micros(40);
/// Bytes read from a socket at once that are no payload: some hundred headers.
const HEADERS: usize = 16 << 10;

/// Why a client was left.
#[derive(Debug, thiserror::Error)]
pub enum Left {
    /// It does not keep to the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// It is not in earnest.
    #[error("it chose no export within {NEGOTIATION_MAX:?}")]
    Undecided,
    /// It has been idle for too long.
    #[error("it asked for nothing for {0:?} (--idle)")]
    Idle(Duration),
    /// Others need its place.
    #[error("it had asked for nothing, and others wanted its place")]
    Displaced,
    /// There was no port for it.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Its socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a client's bytes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Bytes,
    /// Room for the payload or the next request.
    Room,
    Nothing,
}

struct Connection<'a> {
    stream: UnixStream,
    shared: &'a Shared,
    slot: &'a ClientSlot,
    conversation: Conversation,
    output: Output,
    requests: Requests,
    hpa: u64,
    port: Option<Port>,
    /// When an agent that has gone is looked for next.
    again: Instant,
    /// When the agent last answered something, or had nothing to answer.
    progress: Instant,
    /// When the client last asked for something.
    asked: Instant,
    /// When it was last answered, as long as it has not asked for anything since.
    answered: Option<Instant>,
    /// Whether it asked for the last thing soon after an answer.
    brisk: bool,
    since: Instant,
    wants: Wants,
    /// Whether all was taken that had come when this was last looked at, and nothing has been waited for since.
    dry: bool,
    leaving: bool,
    /// Nobody takes what is to be sent.
    gone: bool,
    headers: Vec<u8>,
}

/// Serves a client until it leaves.
///
/// # Errors
/// Any [`Left`].
pub fn serve(stream: UnixStream, slot: &ClientSlot, shared: &Shared) -> Result<(), Left> {
    let (place, read_only) = (&shared.options.place, shared.options.read_only);
    let found = place.find().inspect_err(|error| {
        if let Some(left_out) = shared.said.nothing.may_say(Instant::now()) {
            warn!(%error, left_out, "nothing to offer to a client");
        }
    });
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
        wants: Wants::Bytes,
        dry: false,
        leaving: false,
        gone: false,
        headers: vec![0; HEADERS],
    };
    connection.run().map_err(|left| if slot.is_displaced() { Left::Displaced } else { left })
}

impl Connection<'_> {
    fn run(&mut self) -> Result<(), Left> {
        loop {
            let mut work = self.listen()?;
            work |= self.carry();
            work |= self.talk()?;
            if self.leaving && self.requests.is_empty() && self.output.is_empty() {
                return Ok(());
            }
            if !work {
                self.wait()?;
            }
        }
    }

    fn patience(&self) -> Patience {
        Patience { now: Instant::now(), most: self.shared.options.place.patience() }
    }

    /// Takes what the client says; whether it said something.
    fn listen(&mut self) -> Result<bool, Left> {
        let mut work = self.parse()?;
        if self.wants == Wants::Bytes && !self.dry && !self.leaving {
            work |= self.receive()?;
        }
        Ok(work)
    }

    /// Goes on with what was received.
    fn parse(&mut self) -> Result<bool, Left> {
        let mut work = false;
        while !self.leaving {
            if !self.requests.has_room(&self.output) {
                self.wants = Wants::Room;
                return Ok(work);
            }
            match self.conversation.step(&mut self.output)? {
                Step::Carry(request) => {
                    self.open()?;
                    self.slot.set_asked();
                    self.asked = Instant::now();
                    if let Some(answered) = self.answered.take() {
                        self.brisk = self.asked.duration_since(answered) < NEXT_SOON;
                    }
                    self.requests.begin(request, &mut self.output);
                }
                Step::Payload(_) => {
                    self.requests.cut(&mut self.output);
                    let Some((at, length)) = self.requests.places().next() else {
                        self.wants = Wants::Room;
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
                Step::Receive(_) => break,
                Step::Leave => (self.leaving, self.wants) = (true, Wants::Nothing),
            }
            work = true;
        }
        if !self.leaving {
            self.wants = Wants::Bytes;
            self.slot.set_chosen(!self.conversation.is_negotiating());
        }
        Ok(work)
    }

    /// Opens a port for a client that has asked for something, if it has none; waits for an agent that is away.
    fn open(&mut self) -> Result<(), Left> {
        let place = &self.shared.options.place;
        let started = Instant::now();
        while self.port.is_none() {
            match Port::open(place.clone(), self.hpa) {
                Ok(port) => self.port = Some(port),
                Err(error) if may_pass(&error) && started.elapsed() < place.patience() => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, Left> {
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
                (self.leaving, self.wants) = (true, Wants::Nothing);
                self.requests.hang_up(&mut self.output);
                Ok(true)
            }
            Ok((received, paid)) => {
                // Where there was room for more, no more had come.
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

    /// Gives the agent what is to be done, and takes what is; whether there was anything.
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
                self.lose(&error.into());
            }
        }
        work
    }

    /// Takes completions.
    fn collect(&mut self) -> bool {
        let mut work = false;
        let lost = loop {
            let Some(port) = &mut self.port else { return work };
            let Some(client) = port.client() else { return work };
            match client.take() {
                Ok(None) => {
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
                            let patience = self.patience();
                            let (passes, why) = (is_passing(error), ClientError::Engine(error));
                            let failed = self.requests.failed(tag, &why, passes, patience, &mut self.output);
                            if failed == Some(true) {
                                self.complain(&why.into());
                            }
                            failed.is_some()
                        }
                    };
                    if !known {
                        let path = self.shared.options.place.agent.clone();
                        let reason = format!("a completion of operation {tag}, which is none of mine");
                        break ClientError::Protocol { path, reason };
                    }
                }
                Err(error) => break error,
            }
        };
        self.lose(&lost.into());
        true
    }

    /// The agent has gone, or is of no use.
    fn lose(&mut self, error: &PortError) {
        debug!(%error, "the port is lost");
        if let Some(port) = &mut self.port {
            port.lose();
        }
        let patience = self.patience();
        self.requests.lost(patience);
        self.again = patience.now;
        if !may_pass(error) && self.requests.expire(error, true, patience.now, &mut self.output) {
            self.complain(error);
        }
    }

    /// Looks for an agent for what waits, now and then.
    fn find_agent(&mut self) -> bool {
        let patience = self.patience();
        if patience.now < self.again || !self.requests.is_waiting() {
            return false;
        }
        self.requests.away(patience);
        let place = &self.shared.options.place;
        let Some(port) = &mut self.port else { return false };
        let found = port.reopen(self.requests.used_blocks());
        let Err(error) = found else { return true };
        let error = if place.ending.load(Ordering::Relaxed) { PortError::Ending } else { error };
        self.again = Instant::now() + RETRY_INTERVAL;
        let no_use = !may_pass(&error);
        let expired = self.requests.expire(&error, no_use, Instant::now(), &mut self.output);
        if expired {
            self.complain(&error);
        }
        expired
    }

    fn complain(&self, error: &PortError) {
        if let Some(left_out) = self.shared.said.failed.may_say(Instant::now()) {
            warn!(%error, left_out, "a request failed");
        }
    }

    /// Sends what is to be sent, as far as the client takes it; whether it took any.
    fn talk(&mut self) -> Result<bool, Left> {
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
                    Sent::Part(part) => {
                        requests.sent(part);
                        true
                    }
                    Sent::Staged(bytes) => {
                        requests.staged_sent(bytes);
                        true
                    }
                    Sent::Bytes => true,
                }) {}
                self.answered = requests.is_empty().then(Instant::now);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(_) if self.leaving => {
                self.gone = true;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until the client or the agent says something, or something is due.
    fn wait(&mut self) -> Result<(), Left> {
        let soon = (1..=SPIN_BYTES_MAX).contains(&self.requests.given_bytes());
        let mut client = self.port.as_mut().and_then(Port::client);
        if soon && client.as_mut().is_some_and(|client| client.spin()) {
            // A client that has asked for one thing most likely waits for it, and has not asked for the next.
            self.dry &= self.requests.given() == 1;
            return Ok(());
        }
        self.dry = false;
        if self.brisk && self.answered.is_some_and(|answered| answered.elapsed() < NEXT_SOON) {
            // It may be on this very CPU.
            std::thread::yield_now();
            return Ok(());
        }
        let mut agent = None;
        if let Some(client) = client {
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
            most = most.min(until.checked_duration_since(now).ok_or(Left::Undecided)?);
        }
        if let Some(idle) = self.shared.options.idle
            && self.requests.is_empty()
            && self.output.is_empty()
            && !self.conversation.is_negotiating()
        {
            let left = (self.asked + idle).checked_duration_since(now).ok_or(Left::Idle(idle))?;
            most = most.min(left);
        }
        let away = agent.is_none() && self.requests.is_waiting();
        for due in [self.requests.due(), away.then_some(self.again)].into_iter().flatten() {
            most = most.min(due.saturating_duration_since(now));
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.wants == Wants::Bytes);
        let client_fd = |events| PollFd::new(self.stream.as_fd(), events);
        events.set(PollFlags::POLLOUT, !self.output.is_empty());
        let (hung_up, woken) = {
            // Its end would end every sleep at once.
            let first = usize::from(self.gone);
            let mut set = [client_fd(events), client_fd(PollFlags::empty())];
            let mut end = 1;
            if let Some(client) = agent {
                set[1] = PollFd::new(client.as_fd(), PollFlags::POLLIN);
                end = 2;
            }
            // Not less than what is due, or it would be looked at too early.
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
            if woken && let Err(error) = client.hear() {
                self.lose(&error.into());
            }
        }
        match self.wants {
            // What it has said before it went is still there to be received.
            Wants::Bytes => Ok(()),
            _ if !hung_up => Ok(()),
            // What it has asked for is done.
            Wants::Nothing => {
                self.gone = true;
                Ok(())
            }
            Wants::Room => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }
}
