//! The manager: a state machine without I/O. A [`Command`] and the time go in. The [`Change`]s of the state come out,
//! among them events and commands for memory nodes; or an error comes out, and the state is unchanged. The caller
//! writes the changes to the store before it answers.
//!
//! Driven by the contract of all machines ([`cxloe_wire::machine`]); outputs are returned, and none is kept:
//!
//! ```text
//!   loop {
//!       for (who, command) in commands { outcome = manager.apply_for(who, command, now_ms); }
//!       if manager.deadline().is_due(now) { outcome = manager.apply(Command::Tick, now_ms); }
//!       store the changes of all outcomes; then answer
//!       wait for commands, until manager.deadline() at the latest
//!   }
//! ```
//!
//! Guarantees, whatever the order of commands and whatever is lost or repeated:
//! * an extent belongs to one region at most, and becomes free only with its memory node's result for the `UnmapCmem`
//!   command, which the node gives after it has removed the mapping and zeroed the extent; extents of an unreachable
//!   node stay allocated
//! * a CMem address of a CN is reused only when no request for its earlier content can still be carried out
//! * content that a memory node lost is reported as lost, never served as zeros, until a user accepts the loss
//!
//! Files: [`access`] (tokens and joined nodes), `tokens` (their records), `command` (the commands), `cmem` (addresses
//! of compute nodes, and their reuse), [`state`] (the stored state and its changes), `superseded` (processes that
//! another one of the same name has replaced), `deadline`
//! (work that the time brings), `frozen` and `undo` (undoing of changes), [`pool`] (free extents),
//! [`liveness`] (times of the latest messages), `lineage` (leaders of this fabric, and nodes that do not accept this
//! manager), `orphans` (memory that belongs to no region), `restore` (replacement of the state by a backup), `index`
//! (data derived from the state).
//!
//! Rules: `memory_nodes`, `results` (of commands to memory nodes), `compute_nodes`, `regions`, `placement` (choice of
//! memory nodes), `mirror` (copies in sync), `mirror_placement` (memory nodes for two copies), `repair` (missing
//! copies), `moving` (legs that leave a memory node), `node_fill` (copies that memory nodes make), `release` (of a
//! region by its owner), `hand_over` (to another owner), `share` (sealed regions and their readers), `clones`,
//! `devices` (logical devices and their bindings), `operations` (the FM API's background operations), `declared` (the
//! fabric file).

pub mod access;
mod clones;
mod cmem;
mod command;
mod compute_nodes;
mod deadline;
mod declared;
mod devices;
mod error;
mod frozen;
mod hand_over;
mod index;
mod keys;
mod lineage;
pub mod liveness;
mod memory_nodes;
mod mirror;
mod mirror_placement;
mod moving;
mod node_fill;
mod operations;
mod options;
mod orphans;
mod overview;
mod placement;
pub mod pool;
mod region_names;
mod regions;
mod release;
mod repair;
mod reports;
mod restore;
mod results;
mod share;
pub mod state;
mod superseded;
mod tokens;
mod undo;

use std::collections::BTreeMap;

pub use command::Command;
pub use error::ManagerError;
pub use options::{Declared, DeclaredQuota, Initialisation, Options};
pub use region_names::Nameless;
pub use state::{Change, Contradiction, FabricState, Meta};

use cxloe_fabric::api::{Events, NodeCount, Party, Progress};
use cxloe_fabric::model::{
    ClearedLog, CnId, Event, EventKind, Health, Name, NodeAction, NodeCommand, OperationKind, Region,
    Watermark,
};
use index::Index;
use lineage::RefusedFollower;
use liveness::{Liveness, NodeKey};
use node_fill::NodeFills;
use pool::FreeExtents;
use repair::Repairs;
use reports::Reports;
use superseded::SupersededProcesses;
use undo::UndoLog;

pub(crate) const MEMORY_NODES_MAX: usize = 1024;
pub(crate) const COMPUTE_NODES_MAX: usize = 16_384;
pub const REGIONS_MAX: usize = 262_144;
/// Maximum number of HDM decoders of a region. Each interleave set takes one, and each growth at least one
/// more.
pub const DECODERS_MAX: usize = 64;
/// Maximum number of network ports, and so of MAC addresses, of a memory node.
pub const PORTS_MAX: usize = 16;
/// Number of events kept; older ones are removed.
pub const EVENTS_KEPT: u64 = 10_000;
/// Maximum number of events in one answer; the client asks again for the rest.
pub const EVENTS_PER_ANSWER_MAX: u64 = 1000;
/// Default silence after which a node counts as unreachable, in milliseconds.
pub const NODE_TIMEOUT_MS_DEFAULT: u64 = 5000;
/// Default time that a copy of a region may be on an unreachable memory node before it is replaced, in milliseconds.
pub const REBUILD_AFTER_MS_DEFAULT: u64 = 600_000;

