//! A fabric to test the manager with: a manager over a store in memory, and memory nodes that do what they are told.
//! `rules` has a test for each rule, `orders` looks for an order of events that breaks one.

mod orders;
mod rules;

use std::collections::BTreeMap;

use super::*;
use crate::model::{CommandResult, Mapping, RegionState};
use crate::store::{MemoryStore, Store};

const EXTENT: u64 = 2 << 20;
const TIMEOUT_MS: u64 = 5000;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn cn(last: u8) -> CnId {
    CnId::new([2, 0, 0, 0, 1, last]).unwrap()
}

/// A memory node as it ought to be: carries commands out in order, keeps results until they were taken.
#[derive(Debug, Clone)]
struct Node {
    name: Name,
    mac: [u8; 6],
    extents: u64,
    incarnation: u64,
    instance_id: u64,
    registration: u64,
    acked_seq: u64,
    seen: Watermark,
    results: Vec<CommandResult>,
    /// Extent -> the CN and the CMem page it serves.
    mapped: BTreeMap<u64, (CnId, u64)>,
}

impl Node {
    fn new(index: u8, extents: u64) -> Self {
        Self {
            name: name(&format!("mn{index}")),
            mac: [2, 0, 0, 0, 2, index],
            extents,
            incarnation: 1,
            instance_id: 1,
            registration: 0,
            acked_seq: 0,
            seen: Watermark::default(),
            results: Vec::new(),
            mapped: BTreeMap::new(),
        }
    }

    fn register(&self) -> RegisterMemoryNode {
        RegisterMemoryNode {
            name: self.name.clone(),
            macs: vec![self.mac.into()],
            pool_bytes: self.extents * EXTENT,
            extent_bytes: EXTENT,
            incarnation: self.incarnation,
            instance_id: self.instance_id,
            mtu: 1500,
            seen: self.seen,
        }
    }

    fn sync(&self) -> MemoryNodeSync {
        MemoryNodeSync {
            registration: self.registration,
            acked_seq: self.acked_seq,
            results: self.results.clone(),
            stats: serde_json::Value::Null,
            wait_ms: 0,
        }
    }

    fn map(&mut self, mapping: &Mapping) {
        for (extent, page) in mapping.extents.iter().zip(0..) {
            let place = (mapping.cn, mapping.cmem_base + page * mapping.extent_bytes);
            let before = self.mapped.insert(extent, place);
            assert!(
                before.is_none() || before == Some(place),
                "extent {extent} given to {place:?}, held by {before:?}"
            );
        }
    }

    fn carry_out(&mut self, command: &NodeCommand, fail: bool) {
        assert!(command.watermark() >= self.seen, "{:?} after {:?}", command.watermark(), self.seen);
        self.seen = command.watermark();
        if command.seq <= self.acked_seq {
            return;
        }
        assert_eq!(command.seq, self.acked_seq + 1, "a command was skipped");
        self.acked_seq = command.seq;
        if fail {
            self.results.push(CommandResult::failed(command.seq, "page table full"));
            return;
        }
        match &command.action {
            NodeAction::MapCmem(mapping) => self.map(mapping),
            NodeAction::UnmapCmem(mapping) => {
                self.mapped.retain(|extent, _| !mapping.extents.iter().any(|gone| gone == *extent));
            }
        }
        self.results.push(CommandResult::done(command.seq));
    }
}

/// A manager, its store, and memory nodes.
struct Fabric {
    manager: Manager,
    store: MemoryStore,
    now_ms: u64,
    nodes: Vec<Node>,
}

impl Fabric {
    fn new(extents: &[u64]) -> Self {
        let mut store = MemoryStore::default();
        let (manager, outcome) = Manager::take_over(State::default(), TIMEOUT_MS, 1000).unwrap();
        store.commit(&outcome.changes).unwrap();
        let nodes = (0..).zip(extents).map(|(index, &extents)| Node::new(index, extents)).collect();
        let mut fabric = Self { manager, store, now_ms: 1000, nodes };
        (0..extents.len()).for_each(|node| fabric.register(node).unwrap());
        fabric
    }

    /// Applies a command and stores what it did; a refused one must leave no trace.
    fn apply(&mut self, command: Command) -> Result<Outcome, ManagerError> {
        let before = self.manager.state().clone();
        let result = self.manager.apply(command, self.now_ms);
        match &result {
            Ok(outcome) => self.store.commit(&outcome.changes).unwrap(),
            Err(_) => assert_eq!(&before, self.manager.state(), "a refused command left a trace"),
        }
        assert_eq!(&self.store.load().unwrap(), self.manager.state(), "the store and the manager differ");
        result
    }

    fn register(&mut self, node: usize) -> Result<(), ManagerError> {
        self.apply(Command::RegisterMemoryNode(self.nodes[node].register()))?;
        let registered = self.manager.memory_node_registered(&self.nodes[node].name).unwrap();
        let node = &mut self.nodes[node];
        node.registration = registered.registration;
        node.acked_seq = registered.acked_seq;
        node.results.clear();
        node.mapped.clear();
        registered.mappings.iter().for_each(|mapping| node.map(mapping));
        let unowned_mapped = registered.unowned.iter().find(|extent| node.mapped.contains_key(extent));
        assert_eq!(unowned_mapped, None, "an extent is both served and unowned");
        Ok(())
    }

    fn sync(&mut self, node: usize, fail: bool) -> Result<(), ManagerError> {
        self.apply(Command::SyncMemoryNode(self.nodes[node].name.clone(), self.nodes[node].sync()))?;
        let synced = self.manager.memory_node_synced(&self.nodes[node].name);
        self.nodes[node].results.clear();
        synced.commands.iter().for_each(|command| self.nodes[node].carry_out(command, fail));
        Ok(())
    }

    /// Lets every node carry out what it has to and report it.
    fn settle(&mut self) {
        for node in 0..self.nodes.len() {
            for _ in 0..2 {
                self.sync(node, false).unwrap();
            }
        }
    }

    fn create(&mut self, region: &str, extents: u64, owner: CnId) -> Result<(), ManagerError> {
        self.apply(Command::CreateRegion(CreateRegion::new(name(region), extents * EXTENT, owner))).map(drop)
    }

    fn destroy(&mut self, region: &str) -> Result<(), ManagerError> {
        self.apply(Command::DestroyRegion { name: name(region), force: true }).map(drop)
    }

    fn state_of(&self, region: &str) -> Option<RegionState> {
        self.manager.region(&name(region)).ok().map(|region| region.state)
    }

    fn free(&self) -> u64 {
        self.manager.memory_node_statuses().iter().map(|status| status.free_bytes / EXTENT).sum()
    }

    fn restart_manager(&mut self) {
        let (manager, outcome) =
            Manager::take_over(self.store.load().unwrap(), TIMEOUT_MS, self.now_ms).unwrap();
        self.manager = manager;
        self.store.commit(&outcome.changes).unwrap();
    }
}
