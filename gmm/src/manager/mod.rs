//! The manager: a state machine without I/O. A [`Command`] and the time go in; out come the [`Change`]s it made, among
//! them events and commands for memory nodes, or a named error and nothing changed. Who runs it writes the changes to the
//! store and only then tells anyone.
//!
//! What it guarantees, whatever the order of commands and whatever is lost or repeated:
//! * an extent is one region's at most, and becomes free only with its memory node's result for the `UnmapCmem` command,
//!   which the node gives after the mapping is gone and the extent is zero; extents of a node that cannot be reached wait
//! * a CMem address is given to a CN again only when no request made for what had it before can still be carried out
//! * content that a memory node lost is reported as lost, never served as zeros, until someone accepts the loss
//!
//! Files: [`access`] tokens and nodes that have joined, `tokens` what is remembered of them; `command` what can be asked; `cmem` addresses of compute nodes, and when they are handed out again;
//! [`state`] what is remembered and how it changes; `former` processes that have successors; `frozen` how changes are taken back; the rules in `memory_nodes`, `compute_nodes`, `regions`,
//! `placement` (which memory nodes give how much), `release` (making an owner let go), `devices` (logical devices and
//! their bindings), `operations` (the FM API's background operations), `declared` (the fabric file); [`pool`] free
//! extents, [`liveness`] who was heard of when, `lineage` who led this fabric and which nodes do not follow, `orphans`
//! memory that no region has, `restore` a backup put in the place of all, `index` what follows from the state.

pub mod access;
mod cmem;
mod command;
mod compute_nodes;
mod declared;
mod devices;
mod error;
mod former;
mod frozen;
mod index;
mod keys;
mod lineage;
pub mod liveness;
mod memory_nodes;
mod operations;
mod options;
mod orphans;
mod overview;
mod placement;
pub mod pool;
mod regions;
mod release;
mod reports;
mod restore;
pub mod state;
mod tokens;
mod undo;

use std::collections::BTreeMap;

pub use command::Command;
pub use error::ManagerError;
pub use options::{Declared, DeclaredQuota, Initialisation, Options};
pub use state::{Change, Contradiction, Meta, State};

use cxloe_fabric::api::{Events, NodeCount, Party, Progress};
use cxloe_fabric::model::{
    ClearedLog, CnId, Event, EventKind, Health, Name, NodeAction, NodeCommand, OperationKind, Region,
    Watermark,
};
use former::Former;
use index::Index;
use lineage::Refused;
use liveness::{Liveness, NodeKey};
use pool::FreeExtents;
use reports::Reports;
use undo::UndoLog;

/// Most memory nodes of a fabric.
pub const MEMORY_NODES_MAX: usize = 1024;
/// Most compute nodes of a fabric.
pub const COMPUTE_NODES_MAX: usize = 16_384;
/// Most regions of a fabric.
pub const REGIONS_MAX: usize = 262_144;
/// Most HDM decoders of a region: interleave sets one behind the other.
pub const DECODERS_MAX: usize = 64;
/// Most ports of a memory node.
pub const PORTS_MAX: usize = 16;
/// Events kept; older ones are forgotten.
pub const EVENTS_KEPT: u64 = 10_000;
/// Most events in one answer.
pub const EVENTS_PER_ANSWER_MAX: u64 = 1000;
/// Silence after which a node counts as unreachable, in milliseconds, when not told otherwise.
pub const NODE_TIMEOUT_MS_DEFAULT: u64 = 5000;

/// What a command did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Every change, in order; to be stored as one.
    pub changes: Vec<Change>,
}

