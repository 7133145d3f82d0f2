//! The manager's process: the state machine that ships, over a state that survives it.
//!
//! A call is carried out, what it changes is committed, and only then it is answered. The process can be killed before
//! the commit, between commit and answer, or whenever nothing happens; the next one takes over what was committed.

use std::time::Duration;

use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::{CnId, Name, Watermark, lineage};
use cxloe_gmm::manager::liveness::NodeKey;
use cxloe_gmm::manager::{Change, Command, Manager, Options, State};
use cxloe_wire::time::Time;

use super::message::{Answer, Caller, Message, Request};
use super::network::ControlNetwork;
use crate::mistake::Mistake;
use crate::trace::Trace;

/// The wall clock when virtual time begins, in milliseconds.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// One command in this many is missing from what is committed by a manager that forgets some.
const FORGETS_EVERY: u64 = 3;

/// Where a manager is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// At once.
    Now,
    /// When it has carried out the next command that changes something, and has not committed it.
    BeforeCommit,
    /// When it has committed the next change, and has told nobody.
    AfterCommit,
}

/// A call that waits for something to change.
struct Poll {
    caller: Caller,
    call: u64,
    until: Time,
    awaited: Awaited,
}

enum Awaited {
    MemoryNode { name: Name, registration: u64 },
    ComputeNode { cn: CnId, registration: u64, after_event: u64 },
}

struct Process {
    manager: Manager,
    polls: Vec<Poll>,
}

/// The manager.
pub struct ManagerNode {
    committed: State,
    process: Option<Process>,
    /// Starts so far.
    runs: u64,
    seed: u64,
    node_timeout_ms: u64,
    /// When the next process starts, while there is none.
    up_at: Time,
    /// Where the process is to be killed, and for how long there is none then.
    kill: Option<(Kill, Duration)>,
    mistake: Option<Mistake>,
    /// The store as it was at some time before.
    older: State,
    /// The store, while the process runs over another one, and until when it does.
    put_away: Option<(State, Time)>,
    /// Commands committed, and forgotten, by a manager that forgets some.
    commands: u64,
    trace: Trace,
}

/// The process was killed meanwhile.
struct Killed;

fn now_ms(now: Time) -> u64 {
    EPOCH_MS + now.0 / 1_000_000
}

impl ManagerNode {
    /// A manager over an empty state, for whom nodes are silent after `node_timeout_ms`. It starts at once.
    pub fn new(seed: u64, node_timeout_ms: u64, trace: Trace) -> ManagerNode {
        ManagerNode {
            committed: State::default(),
            process: None,
            runs: 0,
            seed,
            node_timeout_ms,
            up_at: Time::ZERO,
            kill: None,
            mistake: None,
            older: State::default(),
            put_away: None,
            commands: 0,
            trace,
        }
    }

    /// Makes it break a rule.
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// What is committed, in the store that is the fabric's.
    pub fn state(&self) -> &State {
        self.put_away.as_ref().map_or(&self.committed, |(right, _)| right)
    }

    /// Kills the process; the next ones run over an older copy of the store, or over an `empty` one, until so much later.
    /// `false` if that is so already.
    pub fn mislead(&mut self, now: Time, empty: bool, lasts: Duration, away: Duration) -> bool {
        if self.put_away.is_some() {
            return false;
        }
        let wrong = if empty { State::default() } else { self.older.clone() };
        self.trace.say(now, "gmm", || format!("has another store, at {:?}", wrong.meta.watermark));
        let right = std::mem::replace(&mut self.committed, wrong);
        self.put_away = Some((right, now + lasts));
        self.die(now, away);
        true
    }

    /// Whether a manager over the wrong store, an empty one or the copy, would have seen all that a node has: such a node
    /// cannot tell it from the right one, follows it, and refuses the right one from then on.
    pub fn could_mislead(&self, empty: bool, seen: Watermark) -> bool {
        let terms: Vec<_> = self.older.leader_terms.values().cloned().collect();
        !empty && lineage::contains(&terms, self.older.meta.watermark, seen)
    }

    /// Keeps a copy of the store as it is.
    pub fn copy_store(&mut self) {
        self.older = self.state().clone();
    }

    /// Whether a process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The process that runs.
    pub fn manager(&self) -> Option<&Manager> {
        self.process.as_ref().map(|process| &process.manager)
    }

    /// Kills the process at that point; another one starts after `away`.
    pub fn kill(&mut self, now: Time, at: Kill, away: Duration) {
        match at {
            Kill::Now => self.die(now, away),
            _ => self.kill = Some((at, away)),
        }
    }

    fn die(&mut self, now: Time, away: Duration) {
        self.trace.say(now, "gmm", || format!("is killed, back after {away:?}"));
        self.process = None;
        self.kill = None;
        self.up_at = now + away;
    }

