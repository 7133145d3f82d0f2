//! The manager's process: the production state machine, over a store that survives the process.
//!
//! A call is executed and its change is committed; only then it is answered. The process can be killed before the
//! commit, between commit and answer, or between calls. The next process takes over the committed state.

use std::time::Duration;

use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::{CnId, Name, Watermark, lineage};
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_gmm_core::manager::{Change, Command, FabricState, Manager, Options};
use cxloe_wire::machine::{self, StateMachine};
use cxloe_wire::time::Time;

use super::message::{Caller, ControlMessage, ManagerCall, ManagerReply};
use super::network::ControlNetwork;
use crate::planted_fault::PlantedFault;
use crate::trace::Trace;
use crate::violation::InvariantViolation;

/// Wall-clock time at the start of virtual time, in milliseconds since the Unix epoch.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// The planted fault that forgets commits loses one of this number of commands.
const FORGETS_EVERY: u64 = 3;

/// Point at which the manager's process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// At once, between two calls.
    Now,
    /// During the next command that changes the state, after its execution and before its commit.
    BeforeCommit,
    /// After the next commit, before the answer is sent.
    AfterCommit,
}

/// A sync call that waits for a change (a long poll).
struct Poll {
    caller: Caller,
    call: u64,
    until: Time,
    awaited: AwaitedChange,
}

enum AwaitedChange {
    MemoryNode { name: Name, registration: u64 },
    ComputeNode { cn: CnId, registration: u64, after_event: u64 },
}

struct Process {
    manager: Manager,
    polls: Vec<Poll>,
}

/// The simulated manager across all its processes, with the store and the point at which the current process is to be
/// killed.
pub struct ManagerNode {
    committed: FabricState,
    process: Option<Process>,
    /// Number of processes so far.
    runs: u64,
    seed: u64,
    node_timeout_ms: u64,
    /// Time at which the next process starts, if none runs.
    up_at: Time,
    /// Point at which the process is to be killed, and the time from then to the start of the next process.
    kill: Option<(KillPoint, Duration)>,
    mistake: Option<PlantedFault>,
    /// Earlier state of the store, which stands for a backup.
    older: FabricState,
    /// The genuine store while the process uses a wrong one, and the time at which the genuine store is restored.
    put_away: Option<(FabricState, Time)>,
    /// Number of commands issued so far, by which the planted fault selects the commands to lose.
    commands: u64,
    trace: Trace,
}

/// Reason why a call has no answer: the process was killed during it.
struct ProcessKilled;

fn now_ms(now: Time) -> u64 {
    EPOCH_MS + now.0 / 1_000_000
}

/// Time at the manager: that of the wall clock, of which it gets whole milliseconds.
fn wall(now: Time) -> Time {
    Time::from_millis(now_ms(now))
}

impl ManagerNode {
    /// Makes a manager over an empty store, which regards a node as unreachable after `node_timeout_ms` of
    /// silence. The first process starts at once.
    pub fn new(seed: u64, node_timeout_ms: u64, trace: Trace) -> ManagerNode {
        ManagerNode {
            committed: FabricState::default(),
            process: None,
            runs: 0,
            seed,
            node_timeout_ms,
            up_at: Time::ZERO,
            kill: None,
            mistake: None,
            older: FabricState::default(),
            put_away: None,
            commands: 0,
            trace,
        }
    }

    /// Makes the manager break a rule on purpose.
    pub fn plant(&mut self, mistake: PlantedFault) {
        self.mistake = Some(mistake);
    }

    /// Returns the committed state of the genuine store.
    pub fn state(&self) -> &FabricState {
        self.put_away.as_ref().map_or(&self.committed, |(right, _)| right)
    }

