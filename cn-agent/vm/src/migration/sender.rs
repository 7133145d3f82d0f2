//! Carries out the steps that [`SourceMove`] decides on: all I/O of a move at its source.

use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Events, RecvTimeoutError, channel as events};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_client::client::{self, ClientError};
use serde_json::json;

use super::channel::{self, Record, SealedSender, Stream};
use super::facts::MachineFacts;
use super::machine::MovableMachine;
use super::message::{SourceMessage, TargetMessage, VERSION};
use super::source::{RegionOwner, SourceEnd, SourceMove, SourceStep, StepOutcome};
use super::ticket::Ticket;

/// Name of the descriptor for QEMU's state, in commands to QEMU.
pub(super) const STATE_FD: &str = "cxloe-state";
/// Longest wait for a connection, and for QEMU to start at the target.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const LAUNCH_MAX: Duration = Duration::from_secs(30);
/// Longest time that the guest is stopped before the hand-over is ordered; after that the machine stays.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Longest wait until the guest runs at the target.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the agent to serve the memory again.
const SERVE_MAX: Duration = Duration::from_secs(30);
/// Interval of checks of the flag by which a move is cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of requests to the manager.
const ASK_INTERVAL: Duration = Duration::from_millis(200);
/// Number of times that dirty pages are written back while the guest runs.
const ROUNDS: u32 = 2;
/// Maximum number of pages in one message.
const NOTES_MAX: usize = 2000;
/// Bytes of QEMU's state read at a time.
const PIECE: usize = 256 << 10;

/// Address at which the target listens: `HOST:PORT`, or `unix:` and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveAddress {
    /// Host and port of TCP.
    Tcp(String),
    /// A Unix socket of this machine, possibly one end of a tunnel.
    Unix(std::path::PathBuf),
}

impl FromStr for MoveAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MoveAddress, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(MoveAddress::Unix(path.into()));
        }
        let port = text
            .rsplit_once(':')
            .and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        match port {
            Some(_) => Ok(MoveAddress::Tcp(text.to_owned())),
            None => Err(format!("`{text}` is no address: say HOST:PORT, or unix:PATH")),
        }
    }
}

impl std::fmt::Display for MoveAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MoveAddress::Tcp(address) => f.write_str(address),
            MoveAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl MoveAddress {
    fn connect(&self) -> io::Result<Stream> {
        match self {
            MoveAddress::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            MoveAddress::Tcp(address) => {
                let mut refused = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                        Ok(stream) => return Ok(Stream::Tcp(stream)),
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
            }
        }
    }
}

/// Requests of a move to the manager. Compute nodes are named by their CN ids.
pub trait RegionManager {
    /// Orders the hand-over of the region to the compute node `to`, and waits a bounded time for it. Returns the
    /// region's owner, and whether a hand-over is still in progress.
    ///
    /// # Errors
    /// The reason why the manager has not answered, or has refused; the order may have been carried out.
    fn hand_over(&mut self, region: &str, to: &str) -> Result<(String, bool), String>;

    /// Stops a hand-over. Returns the region's owner, and whether a hand-over is still in progress.
    ///
    /// # Errors
    /// As for [`hand_over`](Self::hand_over).
    fn stop(&mut self, region: &str) -> Result<(String, bool), String>;
}

#[derive(Debug)]
pub struct MoveOrder {
    pub to: MoveAddress,
    /// Secret that source and target have in common.
    pub ticket: Ticket,
    /// Random bytes for the connection's keys.
    pub ephemeral: [u8; 32],
    /// Whether the machines at source and target are only compared, and nothing is moved.
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Name of the compute node to which the machine moves; `None` if the move ended before it was known.
    pub target: Option<String>,
    /// Time that the guest was stopped, in microseconds: from QEMU's report of the stop to the target's
    /// report that the guest runs.
    pub stopped_us: Option<u64>,
    /// Length of QEMU's state in bytes.
    pub state_bytes: u64,
    /// Number of pages that were resident when the memory was suspended.
    pub resident_pages: u64,
}