/// Result of a command that was carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Every change, in order. The caller stores them in one transaction.
    pub changes: Vec<Change>,
}

impl CommandOutcome {
    /// Returns the name of the region that a `CreateRegion` command created.
    pub fn created_region(&self) -> Option<&Name> {
        self.changes.iter().find_map(|change| match change {
            Change::Region(region) => Some(&region.name),
            _ => None,
        })
    }

    pub fn events(&self) -> impl Iterator<Item = &Event> {
        Self::events_of(&self.changes)
    }

    pub fn events_of(changes: &[Change]) -> impl Iterator<Item = &Event> {
        changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some(event),
            _ => None,
        })
    }
}

/// State machine of the manager: the stored state, data derived from the state, and data that a restart
/// loses.
#[derive(Debug)]
pub struct Manager {
    state: FabricState,
    /// Free extents of each memory node: derived from the state.
    free: BTreeMap<Name, FreeExtents>,
    /// Latest report of each memory node; not stored.
    reports: Reports,
    /// Progress of each memory node with its present command; not stored.
    progress: BTreeMap<Name, Progress>,
    superseded: SupersededProcesses,
    /// Number of the latest event about its regions that each compute node has received; not stored.
    heard: BTreeMap<CnId, u64>,
    /// Registration time of the present agent of each compute node; not stored.
    registered_ms: BTreeMap<CnId, u64>,
    /// Nodes that do not accept this manager, because they have seen changes that this store lacks; not stored.
    refused: BTreeMap<Party, RefusedFollower>,
    repairs: Repairs,
    fills: NodeFills,
    index: Index,
    liveness: Liveness,
    options: Options,
    /// Time of the command being applied, in milliseconds since the Unix epoch.
    now_ms: u64,
    /// Time of the last tick.
    ticked_ms: u64,
    /// Caller that the events of the present command name; `None` for the clock and the manager itself.
    actor: Option<String>,
    journal: Vec<Change>,
    undo: UndoLog,
    /// Undo log since the last commit, while a batch is open.
    batch: Option<UndoLog>,
    /// Reason why changes are refused at present, such as a full disk; not stored.
    frozen: Option<String>,
}