    /// Nothing befalls it any more.
    pub fn heal(&mut self) {
        self.kill = None;
        if let Some((_, until)) = &mut self.put_away {
            *until = Time::ZERO;
        }
    }

    /// When there is something to do next.
    pub fn deadline(&self) -> Option<Time> {
        let right = self.put_away.as_ref().map(|(_, until)| *until);
        let Some(process) = &self.process else { return right.into_iter().chain([self.up_at]).min() };
        let tick = process.manager.next_deadline_ms();
        let tick = tick.map(|ms| Time(ms.saturating_sub(EPOCH_MS).saturating_mul(1_000_000)));
        process.polls.iter().map(|poll| poll.until).chain(tick).chain(right).min()
    }

    /// Does what is due: starts, finds nodes silent, answers calls that have waited long enough.
    pub fn work(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some((right, _)) = self.put_away.take_if(|(_, until)| *until <= now) {
            self.trace.say(now, "gmm", || "has its store again".into());
            self.committed = right;
            self.die(now, Duration::ZERO);
        }
        if self.process.is_none() {
            if now < self.up_at {
                return;
            }
            self.start(now);
        }
        let due = self.manager().and_then(Manager::next_deadline_ms).is_some_and(|at| at <= now_ms(now));
        if due && self.apply(Command::Tick, now).is_err() {
            return;
        }
        self.answer_polls(now, net);
    }

    fn start(&mut self, now: Time) {
        self.runs += 1;
        let number = |what: u64| (self.seed ^ what).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let options = Options {
            node_timeout_ms: self.node_timeout_ms,
            new_fabric: number(0),
            run: number(self.runs),
            ..Options::default()
        };
        let (manager, outcome) = Manager::take_over(self.committed.clone(), options, now_ms(now))
            .expect("what was committed is no contradiction");
        outcome.changes.into_iter().for_each(|change| self.committed.apply(change));
        self.trace.say(now, "gmm", || format!("leads, {:?}", manager.watermark()));
        self.process = Some(Process { manager, polls: Vec::new() });
    }

    /// A message for the manager has arrived.
    pub fn hear(&mut self, message: Message, now: Time, net: &mut ControlNetwork) {
        if self.process.is_none() {
            return;
        }
        match message {
            Message::Call { caller, call, request } => {
                if let Ok(Some(answer)) = self.carry_out(caller, call, request, now) {
                    net.send(now, Message::Answer { caller, call, answer });
                }
            }
            Message::HungUp(node, registration) => {
                let same = |poll: &Poll| match (&poll.awaited, &node) {
                    (Awaited::MemoryNode { name, registration: of }, NodeKey::Memory(node)) => {
                        (name, *of) == (node, registration)
                    }
                    (Awaited::ComputeNode { cn, registration: of, .. }, NodeKey::Compute(node)) => {
                        (cn, *of) == (node, registration)
                    }
                    _ => false,
                };
                if let Some(process) = &mut self.process {
                    process.polls.retain(|poll| !same(poll));
                }
                // Killed or not, nobody waits.
                let _ = self.apply(Command::HungUp(node, registration), now);
            }
            Message::Answer { .. } => {}
        }
        self.answer_polls(now, net);
    }

    /// The answer, unless the call has to wait.
    fn carry_out(
        &mut self,
        caller: Caller,
        call: u64,
        request: Request,
        now: Time,
    ) -> Result<Option<Answer>, Killed> {
        let (command, wait_ms) = match request.clone() {
            Request::RegisterMemoryNode(node) => (Command::RegisterMemoryNode(node), 0),
            Request::SyncMemoryNode(name, sync) => {
                let wait_ms = sync.wait_ms;
                (Command::SyncMemoryNode(name, sync), wait_ms)
            }
            Request::ReportOrphans(name, report) => (Command::ReportOrphans(name, report), 0),
            Request::NotFollowed(said) => (Command::NotFollowed(said), 0),
            Request::RegisterComputeNode(node) => (Command::RegisterComputeNode(node), 0),
            Request::SyncComputeNode(cn, sync) => {
                let wait_ms = sync.wait_ms;
                (Command::SyncComputeNode(cn, sync), wait_ms)
            }
            // Whoever manages the fabric notices sooner or later.
            Request::Order(_) if self.put_away.is_some() => return Err(Killed),
            Request::Order(command) => (*command, 0),
        };
        if let Err((code, why)) = self.apply(command, now)? {
            return Ok(Some(Answer::Refused(code, why)));
        }
        let Some(process) = &mut self.process else { return Err(Killed) };
        let manager = &process.manager;
        let superseded = || Answer::Refused(ErrorCode::NotRegistered, "the registration is gone".into());
        Ok(match request {
            Request::RegisterMemoryNode(node) => {
                let registered = manager.memory_node_registered(&node.name, node.seen);
                Some(registered.map_or_else(superseded, |node| Answer::MemoryNodeRegistered(Box::new(node))))
            }
            Request::RegisterComputeNode(node) => {
                let registered = manager.compute_node_registered(node.cn_id, node.seen);
                Some(registered.map_or_else(superseded, |node| Answer::ComputeNodeRegistered(Box::new(node))))
            }
            Request::SyncMemoryNode(name, sync) => {
                let awaited = Awaited::MemoryNode { name, registration: sync.registration };
                process.wait(caller, call, awaited, wait_ms, now);
                None
            }
            Request::SyncComputeNode(cn, sync) => {
                let (registration, after_event) = (sync.registration, sync.after_event);
                let awaited = Awaited::ComputeNode { cn, registration, after_event };
                process.wait(caller, call, awaited, wait_ms, now);
                None
            }
            Request::ReportOrphans(..) | Request::NotFollowed(_) | Request::Order(_) => Some(Answer::Done),
        })
    }