enum PeerEvent {
    Said(TargetMessage),
    Gone(String),
}

struct Peer {
    sender: Arc<Mutex<SealedSender>>,
    events: Events<PeerEvent>,
    /// CN id of the target.
    cn: String,
}

/// A move of a machine away from this compute node.
pub struct Departure<'a> {
    machine: &'a MovableMachine,
    order: MoveOrder,
    manager: &'a mut dyn RegionManager,
    /// Set to cancel the move, as long as that is possible.
    cancelled: &'a AtomicBool,
    /// CN id of this compute node.
    own: String,
    peer: Option<Peer>,
    /// Thread that passes QEMU's state on; returns the number of bytes.
    relay: Option<JoinHandle<io::Result<u64>>>,
    was_running: bool,
    stopped: Option<Instant>,
    report: MoveReport,
}

type StepResult = Result<(), String>;

fn of_agent(error: ClientError) -> String {
    error.to_string()
}

impl<'a> Departure<'a> {
    pub fn new(
        machine: &'a MovableMachine,
        order: MoveOrder,
        manager: &'a mut dyn RegionManager,
        cancelled: &'a AtomicBool,
    ) -> Departure<'a> {
        Departure {
            machine,
            order,
            manager,
            cancelled,
            own: String::new(),
            peer: None,
            relay: None,
            was_running: false,
            stopped: None,
            report: MoveReport::default(),
        }
    }

    /// Carries the move out; calls `say` before each step.
    pub fn run(mut self, mut say: impl FnMut(&SourceStep)) -> (SourceEnd, MoveReport) {
        let mut decisions = SourceMove::new(self.order.dry_run);
        while let Some(step) = decisions.step().cloned() {
            say(&step);
            let before_order = decisions.is_before_order();
            let outcome = match self.carry_out(&step) {
                StepOutcome::Done if before_order && self.cancelled.load(Ordering::Relaxed) => {
                    StepOutcome::Failed("it was cancelled".to_owned())
                }
                outcome => outcome,
            };
            decisions.on(outcome);
        }
        let end = decisions.end().cloned();
        (end.unwrap_or_else(|| SourceEnd::Stayed(String::new())), self.report)
    }

    fn carry_out(&mut self, step: &SourceStep) -> StepOutcome {
        let done = |result: StepResult| result.map_or_else(StepOutcome::Failed, |()| StepOutcome::Done);
        match step {
            SourceStep::Connect => done(self.connect()),
            SourceStep::WriteBack => done(self.write_back()),
            SourceStep::Migrate => done(self.migrate()),
            SourceStep::SendState => done(self.send_state()),
            SourceStep::Suspend => done(self.suspend()),
            SourceStep::Order => {
                let to = self.target();
                let answer = self.manager.hand_over(&self.machine.region, &to);
                StepOutcome::Owner(self.owner(answer))
            }
            // This step is repeated until the manager's answer is clear, so it begins with a pause.
            SourceStep::Settle => {
                thread::sleep(ASK_INTERVAL);
                let answer = self.manager.stop(&self.machine.region);
                StepOutcome::Owner(self.owner(answer))
            }
            SourceStep::AwaitRunning => self.await_running(),
            SourceStep::TakeBack => {
                thread::sleep(ASK_INTERVAL);
                let answer = self.manager.hand_over(&self.machine.region, &self.own);
                StepOutcome::Owner(self.owner(answer))
            }
            SourceStep::Quit => done(self.execute("quit")),
            SourceStep::ServeAgain => done(self.serve_again()),
            SourceStep::Cancel => done(self.cancel()),
            SourceStep::Continue => done(self.go_on()),
            SourceStep::Abort(reason) => {
                self.abort(reason);
                StepOutcome::Done
            }
        }
    }

    fn execute(&self, command: &str) -> StepResult {
        self.machine.qmp().execute(command, json!({})).map(drop).map_err(|error| error.to_string())
    }

    fn target(&self) -> String {
        self.peer.as_ref().map(|peer| peer.cn.clone()).unwrap_or_default()
    }

    fn owner(&self, answer: Result<(String, bool), String>) -> RegionOwner {
        match answer {
            Ok((owner, false)) if owner == self.own => RegionOwner::Here,
            Ok((owner, false)) if owner == self.target() => RegionOwner::There,
            Ok((owner, false)) => RegionOwner::Unknown(format!("the region belongs to CN {owner}")),
            Ok((_, true)) => RegionOwner::Unknown("the hand-over is under way".to_owned()),
            Err(reason) => RegionOwner::Unknown(reason),
        }
    }

    fn connect(&mut self) -> StepResult {
        let to = self.order.to.clone();
        let failed = |error: io::Error| format!("cannot reach {to}: {error}");
        self.own = client::node(&self.machine.agent).map_err(of_agent)?.cn;
        let facts = {
            let mut qmp = self.machine.qmp();
            self.was_running = qmp.is_running().map_err(|error| error.to_string())?;
            MachineFacts::ask(&mut qmp).map_err(|error| error.to_string())?
        };
        let stream = to.connect().map_err(failed)?;
        let (mut sender, mut receiver) =
            channel::open(stream, &self.order.ticket, self.order.ephemeral).map_err(failed)?;
        let (region, bytes) = (self.machine.region.clone(), self.machine.bytes);
        sender.message(&SourceMessage::Hello { version: VERSION, region, bytes }).map_err(failed)?;
        let (cn, name, there) = match receiver.message(LAUNCH_MAX).map_err(failed)? {
            TargetMessage::Welcome { cn, name, facts } => (cn, name, facts),
            TargetMessage::Failed { reason } => return Err(format!("{to}: {reason}")),
            other => return Err(format!("{to} answered out of turn: {other:?}")),
        };
        let (said, events) = events();
        let body = move || {
            loop {
                let event = match receiver.record() {
                    Ok(Some(Record::Message(bytes))) => match serde_json::from_slice(bytes) {
                        Ok(message) => PeerEvent::Said(message),
                        Err(error) => PeerEvent::Gone(error.to_string()),
                    },
                    Ok(Some(Record::State(_))) => PeerEvent::Gone("it has sent a machine's state".to_owned()),
                    Ok(None) => PeerEvent::Gone("the connection to the target has ended".to_owned()),
                    Err(error) => PeerEvent::Gone(error.to_string()),
                };
                let last = matches!(event, PeerEvent::Gone(_));
                if said.send(event).is_err() || last {
                    return;
                }
            }
        };
        thread::Builder::new().name("move-messages".into()).spawn(body).map_err(failed)?;
        self.report.target = Some(name.clone());
        let same = cn == self.own;
        self.peer = Some(Peer { sender: Arc::new(Mutex::new(sender)), events, cn });
        if same {
            return Err(format!("{to} is on this compute node; a machine moves to another"));
        }
        let differences = facts.differences(&there, self.machine.bytes);
        if differences.is_empty() {
            return Ok(());
        }
        Err(format!("it cannot go on at {name}: {}", differences.join("; ")))
    }

    /// Has dirty pages written back while the guest runs, so that few are left when it is stopped.
    fn write_back(&mut self) -> StepResult {
        for _ in 0..ROUNDS {
            client::clean_all(&self.machine.agent, self.machine.space, false).map_err(of_agent)?;
            self.check(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Fails if the move was cancelled, or the target is gone; waits up to `limit` for a message.
    fn check(&mut self, limit: Duration) -> Result<Option<TargetMessage>, String> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err("it was cancelled".to_owned());
        }
        let peer = self.peer.as_ref().ok_or("there is no connection to the target")?;
        match peer.events.recv_timeout(limit) {
            Ok(PeerEvent::Said(TargetMessage::Failed { reason })) => Err(reason),
            Ok(PeerEvent::Said(message)) => Ok(Some(message)),
            Ok(PeerEvent::Gone(reason)) => Err(reason),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("the connection to the target has ended".to_owned()),
        }
    }

    /// Waits until the target has sent this message.
    fn expect(&mut self, expected: &TargetMessage, limit: Duration) -> StepResult {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            match self.check(LOOK_INTERVAL)? {
                Some(message) if message == *expected => return Ok(()),
                Some(other) => return Err(format!("the target answered out of turn: {other:?}")),
                None => {}
            }
        }
        Err(format!("the target has not answered within {limit:?}"))
    }

    fn say(&self, message: &SourceMessage) -> StepResult {
        let peer = self.peer.as_ref().ok_or("there is no connection to the target")?;
        let mut sender = peer.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.message(message).map_err(|error| format!("the target is not reached: {error}"))
    }

    fn migrate(&mut self) -> StepResult {
        let failed = |error: &dyn ToString| error.to_string();
        let (here, of_qemu) = UnixStream::pair().map_err(|error| failed(&error))?;
        {
            let mut qmp = self.machine.qmp();
            qmp.forget_statuses();
            qmp.set_capabilities(&[
                ("events", true),
                // QEMU then sends no shared memory; the region is shared memory.
                ("x-ignore-shared", true),
                // QEMU stops the guest and waits in `pre-switchover` until `migrate-continue`.
                ("pause-before-switchover", true),
            ])
            .map_err(|error| failed(&error))?;
            // The default limits the state to a fraction of what the network carries.
            qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 100_000_000_000_u64 }))
                .map_err(|error| failed(&error))?;
            qmp.give(STATE_FD, of_qemu.as_fd()).map_err(|error| failed(&error))?;
        }
        // QEMU has a duplicate of this descriptor. The relay thread finds the end of the state only after all
        // duplicates are closed.
        drop(of_qemu);
        let peer = self.peer.as_ref().ok_or("there is no connection to the target")?;
        let sender = Arc::clone(&peer.sender);
        let relay = thread::Builder::new().name("move-state".into()).spawn(move || pass_on(here, &sender));
        self.relay = Some(relay.map_err(|error| failed(&error))?);
        let uri = json!({ "uri": format!("fd:{STATE_FD}") });
        self.machine.qmp().execute("migrate", uri).map_err(|error| failed(&error))?;
        self.await_status("pre-switchover", None)?;
        self.stopped = Some(Instant::now());
        self.say(&SourceMessage::Stopped)
    }

    /// Waits until the migration has this status.
    fn await_status(&mut self, expected: &str, limit: Option<Duration>) -> StepResult {
        let since = Instant::now();
        loop {
            self.check(Duration::ZERO)?;
            let status = self.machine.qmp().next_status(LOOK_INTERVAL).map_err(|error| error.to_string())?;
            match status.as_deref() {
                Some(status) if status == expected => return Ok(()),
                Some("failed" | "cancelled") => {
                    let info = self.machine.qmp().execute("query-migrate", json!({})).unwrap_or_default();
                    let reason = info["error-desc"].as_str().unwrap_or("no reason was given").to_owned();
                    return Err(format!("QEMU's migration has failed: {reason}"));
                }
                _ if limit.is_some_and(|limit| since.elapsed() > limit) => {
                    return Err(format!("QEMU's migration has not reached `{expected}` in time"));
                }
                _ => {}
            }
        }
    }

    fn send_state(&mut self) -> StepResult {
        let state = json!({ "state": "pre-switchover" });
        self.machine.qmp().execute("migrate-continue", state).map_err(|error| error.to_string())?;
        self.await_status("completed", Some(STOP_MAX))?;
        let relay = self.relay.take().ok_or("QEMU's state is not passed on")?;
        let passed = relay.join().map_err(|_| "the thread that passes QEMU's state on has panicked")?;
        let bytes = passed.map_err(|error| format!("QEMU's state could not be passed on: {error}"))?;
        self.report.state_bytes = bytes;
        self.say(&SourceMessage::End { bytes })?;
        self.expect(&TargetMessage::StateHere { bytes }, STOP_MAX)
    }

    fn suspend(&mut self) -> StepResult {
        let (hot, zeros) =
            client::suspend(&self.machine.agent, self.machine.space, STOP_MAX).map_err(of_agent)?;
        self.report.resident_pages = hot.len() as u64;
        for part in zeros.chunks(NOTES_MAX) {
            self.say(&SourceMessage::Notes { hot: Vec::new(), zeros: part.to_vec() })?;
        }
        for part in hot.chunks(NOTES_MAX) {
            self.say(&SourceMessage::Notes { hot: part.to_vec(), zeros: Vec::new() })?;
        }
        self.say(&SourceMessage::Ready)?;
        self.expect(&TargetMessage::Waiting, STOP_MAX)
    }

    fn await_running(&mut self) -> StepOutcome {
        let until = Instant::now() + RUN_MAX;
        let Some(peer) = &self.peer else { return StepOutcome::Failed("there is no connection".to_owned()) };
        loop {
            match peer.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(PeerEvent::Said(TargetMessage::Arrived)) => {
                    let stopped = self.stopped.map(|since| since.elapsed().as_micros() as u64);
                    self.report.stopped_us = stopped.filter(|_| self.was_running);
                    return StepOutcome::Done;
                }
                Ok(PeerEvent::Said(TargetMessage::Failed { reason })) => {
                    return StepOutcome::FailedThere(reason);
                }
                Ok(PeerEvent::Said(_)) => {}
                Ok(PeerEvent::Gone(reason)) => return StepOutcome::Failed(reason),
                Err(RecvTimeoutError::Timeout) => {
                    return StepOutcome::Failed(format!(
                        "it has not reported within {RUN_MAX:?} that it runs"
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return StepOutcome::Failed("the connection to the target has ended".to_owned());
                }
            }
        }
    }

    fn serve_again(&mut self) -> StepResult {
        let until = Instant::now() + SERVE_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match client::serve_again(&self.machine.agent, self.machine.space, left) {
                Ok(()) => return Ok(()),
                // The agent's successor takes the memory over, and serves it.
                Err(ClientError::AgentGone(_) | ClientError::NoAgent { .. }) if !left.is_zero() => {
                    thread::sleep(ASK_INTERVAL);
                }
                Err(error) => return Err(format!("the guest's memory is not served: {error}")),
            }
        }
    }

    fn cancel(&mut self) -> StepResult {
        let cancelled = self.execute("migrate_cancel");
        // The relay thread ends when QEMU closes its descriptor.
        let until = Instant::now() + STOP_MAX;
        while self.relay.as_ref().is_some_and(|relay| !relay.is_finished()) && Instant::now() < until {
            thread::sleep(LOOK_INTERVAL);
        }
        self.relay = None;
        cancelled
    }

    fn go_on(&mut self) -> StepResult {
        if !self.was_running {
            return Ok(());
        }
        let mut qmp = self.machine.qmp();
        let continued = qmp.execute("cont", json!({}));
        match qmp.is_running() {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the guest is stopped, and does not go on: {continued:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn abort(&mut self, reason: &str) {
        let _ = self.say(&SourceMessage::Abort { reason: reason.to_owned() });
        if let Some(peer) = self.peer.take() {
            peer.sender.lock().unwrap_or_else(PoisonError::into_inner).shut_down();
        }
    }
}

/// Passes QEMU's state on until its end; returns the number of bytes.
fn pass_on(mut from: UnixStream, to: &Mutex<SealedSender>) -> io::Result<u64> {
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let got = from.read(&mut buffer)?;
        if got == 0 {
            return Ok(bytes);
        }
        to.lock().unwrap_or_else(PoisonError::into_inner).state(&buffer[..got])?;
        bytes += got as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!("10.0.0.2:7000".parse(), Ok(MoveAddress::Tcp("10.0.0.2:7000".into())));
        assert_eq!("[::1]:7000".parse(), Ok(MoveAddress::Tcp("[::1]:7000".into())));
        assert_eq!("unix:/run/x".parse(), Ok(MoveAddress::Unix("/run/x".into())));
        for wrong in ["", "host", "host:", ":7000", "unix:", "host:70000"] {
            assert!(wrong.parse::<MoveAddress>().is_err(), "{wrong}");
        }
    }
}