    /// Kills the process; the next one starts after `away`. For the time `lasts`, processes use an older copy of the
    /// store or, if `empty`, an empty store. Returns false if a wrong store is in use already.
    pub(crate) fn mislead(&mut self, now: Time, empty: bool, lasts: Duration, away: Duration) -> bool {
        if self.put_away.is_some() {
            return false;
        }
        let wrong = if empty { FabricState::default() } else { self.older.clone() };
        self.trace.log(now, "gmm", || format!("has another store, at {:?}", wrong.meta.watermark));
        let right = std::mem::replace(&mut self.committed, wrong);
        self.put_away = Some((right, now + lasts));
        self.die(now, away);
        true
    }

    /// Returns true if the wrong store (an empty one or the older copy) contains all events up to `seen`, the last one
    /// that a node has received. Such a node could not detect the wrong store: it would follow that manager, and refuse
    /// the genuine one afterwards.
    pub(crate) fn could_mislead(&self, empty: bool, seen: Watermark) -> bool {
        let terms: Vec<_> = self.older.leader_terms.values().cloned().collect();
        !empty && lineage::contains(&terms, self.older.meta.watermark, seen)
    }

    /// Copies the genuine store, for use as the older store in a later call of [`Self::mislead`].
    pub(crate) fn copy_store(&mut self) {
        self.older = self.state().clone();
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Returns the state machine of the running process.
    pub fn manager(&self) -> Option<&Manager> {
        self.process.as_ref().map(|process| &process.manager)
    }

    /// Kills the process at the point `at`; the next process starts after `away`.
    pub fn kill(&mut self, now: Time, at: KillPoint, away: Duration) {
        match at {
            KillPoint::Now => self.die(now, away),
            _ => self.kill = Some((at, away)),
        }
    }

    fn die(&mut self, now: Time, away: Duration) {
        self.trace.log(now, "gmm", || format!("is killed, back after {away:?}"));
        self.process = None;
        self.kill = None;
        self.up_at = now + away;
    }

    /// Cancels pending kills, and ends the use of a wrong store.
    pub fn heal(&mut self) {
        self.kill = None;
        if let Some((_, until)) = &mut self.put_away {
            *until = Time::ZERO;
        }
    }

    /// Returns the time of the manager's next action.
    pub fn deadline(&self) -> Option<Time> {
        let right = self.put_away.as_ref().map(|(_, until)| *until);
        let Some(process) = &self.process else { return right.into_iter().chain([self.up_at]).min() };
        let tick = process.manager.deadline();
        let tick = (!tick.is_never()).then(|| Time(tick.at.0.saturating_sub(wall(Time::ZERO).0)));
        process.polls.iter().map(|poll| poll.until).chain(tick).chain(right).min()
    }

    /// Performs the actions that are due: starts a process, marks silent nodes as unreachable, answers calls
    /// that have waited long enough.
    pub fn work(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some((right, _)) = self.put_away.take_if(|(_, until)| *until <= now) {
            self.trace.log(now, "gmm", || "has its store again".into());
            self.committed = right;
            // The process still has the wrong store's content in its memory, so the process is killed and replaced.
            self.die(now, Duration::ZERO);
        }
        if self.process.is_none() {
            if now < self.up_at {
                return;
            }
            self.start(now);
        }
        let due = self.manager().is_some_and(|manager| manager.deadline().is_due(wall(now)));
        if due && self.apply(Command::Tick, now).is_err() {
            return;
        }
        self.answer_polls(now, net);
    }

    /// Checks, after the work at `now`, that the process drives its manager by the contract of machines.
    ///
    /// # Errors
    /// Returns the breach of the contract.
    pub(crate) fn check_machines(&self, now: Time) -> Result<(), InvariantViolation> {
        let checked = self.manager().map_or(Ok(()), |manager| machine::check(manager, wall(now)));
        checked.map_err(|breach| InvariantViolation::Rule(format!("gmm {breach}")))
    }

    fn start(&mut self, now: Time) {
        self.runs += 1;
        // The lowest bit is set, because the number 0 stands for "no run".
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
        self.trace.log(now, "gmm", || format!("leads, {:?}", manager.watermark()));
        self.process = Some(Process { manager, polls: Vec::new() });
    }

    /// Handles a message to the manager; without a process the message is lost.
    pub fn handle(&mut self, message: ControlMessage, now: Time, net: &mut ControlNetwork) {
        if self.process.is_none() {
            return;
        }
        match message {
            ControlMessage::Call { caller, call, request } => {
                if let Ok(Some(answer)) = self.carry_out(caller, call, request, now) {
                    net.send(now, ControlMessage::Answer { caller, call, answer });
                }
            }
            ControlMessage::HungUp(node, registration) => {
                let same = |poll: &Poll| match (&poll.awaited, &node) {
                    (AwaitedChange::MemoryNode { name, registration: of }, NodeKey::Memory(node)) => {
                        (name, *of) == (node, registration)
                    }
                    (AwaitedChange::ComputeNode { cn, registration: of, .. }, NodeKey::Compute(node)) => {
                        (cn, *of) == (node, registration)
                    }
                    _ => false,
                };
                if let Some(process) = &mut self.process {
                    process.polls.retain(|poll| !same(poll));
                }
                // The result is ignored: the node has closed its connection and waits for no answer.
                let _ = self.apply(Command::HungUp(node, registration), now);
            }
            ControlMessage::Answer { .. } => {}
        }
        self.answer_polls(now, net);
    }

    /// Executes a request. Returns the answer, or `None` if the call has to wait for a change.
    fn carry_out(
        &mut self,
        caller: Caller,
        call: u64,
        request: ManagerCall,
        now: Time,
    ) -> Result<Option<ManagerReply>, ProcessKilled> {
        let (command, wait_ms) = match request.clone() {
            ManagerCall::RegisterMemoryNode(node) => (Command::RegisterMemoryNode(node), 0),
            ManagerCall::SyncMemoryNode(name, sync) => {
                let wait_ms = sync.wait_ms;
                (Command::SyncMemoryNode(name, sync), wait_ms)
            }
            ManagerCall::ReportOrphans(name, report) => (Command::ReportOrphans(name, report), 0),
            ManagerCall::NotFollowed(said) => (Command::NotFollowed(said), 0),
            ManagerCall::RegisterComputeNode(node) => (Command::RegisterComputeNode(node), 0),
            ManagerCall::SyncComputeNode(cn, sync) => {
                let wait_ms = sync.wait_ms;
                (Command::SyncComputeNode(cn, sync), wait_ms)
            }
            // An operator would notice the wrong store, so the operator's orders are dropped while the manager uses
            // one.
            ManagerCall::Order(_) if self.put_away.is_some() => return Err(ProcessKilled),
            ManagerCall::Order(command) => (*command, 0),
        };
        if let Err((code, why)) = self.apply(command, now)? {
            return Ok(Some(ManagerReply::Refused(code, why)));
        }
        let Some(process) = &mut self.process else { return Err(ProcessKilled) };
        let manager = &process.manager;
        let superseded =
            || ManagerReply::Refused(ErrorCode::NotRegistered, "the registration is gone".into());
        Ok(match request {
            ManagerCall::RegisterMemoryNode(node) => {
                let registered = manager.memory_node_registered(&node.name, node.seen);
                Some(
                    registered
                        .map_or_else(superseded, |node| ManagerReply::MemoryNodeRegistered(Box::new(node))),
                )
            }
            ManagerCall::RegisterComputeNode(node) => {
                let registered = manager.compute_node_registered(node.cn_id, node.seen);
                Some(
                    registered
                        .map_or_else(superseded, |node| ManagerReply::ComputeNodeRegistered(Box::new(node))),
                )
            }
            ManagerCall::SyncMemoryNode(name, sync) => {
                let awaited = AwaitedChange::MemoryNode { name, registration: sync.registration };
                process.wait(caller, call, awaited, wait_ms, now);
                None
            }
            ManagerCall::SyncComputeNode(cn, sync) => {
                let (registration, after_event) = (sync.registration, sync.after_event);
                let awaited = AwaitedChange::ComputeNode { cn, registration, after_event };
                process.wait(caller, call, awaited, wait_ms, now);
                None
            }
            ManagerCall::ReportOrphans(..) | ManagerCall::NotFollowed(_) | ManagerCall::Order(_) => {
                Some(ManagerReply::Done)
            }
        })
    }

    /// Executes a command and commits its change, unless the process is killed before or after the commit.
    #[allow(clippy::type_complexity, reason = "killed, refused or done")]
    fn apply(
        &mut self,
        command: Command,
        now: Time,
    ) -> Result<Result<(), (ErrorCode, String)>, ProcessKilled> {
        let Some(process) = &mut self.process else { return Err(ProcessKilled) };
        let outcome = match process.manager.apply(command, now_ms(now)) {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err((error.code(), error.to_string()))),
        };
        if outcome.changes.is_empty() {
            return Ok(Ok(()));
        }
        if let Some((KillPoint::BeforeCommit, away)) = self.kill {
            self.die(now, away);
            return Err(ProcessKilled);
        }
        self.commit(outcome.changes);
        if let Some((KillPoint::AfterCommit, away)) = self.kill {
            self.die(now, away);
            return Err(ProcessKilled);
        }
        Ok(Ok(()))
    }

