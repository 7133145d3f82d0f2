//! Filling a store: this process calls the manager's state machine directly and commits its changes in batches, as the
//! server does.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cxloe_fabric::api::{CreateRegion, MemoryNodeSync};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{CommandResult, Name, RegionState};
use cxloe_gmm::store::{RedbStore, Store, StoreError};
use cxloe_gmm_core::manager::{Change, Command, Contradiction, FabricState, Manager, ManagerError, Options};
use cxloe_lab::Interrupted;
use serde::Serialize;

use super::node::{EXTENT, cn_id, compute_node, memory_node, name};
use super::{Size, TimeCollector, Times, resident_bytes};

/// Maximum number of commands in one commit, as in the server.
const BATCH: u32 = 256;

/// Results of filling a store.
#[derive(Debug, Clone, Serialize)]
pub struct Populated {
    /// Time to choose the place of a region, in the state machine alone.
    pub allocation: Times,
    /// Time to make a batch of up to 256 commands durable.
    pub commit: Times,
    /// Regions created per minute, each durable and confirmed by its memory nodes.
    pub regions_per_minute: f64,
    /// Number of legs (parts on one memory node each) of all regions.
    pub legs: u64,
    /// Size of the store's file, in bytes.
    pub store_bytes: u64,
    /// Memory of the manager's state in bytes, measured as growth of the process.
    pub memory_bytes: u64,
}

/// Failure in filling a store.
#[derive(Debug, thiserror::Error)]
pub enum PopulateError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The manager refused a command.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// The state is inconsistent.
    #[error(transparent)]
    State(#[from] Contradiction),
    #[error("region {0} is {1} although its memory nodes have confirmed it")]
    NotActive(Name, RegionState),
    /// The caller has ended the work, for example because of Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Manager and its store, used in the same way as by the server.
struct Filling {
    manager: Manager,
    store: RedbStore,
    changes: Vec<Change>,
    commits: TimeCollector,
    now_ms: u64,
}

impl Filling {
    fn apply(&mut self, command: Command) -> Result<(), ManagerError> {
        let outcome = self.manager.apply(command, self.now_ms)?;
        self.changes.extend(outcome.changes);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let started = Instant::now();
        self.store.commit(&self.changes)?;
        self.commits.add(started.elapsed());
        self.changes.clear();
        Ok(())
    }

    /// Confirms all commands that wait for these memory nodes.
    fn confirm(&mut self, nodes: impl Iterator<Item = Name>) -> Result<(), ManagerError> {
        for node in nodes {
            let results: Vec<CommandResult> = self
                .manager
                .state()
                .commands_of(&node)
                .map(|command| CommandResult::done(command.seq))
                .collect();
            let (Some(last), Some(record)) = (results.last(), self.manager.state().memory_nodes.get(&node))
            else {
                continue;
            };
            let sync = MemoryNodeSync {
                registration: record.registration,
                acked_seq: last.seq,
                results,
                progress: None,
                fills: Vec::new(),
                stats: serde_json::Value::Null,
                wait_ms: 0,
            };
            self.apply(Command::SyncMemoryNode(node, sync))?;
        }
        Ok(())
    }
}

/// Fills the store at `path` with a fabric of this size. Calls `tick` with the number of regions made so far;
/// an error of `tick` ends the work.
pub fn populate(
    path: &Path,
    size: Size,
    mut tick: impl FnMut(u64) -> Result<(), Interrupted>,
) -> Result<Populated, PopulateError> {
    let before = resident_bytes(std::process::id()).unwrap_or(0);
    let mut store = RedbStore::open(path)?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    let (manager, outcome) = Manager::take_over(FabricState::default(), Options::default(), now_ms)?;
    store.commit(&outcome.changes)?;
    let mut filling = Filling { manager, store, changes: Vec::new(), commits: TimeCollector::new(), now_ms };
    for index in 0..size.memory_nodes {
        filling.apply(Command::RegisterMemoryNode(memory_node(index)))?;
    }
    for index in 0..size.compute_nodes {
        filling.apply(Command::RegisterComputeNode(compute_node(index)))?;
    }
    filling.commit()?;
    // The results must not include the time of the commit that stored the registrations.
    filling.commits = TimeCollector::new();

    let (mut allocations, started) = (TimeCollector::new(), Instant::now());
    for first in (0..size.regions).step_by(BATCH as usize) {
        for index in first..(first + BATCH).min(size.regions) {
            let create = region(index, size);
            let began = Instant::now();
            filling.apply(Command::CreateRegion(create))?;
            allocations.add(began.elapsed());
        }
        filling.commit()?;
        filling.confirm((0..size.memory_nodes).map(|index| name("mn", index)))?;
        filling.commit()?;
        tick(u64::from(first))?;
    }
    let took = started.elapsed();
    let state = filling.manager.state();
    if let Some(region) = state.regions.values().find(|region| region.state != RegionState::Active) {
        return Err(PopulateError::NotActive(region.name.clone(), region.state));
    }
    let after = resident_bytes(std::process::id()).unwrap_or(0);
    Ok(Populated {
        allocation: allocations.times(),
        commit: filling.commits.times(),
        regions_per_minute: f64::from(size.regions) * 60.0 / took.as_secs_f64(),
        legs: state.regions.values().map(|region| region.legs.len() as u64).sum(),
        store_bytes: std::fs::metadata(path).map(|meta| meta.len()).unwrap_or(0),
        memory_bytes: after.saturating_sub(before),
    })
}

/// Request for the `index`-th region: every fourth is interleaved.
fn region(index: u32, size: Size) -> CreateRegion {
    let ways = if index.is_multiple_of(4) && size.memory_nodes >= 4 { Ways::Four } else { Ways::One };
    let owner = cn_id(index % size.compute_nodes.max(1));
    CreateRegion { ways, ..CreateRegion::new(name("r", index), 4 * EXTENT, owner) }
}