impl Manager {
    /// Starts a manager from a stored state, or from an empty one for a new fabric, under the next term. The
    /// caller stores the outcome like that of any command. `now_ms` is the time in milliseconds since the
    /// Unix epoch; later calls must not pass an earlier time.
    ///
    /// # Errors
    /// [`Contradiction`] if no sequence of commands can have made the state.
    pub fn take_over(
        state: FabricState,
        options: Options,
        now_ms: u64,
    ) -> Result<(Self, CommandOutcome), Contradiction> {
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
        // Registration times are not stored. To count every agent as registered now only delays the reuse of
        // addresses.
        let registered_ms = state.compute_nodes.keys().map(|cn| (*cn, now_ms)).collect();
        let undo = UndoLog::new(state.meta);
        let mut manager = Self {
            state,
            undo,
            free,
            reports,
            progress,
            superseded: SupersededProcesses::new(now_ms),
            heard,
            registered_ms,
            refused,
            repairs: Repairs::default(),
            fills: NodeFills::default(),
            index,
            liveness,
            options,
            now_ms,
            ticked_ms: 0,
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
        manager.end_waiting_operations();
        manager.note_repairs();
        manager.follow_fills();
        manager.realise_declared();
        let outcome = manager.close_journal();
        Ok((manager, outcome))
    }

    /// Carries out one command at `now_ms`, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// A [`ManagerError`] with the reason; the state is unchanged.
    pub fn apply(&mut self, command: Command, now_ms: u64) -> Result<CommandOutcome, ManagerError> {
        self.now_ms = now_ms;
        self.undo = UndoLog::new(self.state.meta);
        let result = self.carry_out(command);
        if let Err(error) = result {
            // Commands check everything before their first change. If a refused command has changed something
            // nevertheless, its changes are undone here.
            if !self.undo.is_empty(&self.state) {
                tracing::error!(%error, "a refused command had changed something, which is taken back");
                self.take_back_command();
                debug_assert!(false, "a refused command left changes: {error}");
            }
            return Err(error);
        }
        if self.frozen.is_none() {
            self.follow_fills();
        }
        // The changes may have completed a background operation, or created the last declared region of a compute node
        // held in reset.
        if !self.journal.is_empty() {
            self.follow_operations();
            self.release_ready();
        }
        Ok(self.close_journal())
    }

    /// Carries out one command for a caller, which the resulting events name.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_for(
        &mut self,
        who: &str,
        command: Command,
        now_ms: u64,
    ) -> Result<CommandOutcome, ManagerError> {
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
            Command::ProtectRegion(name, protect) => self.protect_region(&name, &protect),
            Command::LabelRegion(name, order) => self.label_region(&name, &order),
            Command::LegsStale(name, stale) => self.legs_stale(&name, &stale),
            Command::LegsFilled(name, filled) => self.legs_filled(&name, &filled),
            Command::MoveRegion(name, order) => self.move_region(&name, &order),
            Command::SealRegion(name, order) => self.seal_region(&name, order),
            Command::ShareRegion(name, order) => self.share_region(&name, &order),
            Command::CloneRegion(name, order) => self.clone_region(&name, &order),
            Command::RelocateRegion(name, relocate) => self.relocate_region(&name, &relocate),
            Command::DrainMemoryNode(name, draining) => self.drain_memory_node(&name, draining),
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
            Command::Join { node, token, proved, take_over } => {
                self.join(node, token.as_deref(), proved, take_over)
            }
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

    /// Returns the present state, which may include changes that are not stored yet.
    pub fn state(&self) -> &FabricState {
        &self.state
    }

    /// Returns the term of this manager and the revision of its latest change.
    pub fn watermark(&self) -> Watermark {
        self.state.meta.watermark
    }

    /// Returns the interval at which a node has to send a message, in milliseconds: a third of the node
    /// time-out, so that two lost messages do not make the node unreachable.
    pub fn heartbeat_ms(&self) -> u64 {
        (self.options.node_timeout_ms / 3).max(1)
    }

    /// Returns the record of a region.
    ///
    /// # Errors
    /// [`ManagerError::NoRegion`] if no region has this name.
    pub fn region(&self, name: &Name) -> Result<&Region, ManagerError> {
        self.state.regions.get(name).ok_or_else(|| ManagerError::NoRegion(name.clone()))
    }

    /// Returns at most `limit` of the events after number `after` that `wanted` accepts.
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

    pub fn memory_node_count(&self) -> NodeCount {
        count(self.state.memory_nodes.values().map(|node| node.health))
    }

    pub fn compute_node_count(&self) -> NodeCount {
        count(self.state.compute_nodes.values().map(|node| node.health))
    }

    /// Records that the manager did not run for `paused_ms` before `now_ms`, for example because its host was paused.
    /// Messages of nodes may still be waiting to be received, so no node counts as silent for another `paused_ms`, or
    /// for the node time-out if that is shorter.
    pub fn note_pause(&mut self, paused_ms: u64, now_ms: u64) {
        self.liveness.grant_grace(now_ms.saturating_add(paused_ms.min(self.options.node_timeout_ms)));
    }

    fn hang_up(&mut self, node: &NodeKey, registration: u64) -> Result<(), ManagerError> {
        let current = match node {
            NodeKey::Memory(name) => self.state.memory_nodes.get(name).map(|node| node.registration),
            NodeKey::Compute(cn) => self.state.compute_nodes.get(cn).map(|node| node.registration),
        };
        // If the node has registered again, the connection that ended is not its present one.
        if current == Some(registration) {
            self.liveness.hung_up(node);
        }
        Ok(())
    }

    /// Applies one change to the state, the index, the undo log and the journal. Every change is made by this
    /// function, except those of counters.
    fn put(&mut self, change: Change) {
        self.undo.note(&self.state, &change);
        self.index.forget(&self.state, &change);
        self.state.apply(change.clone());
        self.index.add_records(&self.state, &change);
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

    /// Ends a command. All changes of a command have one revision, which the last change stores with the
    /// counters.
    fn close_journal(&mut self) -> CommandOutcome {
        if self.journal.is_empty() {
            self.keep_command();
            return CommandOutcome::default();
        }
        let forgotten = (self.state.meta.last_event + 1).saturating_sub(EVENTS_KEPT);
        if self.state.events.front().is_some_and(|event| event.seq < forgotten) {
            self.put(Change::EventsForgotten(forgotten));
        }
        let mut meta = self.state.meta;
        meta.watermark.revision += 1;
        self.put(Change::Meta(meta));
        self.keep_command();
        CommandOutcome { changes: std::mem::take(&mut self.journal) }
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
