//! Carries out the steps that [`TargetMove`] decides on: all I/O of a move at its target.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver as Events, RecvTimeoutError, channel as events};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::RefusalReason;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::channel::{Record, SealedReceiver, SealedSender};
use super::facts::MachineFacts;
use super::machine::MovableMachine;
use super::message::{SourceMessage, TargetMessage};
use super::qmp::QmpError;
use super::sender::STATE_FD;
use super::target::{TargetEnd, TargetMove, TargetOutcome, TargetStep};

/// Maximum number of bytes of state that wait for QEMU while the guest still runs at the source.
const QUEUE_MAX: usize = 64 << 20;
/// Maximum time that one request to the agent waits for the region, in milliseconds.
const LOOK_MS: u64 = 500;
/// Interval of checks of QEMU's status.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of messages to the user during a long wait.
const SAY_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of pages in one request to the agent.
const NOTES_MAX: usize = 2000;

enum SourceEvent {
    Said(SourceMessage),
    /// All of the state has been received: its length in bytes.
    End(u64),
    Gone,
}

/// Received state that has not been passed to QEMU yet. QEMU stops reading when it waits for an absent page of guest
/// memory; the queue lets this process read the messages behind the state meanwhile.
#[derive(Default)]
struct StateQueue {
    parts: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether the queue accepts any amount of state, so that the messages behind the state are read. Set when the
    /// guest is stopped.
    unlimited: bool,
    ended: bool,
}

#[derive(Default)]
struct SharedQueue {
    queue: Mutex<StateQueue>,
    changed: Condvar,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, StateQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, part: &[u8]) {
        let full = |queue: &mut StateQueue| queue.bytes > QUEUE_MAX && !queue.unlimited && !queue.ended;
        let mut queue = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        queue.bytes += part.len();
        queue.parts.push_back(part.to_vec());
        self.changed.notify_all();
    }

    fn set(&self, change: impl FnOnce(&mut StateQueue)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Vec<u8>> {
        let empty = |queue: &mut StateQueue| queue.parts.is_empty() && !queue.ended;
        let mut queue = self.changed.wait_while(self.lock(), empty).unwrap_or_else(PoisonError::into_inner);
        let part = queue.parts.pop_front()?;
        queue.bytes -= part.len();
        self.changed.notify_all();
        Some(part)
    }
}

/// A move of a machine to this compute node.
pub struct Arrival<'a> {
    machine: &'a MovableMachine,
    /// Process id of QEMU.
    pid: u32,
    sender: SealedSender,
    receiver: Option<SealedReceiver>,
    queue: Arc<SharedQueue>,
    events: Option<Events<SourceEvent>>,
    connected: bool,
    /// Whether QEMU has loaded its state.
    loaded: bool,
    /// Time of the last message to the user during a wait.
    said: Instant,
}

type StepResult = Result<(), TargetOutcome>;

fn failed(error: impl ToString) -> TargetOutcome {
    TargetOutcome::Failed(error.to_string())
}