impl Outcome {
    /// The events among the changes.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some(event),
            _ => None,
        })
    }

    /// The commands to memory nodes among the changes.
    pub fn node_commands(&self) -> impl Iterator<Item = (&Name, &NodeCommand)> {
        self.changes.iter().filter_map(|change| match change {
            Change::CommandIssued(node, command) => Some((node, command)),
            _ => None,
        })
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Manager {
    state: State,
    /// Free extents of each memory node: follows from the state, kept because it is asked for often.
    free: BTreeMap<Name, FreeExtents>,
    /// What memory nodes said of themselves last; not part of the state.
    reports: Reports,
    /// How far memory nodes have come with what they are at; not part of the state.
    progress: BTreeMap<Name, Progress>,
    former: Former,
    /// The event up to which each compute node has heard of its regions; not part of the state.
    heard: BTreeMap<CnId, u64>,
    /// Since when the agent of each compute node is registered that is; not part of the state.
    registered_ms: BTreeMap<CnId, u64>,
    /// Nodes that do not follow, since they have seen what this store does not have; not part of the state.
    refused: BTreeMap<Party, Refused>,
    index: Index,
    liveness: Liveness,
    options: Options,
    /// The time of the command being applied.
    now_ms: u64,
    /// Who asks for the command being applied.
    actor: Option<String>,
    /// Changes made by the command being applied.
    journal: Vec<Change>,
    /// How to take back what was changed since the last commit, for whom says when there was one.
    /// What the command under way has changed.
    undo: UndoLog,
    /// What was changed since the last commit.
    batch: Option<UndoLog>,
    /// Why nothing is changed at present; not part of the state.
    frozen: Option<String>,
}

impl Manager {
    /// Takes over a state (an empty one for a new fabric) under the next term. The outcome is to be stored like that of
    /// any command. `now_ms` is the time in milliseconds since the Unix epoch; it must never go back.
    ///
    /// # Errors
    /// [`Contradiction`] when the state cannot have come about by commands.
    pub fn take_over(state: State, options: Options, now_ms: u64) -> Result<(Self, Outcome), Contradiction> {
        state.verify()?;
        let free = state.free_extents()?;
        let index = Index::new(&state);
        let mut liveness = Liveness::default();
        for node in state.memory_nodes.values().filter(|node| node.health == Health::Reachable) {
            liveness.heard(NodeKey::Memory(node.name.clone()), now_ms);
        }
        for node in state.compute_nodes.values().filter(|node| node.health == Health::Reachable) {
            liveness.heard(NodeKey::Compute(node.cn_id), now_ms);
        }
        let reports = Reports::default();
        let (progress, heard, journal, refused) =
            (BTreeMap::new(), BTreeMap::new(), Vec::new(), BTreeMap::new());
        // How long before this manager is not known.
        let registered_ms = state.compute_nodes.keys().map(|cn| (*cn, now_ms)).collect();
        let undo = UndoLog::new(state.meta);
        let mut manager = Self {
            state,
            undo,
            free,
            reports,
            progress,
            former: Former::new(now_ms),
            heard,
            registered_ms,
            refused,
            index,
            liveness,
            options,
            now_ms,
            actor: None,
            journal,
            batch: None,
            frozen: None,
        };
        let mut meta = manager.state.meta;
        (meta.watermark.term, meta.watermark.run) = (meta.watermark.term + 1, manager.options.run);
        if meta.fabric == 0 {
            meta.fabric = manager.options.new_fabric;
        }
        manager.put(Change::Meta(meta));
        manager.begin_term(meta.watermark);
        manager.event(EventKind::ManagerStarted { term: meta.watermark.term });
        manager.end_what_waits();
        manager.realise_declared();
        let outcome = manager.close_journal();
        Ok((manager, outcome))
    }

    /// Carries out one command at `now_ms`.
    ///
    /// # Errors
    /// A [`ManagerError`] that says why not; the state is as before.
    pub fn apply(&mut self, command: Command, now_ms: u64) -> Result<Outcome, ManagerError> {
        self.now_ms = now_ms;
        self.undo = UndoLog::new(self.state.meta);
        let result = self.carry_out(command);
        if let Err(error) = result {
            if !self.undo.is_empty(&self.state) {
                tracing::error!(%error, "a refused command had changed something, which is taken back");
                self.take_back_command();
                debug_assert!(false, "a refused command left changes: {error}");
            }
            return Err(error);
        }
        if !self.journal.is_empty() {
            self.follow_operations();
            self.release_ready();
        }
        Ok(self.close_journal())
    }

    /// The same for somebody, who is named in the events that come of it.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_for(&mut self, who: &str, command: Command, now_ms: u64) -> Result<Outcome, ManagerError> {
        self.actor = Some(who.to_owned());
        let applied = self.apply(command, now_ms);
        self.actor = None;
        applied
    }

    fn carry_out(&mut self, command: Command) -> Result<(), ManagerError> {
        if self.options.initialisation.is_static() && command.is_for_dynamic_fabrics() {
            return Err(ManagerError::StaticFabric);
        }
        self.check_frozen(&command)?;
        if command.is_for_dynamic_fabrics() {
            self.check_fabric()?;
        }
        match command {
            Command::RegisterMemoryNode(node) => self.register_memory_node(node),
            Command::SyncMemoryNode(name, sync) => self.sync_memory_node(&name, sync),
            Command::ReportOrphans(name, report) => self.report_orphans(&name, &report),
            Command::ReleaseOrphans(name) => self.release_orphans(&name),
            Command::NotFollowed(said) => self.not_followed(said),
            Command::Adopt(adopt) => self.adopt(&adopt),
            Command::RegisterComputeNode(node) => self.register_compute_node(node),
            Command::SyncComputeNode(cn, sync) => self.sync_compute_node(cn, &sync),
            Command::SetKey(node, key) => self.set_key(&node, key),
            Command::HungUp(node, registration) => self.hang_up(&node, registration),
            Command::CreateRegion(create) => self.create_region(create),
            Command::GrowRegion(name, grow) => self.grow_region(&name, &grow),
            Command::DestroyRegion { name, force, created_ms } => {
                self.destroy_region(&name, force, created_ms)
            }
            Command::ResetRegion(name) => self.reset_region(&name),
            Command::DisableRegion(name) => self.disable_region(&name),
            Command::EnableRegion(name) => self.enable_region(&name),
            Command::ReleaseRegion(name) => self.release_region(&name),
            Command::SetQuota(owner, bytes) => self.set_quota(&owner, bytes),
            Command::Hold(owner, held) => self.hold_by_hand(&owner, held),
            Command::SetLdAllocations(node, first, sizes) => self.set_ld_allocations(&node, first, &sizes),
            Command::Bind(bind, switch) => {
                self.check_idle(switch)?;
                let (cn, ld) = self.bind(&bind)?;
                self.begin_operation(switch, OperationKind::Bind, &bind.memory_node, ld, cn);
                Ok(())
            }
            Command::Unbind(unbind, switch) => {
                self.check_idle(switch)?;
                let cn = self.unbind(&unbind)?;
                self.begin_operation(switch, OperationKind::Unbind, &unbind.memory_node, unbind.ld, cn);
                Ok(())
            }
            Command::AbortOperation(switch) => {
                self.abort_operation(switch);
                Ok(())
            }
            Command::SetQos(qos) => {
                let memory_node = self.memory_node(&qos.memory_node)?.name.clone();
                self.put(Change::Qos(qos));
                self.event(EventKind::QosSet { memory_node });
                Ok(())
            }
            Command::GenerateAer { compute_node, vppb, aer } => self.generate_aer(&compute_node, vppb, aer),
            Command::ClearLog(log) => {
                let through = log.through.min(self.state.meta.last_event);
                let (switch, number) = (log.switch, log.log);
                self.put(Change::LogCleared(ClearedLog { through, ..log }));
                self.event(EventKind::LogCleared { switch, log: number, through });
                Ok(())
            }
            Command::ForgetMemoryNode { name, force } => self.forget_memory_node(&name, force),
            Command::CreateToken(token) => self.create_token(token),
            Command::RevokeToken(id) => self.revoke_token(&id),
            Command::Join { node, token, proved } => self.join(node, token.as_deref(), proved),
            Command::Revoke(node) => self.revoke(&node),
            Command::ForgetComputeNode(owner) => self.forget_compute_node(&owner),
            Command::NoteRefused(what, attempts) => {
                self.event(EventKind::AccessRefused { what, attempts });
                Ok(())
            }
            Command::Tick if self.frozen.is_some() => Ok(()),
            Command::Tick => {
                self.tick();
                Ok(())
            }
        }
    }

    /// When [`Command::Tick`] is due next, in milliseconds since the Unix epoch; `None`: not before another command.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let due = self.liveness.next_deadline_ms(self.options.node_timeout_ms);
        due.filter(|_| self.frozen.is_none())
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The term and the revision of the latest change.
    pub fn watermark(&self) -> Watermark {
        self.state.meta.watermark
    }

    /// How often a node has to speak, in milliseconds: three times within the node time-out.
    pub fn heartbeat_ms(&self) -> u64 {
        (self.options.node_timeout_ms / 3).max(1)
    }

    /// A region.
    ///
    /// # Errors
    /// [`ManagerError::NoRegion`].
    pub fn region(&self, name: &Name) -> Result<&Region, ManagerError> {
        self.state.regions.get(name).ok_or_else(|| ManagerError::NoRegion(name.clone()))
    }

    /// The events after `after`, at most `limit`.
    pub fn events_after(&self, after: u64, limit: u64) -> Events {
        self.events_that(after, limit, |_| true)
    }

    /// The events after `after` that are wanted, at most `limit`.
    pub fn events_that(&self, after: u64, limit: u64, wanted: impl Fn(&Event) -> bool) -> Events {
        let newest = self.state.meta.last_event;
        let oldest = self.state.events.front().map_or(newest + 1, |event| event.seq);
        let skip = after.saturating_add(1).saturating_sub(oldest);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(self.state.events.len());
        let limit = usize::try_from(limit.min(EVENTS_PER_ANSWER_MAX)).unwrap_or(usize::MAX);
        let found = self.state.events.range(skip..).filter(|event| wanted(event));
        let events: Vec<Event> = found.take(limit).cloned().collect();
        let through =
            if events.len() < limit { newest } else { events.last().map_or(after, |last| last.seq) };
        Events { oldest, newest, through, events }
    }

    /// How many memory nodes there are.
    pub fn memory_node_count(&self) -> NodeCount {
        count(self.state.memory_nodes.values().map(|node| node.health))
    }

    /// How many compute nodes there are.
    pub fn compute_node_count(&self) -> NodeCount {
        count(self.state.compute_nodes.values().map(|node| node.health))
    }

    fn tick(&mut self) {
        for node in self.liveness.take_silent(self.now_ms, self.options.node_timeout_ms) {
            match node {
                NodeKey::Memory(name) => self.memory_node_silent(&name),
                NodeKey::Compute(cn) => self.compute_node_silent(cn),
            }
        }
    }

    fn hang_up(&mut self, node: &NodeKey, registration: u64) -> Result<(), ManagerError> {
        let current = match node {
            NodeKey::Memory(name) => self.state.memory_nodes.get(name).map(|node| node.registration),
            NodeKey::Compute(cn) => self.state.compute_nodes.get(cn).map(|node| node.registration),
        };
        if current == Some(registration) {
            self.liveness.hung_up(node);
        }
        Ok(())
    }

    /// The only way by which the state changes.
    fn put(&mut self, change: Change) {
        self.undo.note(&self.state, &change);
        self.index.forget(&self.state, &change);
        self.state.apply(change.clone());
        self.index.learn(&self.state, &change);
        self.journal.push(change);
    }

    fn event(&mut self, kind: EventKind) -> u64 {
        let mut meta = self.state.meta;
        meta.last_event += 1;
        let seq = meta.last_event;
        self.state.meta = meta;
        self.put(Change::Event(Event { seq, time_ms: self.now_ms, who: self.actor.clone(), kind }));
        seq
    }

    fn issue(&mut self, node: &Name, action: NodeAction) {
        let Some(mut record) = self.state.memory_nodes.get(node).cloned() else { return };
        record.last_seq += 1;
        let Watermark { term, revision, .. } = self.watermark();
        let command = NodeCommand { seq: record.last_seq, term, revision: revision + 1, action };
        self.put(Change::MemoryNode(record));
        self.put(Change::CommandIssued(node.clone(), command));
    }

    fn next_registration(&mut self) -> u64 {
        self.state.meta.last_registration += 1;
        self.state.meta.last_registration
    }

    /// Ends a command: one revision for all its changes, the counters last.
    fn close_journal(&mut self) -> Outcome {
        if self.journal.is_empty() {
            self.keep_command();
            return Outcome::default();
        }
        let forgotten = (self.state.meta.last_event + 1).saturating_sub(EVENTS_KEPT);
        if self.state.events.front().is_some_and(|event| event.seq < forgotten) {
            self.put(Change::EventsForgotten(forgotten));
        }
        let mut meta = self.state.meta;
        meta.watermark.revision += 1;
        self.put(Change::Meta(meta));
        self.keep_command();
        Outcome { changes: std::mem::take(&mut self.journal) }
    }
}

fn count(health: impl Iterator<Item = Health>) -> NodeCount {
    health.fold(NodeCount::default(), |mut count, health| {
        count.known += 1;
        count.reachable += u64::from(health == Health::Reachable);
        count
    })
}

#[cfg(test)]
mod tests;