    /// Carries a command out and commits what it changes, unless the process is killed on the way.
    #[allow(clippy::type_complexity, reason = "killed, refused or done")]
    fn apply(&mut self, command: Command, now: Time) -> Result<Result<(), (ErrorCode, String)>, Killed> {
        let Some(process) = &mut self.process else { return Err(Killed) };
        let outcome = match process.manager.apply(command, now_ms(now)) {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err((error.code(), error.to_string()))),
        };
        if outcome.changes.is_empty() {
            return Ok(Ok(()));
        }
        if let Some((Kill::BeforeCommit, away)) = self.kill {
            self.die(now, away);
            return Err(Killed);
        }
        self.commit(outcome.changes);
        if let Some((Kill::AfterCommit, away)) = self.kill {
            self.die(now, away);
            return Err(Killed);
        }
        Ok(Ok(()))
    }

    fn commit(&mut self, changes: Vec<Change>) {
        for change in changes {
            if self.mistake == Some(Mistake::ForgetsCommits) && matches!(change, Change::CommandIssued(..)) {
                self.commands += 1;
                if self.commands.is_multiple_of(FORGETS_EVERY) {
                    continue;
                }
            }
            self.committed.apply(change);
        }
    }

    /// Answers the calls for which there is something to say, or that have waited long enough.
    fn answer_polls(&mut self, now: Time, net: &mut ControlNetwork) {
        let Some(Process { manager, polls }) = &mut self.process else { return };
        let mut at = 0;
        while at < polls.len() {
            if !polls[at].is_due(manager) && now < polls[at].until {
                at += 1;
                continue;
            }
            let poll = polls.remove(at);
            let (caller, call) = (poll.caller, poll.call);
            net.send(now, Message::Answer { caller, call, answer: poll.answer(manager) });
        }
    }
}

impl Process {
    fn wait(&mut self, caller: Caller, call: u64, awaited: Awaited, wait_ms: u64, now: Time) {
        let wait = Duration::from_millis(wait_ms.min(self.manager.heartbeat_ms()));
        self.polls.push(Poll { caller, call, until: now + wait, awaited });
    }
}

impl Poll {
    fn is_registered(&self, manager: &Manager) -> bool {
        match &self.awaited {
            Awaited::MemoryNode { name, registration } => {
                let node = manager.state().memory_nodes.get(name);
                node.is_some_and(|node| node.registration == *registration)
            }
            Awaited::ComputeNode { cn, registration, .. } => {
                let node = manager.state().compute_nodes.get(cn);
                node.is_some_and(|node| node.registration == *registration)
            }
        }
    }

    fn is_due(&self, manager: &Manager) -> bool {
        !self.is_registered(manager)
            || match &self.awaited {
                Awaited::MemoryNode { name, .. } => manager.state().commands_of(name).next().is_some(),
                Awaited::ComputeNode { cn, after_event, .. } => manager.regions_changed(*cn, *after_event),
            }
    }

    fn answer(&self, manager: &Manager) -> Answer {
        if !self.is_registered(manager) {
            return Answer::Refused(ErrorCode::NotRegistered, "another registration took over".into());
        }
        match &self.awaited {
            Awaited::MemoryNode { name, .. } => {
                Answer::MemoryNodeSynced(Box::new(manager.memory_node_synced(name)))
            }
            Awaited::ComputeNode { cn, after_event, .. } => {
                Answer::ComputeNodeSynced(Box::new(manager.compute_node_synced(*cn, *after_event)))
            }
        }
    }
}