    fn commit(&mut self, changes: Vec<Change>) {
        for change in changes {
            if self.mistake == Some(PlantedFault::ForgetsCommits)
                && matches!(change, Change::CommandIssued(..))
            {
                self.commands += 1;
                if self.commands.is_multiple_of(FORGETS_EVERY) {
                    continue;
                }
            }
            self.committed.apply(change);
        }
    }

    /// Answers the waiting calls for which a change has occurred, or that have waited long enough.
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
            net.send(now, ControlMessage::Answer { caller, call, answer: poll.answer(manager) });
        }
    }
}

impl Process {
    fn wait(&mut self, caller: Caller, call: u64, awaited: AwaitedChange, wait_ms: u64, now: Time) {
        let wait = Duration::from_millis(wait_ms.min(self.manager.heartbeat_ms()));
        self.polls.push(Poll { caller, call, until: now + wait, awaited });
    }
}

impl Poll {
    fn is_registered(&self, manager: &Manager) -> bool {
        match &self.awaited {
            AwaitedChange::MemoryNode { name, registration } => {
                let node = manager.state().memory_nodes.get(name);
                node.is_some_and(|node| node.registration == *registration)
            }
            AwaitedChange::ComputeNode { cn, registration, .. } => {
                let node = manager.state().compute_nodes.get(cn);
                node.is_some_and(|node| node.registration == *registration)
            }
        }
    }

    fn is_due(&self, manager: &Manager) -> bool {
        !self.is_registered(manager)
            || match &self.awaited {
                AwaitedChange::MemoryNode { name, .. } => manager.state().commands_of(name).next().is_some(),
                AwaitedChange::ComputeNode { cn, after_event, .. } => {
                    manager.regions_changed(*cn, *after_event)
                }
            }
    }

    fn answer(&self, manager: &Manager) -> ManagerReply {
        if !self.is_registered(manager) {
            return ManagerReply::Refused(ErrorCode::NotRegistered, "another registration took over".into());
        }
        match &self.awaited {
            AwaitedChange::MemoryNode { name, .. } => {
                ManagerReply::MemoryNodeSynced(Box::new(manager.memory_node_synced(name)))
            }
            AwaitedChange::ComputeNode { cn, after_event, .. } => {
                ManagerReply::ComputeNodeSynced(Box::new(manager.compute_node_synced(*cn, *after_event)))
            }
        }
    }
}