impl<'a> Arrival<'a> {
    /// Creates the move of `machine` to this compute node. QEMU is the process `pid`; the source's first
    /// message was already read from the connection.
    pub fn new(
        machine: &'a MovableMachine,
        pid: u32,
        sender: SealedSender,
        receiver: SealedReceiver,
    ) -> Arrival<'a> {
        Arrival {
            machine,
            pid,
            sender,
            receiver: Some(receiver),
            queue: Arc::default(),
            events: None,
            connected: true,
            loaded: false,
            said: Instant::now(),
        }
    }

    /// Carries the move out; calls `say` with a message for the user if a wait takes long.
    pub fn run(mut self, mut say: impl FnMut(&str)) -> TargetEnd {
        let mut decisions = TargetMove::default();
        while let Some(step) = decisions.step() {
            let result = match step {
                TargetStep::Launch => self.launch(),
                TargetStep::Receive => self.receive(),
                TargetStep::TakeNotes => self.take_notes(),
                TargetStep::AwaitRegion => self.await_region(&mut say),
                TargetStep::Finish => self.finish(&mut say),
                TargetStep::Run => self.run_guest(),
                TargetStep::EndMachine => {
                    self.end_machine(decisions.is_returnable().then(|| decisions.reason().to_owned()));
                    Ok(())
                }
            };
            decisions.on(result.err().unwrap_or(TargetOutcome::Done));
        }
        self.queue.set(|queue| queue.ended = true);
        self.sender.shut_down();
        decisions.end().cloned().unwrap_or(TargetEnd::Gone(String::new()))
    }

    fn launch(&mut self) -> StepResult {
        let node = client::node(&self.machine.agent).map_err(failed)?;
        let (here, of_qemu) = UnixStream::pair().map_err(failed)?;
        let facts = {
            let mut qmp = self.machine.qmp();
            qmp.set_capabilities(&[("events", true), ("x-ignore-shared", true)]).map_err(failed)?;
            let facts = MachineFacts::ask(&mut qmp).map_err(failed)?;
            qmp.give(STATE_FD, of_qemu.as_fd()).map_err(failed)?;
            qmp.execute("migrate-incoming", json!({ "uri": format!("fd:{STATE_FD}") })).map_err(failed)?;
            facts
        };
        let queue = Arc::clone(&self.queue);
        thread::Builder::new()
            .name("move-state".into())
            .spawn(move || pass_on(&queue, here))
            .map_err(failed)?;
        let receiver = self.receiver.take().ok_or_else(|| failed("there is no connection"))?;
        let (said, events) = events();
        let queue = Arc::clone(&self.queue);
        thread::Builder::new()
            .name("move-messages".into())
            .spawn(move || read(receiver, &queue, |event| said.send(event).is_ok()))
            .map_err(failed)?;
        self.events = Some(events);
        let welcome = TargetMessage::Welcome { cn: node.cn, name: node.name, facts };
        self.sender.message(&welcome).map_err(failed)
    }

    /// The next event of the connection, within `limit`.
    fn event(&mut self, limit: Duration) -> Result<Option<SourceEvent>, TargetOutcome> {
        if !self.connected {
            thread::sleep(limit);
            return Ok(None);
        }
        let events = self.events.as_ref().ok_or_else(|| failed("there is no connection"))?;
        match events.recv_timeout(limit) {
            Ok(SourceEvent::Said(SourceMessage::Abort { reason })) => Err(TargetOutcome::Aborted(reason)),
            Ok(SourceEvent::Gone) | Err(RecvTimeoutError::Disconnected) => {
                self.connected = false;
                Err(TargetOutcome::Disconnected)
            }
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Fails if QEMU has given its migration up, or has ended.
    fn check_qemu(&mut self) -> StepResult {
        self.await_status(Duration::ZERO)
    }

    /// Takes the next status of QEMU's migration, if one comes within `limit`.
    fn await_status(&mut self, limit: Duration) -> StepResult {
        let status = self.machine.qmp().next_status(limit).map_err(failed)?;
        match status.as_deref() {
            Some("failed") => Err(failed("QEMU could not load the machine's state; its messages say why")),
            Some("completed") => {
                self.loaded = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self) -> StepResult {
        loop {
            self.check_qemu()?;
            match self.event(LOOK_INTERVAL)? {
                Some(SourceEvent::Said(SourceMessage::Stopped)) | None => {}
                Some(SourceEvent::End(bytes)) => {
                    // QEMU reports some errors as soon as it has read the state.
                    self.check_qemu()?;
                    return self.sender.message(&TargetMessage::StateHere { bytes }).map_err(failed);
                }
                Some(SourceEvent::Said(other)) => {
                    return Err(failed(format!("the source sent out of turn: {other:?}")));
                }
                Some(SourceEvent::Gone) => return Err(TargetOutcome::Disconnected),
            }
        }
    }

    fn take_notes(&mut self) -> StepResult {
        loop {
            match self.event(LOOK_INTERVAL)? {
                None => self.check_qemu()?,
                Some(SourceEvent::Said(SourceMessage::Notes { hot, zeros })) => {
                    let (agent, space) = (&self.machine.agent, self.machine.space);
                    for part in hot.chunks(NOTES_MAX) {
                        client::note(agent, space, part.to_vec(), Vec::new()).map_err(failed)?;
                    }
                    for part in zeros.chunks(NOTES_MAX) {
                        client::note(agent, space, Vec::new(), part.to_vec()).map_err(failed)?;
                    }
                }
                Some(SourceEvent::Said(SourceMessage::Ready)) => {
                    return self.sender.message(&TargetMessage::Waiting).map_err(failed);
                }
                Some(_) => return Err(failed("the source sent out of turn")),
            }
        }
    }

    fn await_region(&mut self, say: &mut impl FnMut(&str)) -> StepResult {
        let mut refused = None;
        loop {
            let wait = Duration::from_millis(LOOK_MS);
            match client::serve_again(&self.machine.agent, self.machine.space, wait) {
                Ok(()) => return Ok(()),
                // The region is not attached at this compute node yet.
                Err(ClientError::Refused { reason: RefusalReason::NoRegion(_), .. }) => {}
                // The agent has ended or was replaced; another attempt is made, because a new agent takes over the
                // memory.
                Err(ClientError::AgentGone(_) | ClientError::NoAgent { .. } | ClientError::Silent { .. }) => {
                    thread::sleep(wait);
                }
                // The agent refuses without a wait, maybe for as long as nobody changes something.
                Err(error) => {
                    let why = format!("the region's memory is not served yet: {error}");
                    if refused.as_ref() != Some(&why) {
                        say(&why);
                        refused = Some(why);
                    }
                    thread::sleep(wait);
                }
            }
            // Signal 0 only tests whether the process exists.
            if kill(Pid::from_raw(self.pid.cast_signed()), None).is_err() {
                return Err(failed("QEMU has ended"));
            }
            if self.said.elapsed() >= SAY_INTERVAL {
                self.said = Instant::now();
                say(
                    "waiting for the region, with all that the machine needs beside it; end this only if the machine runs \
                     at its source",
                );
            }
            self.event(Duration::ZERO)?;
        }
    }

    /// Waits until QEMU has loaded its state, however long that takes while memory nodes are away: the source may have
    /// given up waiting and ended the machine there.
    fn finish(&mut self, say: &mut impl FnMut(&str)) -> StepResult {
        while !self.loaded {
            self.await_status(LOOK_INTERVAL)?;
            if self.said.elapsed() >= SAY_INTERVAL {
                self.said = Instant::now();
                say("waiting for QEMU to load the machine's state");
            }
        }
        Ok(())
    }

    fn run_guest(&mut self) -> StepResult {
        let mut qmp = self.machine.qmp();
        // QEMU may be silent because it waits for a page. The guest runs as soon as the page has arrived, and the
        // command has no effect on a guest that runs.
        while let Err(error) = qmp.execute("cont", json!({})) {
            if !matches!(error, QmpError::Silent(_)) {
                return Err(failed(error));
            }
        }
        // An error is ignored: the machine runs here even if the source does not receive this message.
        let _ = self.sender.message(&TargetMessage::Arrived);
        // QEMU sends frames from the guest's address, by which switches learn the guest's new location.
        let rounds = json!({ "initial": 50, "max": 550, "rounds": 5, "step": 100 });
        // An error is ignored: a machine without a network card has nothing to announce.
        let _ = qmp.execute("announce-self", rounds);
        Ok(())
    }

    fn end_machine(&mut self, reason: Option<String>) {
        // Killed, because QEMU may not answer: its main loop may wait for a page that never arrives.
        let _ = kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGKILL);
        if let Some(reason) = reason {
            let _ = self.sender.message(&TargetMessage::Failed { reason });
        }
    }
}

/// Writes state to QEMU as it arrives.
fn pass_on(queue: &SharedQueue, mut to: UnixStream) {
    while let Some(part) = queue.pop() {
        if to.write_all(&part).is_err() {
            // Only drops the rest of the state: QEMU's status shows the reason why it has stopped reading.
            queue.set(|queue| queue.unlimited = true);
        }
    }
}

/// Reads the connection to its end.
fn read(mut receiver: SealedReceiver, queue: &SharedQueue, send: impl Fn(SourceEvent) -> bool) {
    let mut bytes = 0;
    loop {
        let event = match receiver.record() {
            Ok(Some(Record::State(part))) => {
                bytes += part.len() as u64;
                queue.push(part);
                continue;
            }
            Ok(Some(Record::Message(text))) => match serde_json::from_slice(text) {
                Ok(SourceMessage::End { bytes: all }) if all == bytes => SourceEvent::End(all),
                Ok(SourceMessage::End { .. }) | Err(_) => SourceEvent::Gone,
                Ok(message) => SourceEvent::Said(message),
            },
            Ok(None) | Err(_) => SourceEvent::Gone,
        };
        match &event {
            SourceEvent::Said(SourceMessage::Stopped) => queue.set(|queue| queue.unlimited = true),
            SourceEvent::End(_) => queue.set(|queue| queue.ended = true),
            _ => {}
        }
        let last = matches!(event, SourceEvent::Gone);
        if !send(event) || last {
            return;
        }
    }
}

/// Reads the first message of a source, within `limit`: the region's name and size.
///
/// # Errors
/// Silence, or anything but such a message of this release.
pub fn greet(receiver: &mut SealedReceiver, limit: Duration) -> io::Result<(String, u64)> {
    match receiver.message(limit)? {
        SourceMessage::Hello { version, region, bytes } if version == super::message::VERSION => {
            Ok((region, bytes))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the source is of another release")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use cxloe_client::message::{self, AgentAnswer, AgentRequest, REQUEST_MAX};

    use super::super::channel::{self, Stream};
    use super::super::qmp::Qmp;
    use super::super::ticket::Ticket;
    use super::*;

    /// Answers each command except the first `cont`, until the connection ends.
    fn answer_late(mut qemu: UnixStream) {
        let mut conts = 0;
        for line in BufReader::new(qemu.try_clone().unwrap()).lines().map_while(Result::ok) {
            let command: serde_json::Value = serde_json::from_str(&line).unwrap();
            conts += u32::from(command["execute"] == "cont");
            if command["execute"] != "cont" || conts > 1 {
                let answer = json!({ "return": {}, "id": command["id"] });
                qemu.write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
        }
    }

    /// A move to a machine whose QEMU is `qemu` and whose agent is at `agent`, with the source's receiver.
    fn arrival<T>(
        qemu: Qmp,
        agent: PathBuf,
        check: impl FnOnce(&mut Arrival<'_>, &mut SealedReceiver) -> T,
    ) -> T {
        let (source, target) = UnixStream::pair().unwrap();
        let opened =
            thread::spawn(move || channel::open(Stream::Unix(source), &Ticket::of([1; 32]), [2; 32]));
        let (sender, receiver) =
            channel::accept(Stream::Unix(target), &Ticket::of([1; 32]), [3; 32]).unwrap();
        let (_of_source, mut to_source) = opened.join().unwrap().unwrap();
        let machine = MovableMachine::of(qemu, agent, 1, "web".into(), 4096);
        check(&mut Arrival::new(&machine, std::process::id(), sender, receiver), &mut to_source)
    }

    #[test]
    fn a_guest_runs_although_qemu_is_silent_at_first() {
        let (here, of_qemu) = UnixStream::pair().unwrap();
        thread::spawn(move || answer_late(of_qemu));
        let mut qmp = Qmp::begin(here).unwrap();
        qmp.limit = Duration::from_millis(200);
        arrival(qmp, "/agent".into(), |arrival, to_source| {
            assert!(arrival.run_guest().is_ok());
            let said: TargetMessage = to_source.message(Duration::from_secs(10)).unwrap();
            assert_eq!(said, TargetMessage::Arrived);
        });
    }

    /// Acts as an agent that refuses a request for each of the reasons, and then carries one out.
    fn refuse(listener: &UnixListener, reasons: Vec<RefusalReason>) {
        let answers = reasons.into_iter().map(AgentAnswer::Refused).chain([AgentAnswer::Done]);
        for answer in answers {
            let (mut socket, _) = listener.accept().unwrap();
            let _: AgentRequest = message::read(&mut socket, REQUEST_MAX).unwrap();
            message::write(&mut socket, &answer).unwrap();
        }
    }

    #[test]
    fn a_reason_why_memory_is_not_served_is_told_once() {
        let (here, of_qemu) = UnixStream::pair().unwrap();
        thread::spawn(move || answer_late(of_qemu));
        let qmp = Qmp::begin(here).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&agent).unwrap();
        let larger = RefusalReason::OtherSize { region: "web".into(), bytes: 8192, expected: 4096 };
        let reasons = vec![larger.clone(), larger, RefusalReason::NoSpace];
        thread::spawn(move || refuse(&listener, reasons));
        let mut told = Vec::new();
        arrival(qmp, agent, |arrival, _| {
            // A source that is gone does not end the wait, and its end is no news.
            arrival.connected = false;
            assert!(arrival.await_region(&mut |news: &str| told.push(news.to_owned())).is_ok());
        });
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("8192 bytes") && told[1].contains("not mapped any more"), "{told:?}");
    }
}
