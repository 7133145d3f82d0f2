//! A fabric to test the manager with: a manager over a store in memory, and memory nodes that carry out its
//! commands. `rules`, `devices`, `operations`, `lineage`, `keys`, `mirror`, `clones` and `cmem` have a test for each
//! rule; `node_fill` and `orders` also search for an order of events that breaks one.

mod clones;
mod cmem;
mod devices;
mod hand_over;
mod keys;
mod labels;
mod lineage;
mod mirror;
mod node_fill;
mod operations;
mod orders;
mod rules;
mod share;

use std::collections::BTreeMap;

use super::*;
use cxloe_fabric::api::{
    Bind, ComputeNodeSync, CreateRegion, GrowRegion, MemoryNodeSync, RegisterComputeNode, RegisterMemoryNode,
    ReleasedRegion, Unbind,
};
use cxloe_fabric::model::{ByteSize, CommandResult, DeviceKind, LD_UNIT, Mapping, RegionState, UnbindOption};

/// Extent size of the memory nodes: half of the unit in which capacity is reserved for logical devices.
const EXTENT: u64 = 128 << 20;
const TIMEOUT_MS: u64 = 5000;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn cn(last: u8) -> CnId {
    CnId::new([2, 0, 0, 0, 1, last]).unwrap()
}

/// Memory node without faults: it carries out commands in order, and keeps results until they are
/// acknowledged.
#[derive(Debug, Clone)]
struct Node {
    name: Name,
    kind: DeviceKind,
    mac: [u8; 6],
    extents: u64,
    incarnation: u64,
    instance_id: u64,
    started_ms: u64,
    registration: u64,
    acked_seq: u64,
    seen: Watermark,
    results: Vec<CommandResult>,
    /// CN and CMem page that each mapped extent serves, by extent.
    mapped: BTreeMap<u64, (CnId, u64)>,
    shares: Vec<cxloe_fabric::model::Share>,
}

impl Node {
    fn new(index: u8, extents: u64) -> Self {
        Self {
            name: name(&format!("mn{index}")),
            kind: DeviceKind::Mld,
            mac: [2, 0, 0, 0, 2, index],
            extents,
            incarnation: 1,
            instance_id: 1,
            started_ms: 0,
            registration: 0,
            acked_seq: 0,
            seen: Watermark::default(),
            results: Vec::new(),
            mapped: BTreeMap::new(),
            shares: Vec::new(),
        }
    }

    fn register(&self) -> RegisterMemoryNode {
        RegisterMemoryNode {
            name: self.name.clone(),
            kind: self.kind,
            macs: vec![self.mac.into()],
            udp: None,
            key: None,
            rack: None,
            pool_bytes: self.extents * EXTENT,
            extent_bytes: EXTENT,
            incarnation: self.incarnation,
            instance_id: self.instance_id,
            started_ms: self.started_ms,
            mtu: 1500,
            seen: self.seen,
        }
    }

    fn sync(&self) -> MemoryNodeSync {
        MemoryNodeSync {
            registration: self.registration,
            acked_seq: self.acked_seq,
            results: self.results.clone(),
            progress: None,
            fills: Vec::new(),
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

    /// Returns true if an extent of `mapping` is mapped for another compute node or at another address.
    fn is_taken(&self, mapping: &Mapping) -> bool {
        mapping.extents.iter().zip(0..).any(|(extent, page)| {
            let place = (mapping.cn, mapping.cmem_base + page * mapping.extent_bytes);
            self.mapped.get(&extent).is_some_and(|held| *held != place)
        })
    }

    fn carry_out(&mut self, command: &NodeCommand, fail: bool) {
        assert!(!command.watermark().is_before(self.seen), "{:?} after {:?}", command.watermark(), self.seen);
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
            NodeAction::HandOver(hand_over) if hand_over.incarnation != self.incarnation => {
                self.results
                    .push(CommandResult::failed(command.seq, "the content is of another incarnation"));
                return;
            }
            NodeAction::HandOver(hand_over) => {
                hand_over.mapping.extents.iter().for_each(|extent| {
                    self.mapped.remove(&extent);
                });
                self.map(&hand_over.mapping);
            }
            NodeAction::Clone(clone) => {
                assert_eq!(clone.source.extents.len(), clone.mapping.extents.len());
                let is_source = |(extent, page): (u64, u64)| {
                    self.mapped.get(&extent).is_some_and(|held| *held == (clone.source.cn, page))
                };
                let pages = (0..).map(|at| clone.source.cmem_base + at * clone.source.extent_bytes);
                if clone.incarnation != self.incarnation
                    || !clone.source.extents.iter().zip(pages).all(is_source)
                {
                    self.results.push(CommandResult::failed(command.seq, "it is not mapped here"));
                    return;
                }
                self.map(&clone.mapping);
            }
            NodeAction::Share(share) => self.shares.push(share.clone()),
            NodeAction::Unshare(share) => self.shares.retain(|held| held != share),
            NodeAction::UnmapCmem(mapping) if self.is_taken(mapping) => {
                self.results.push(CommandResult::failed(command.seq, "it is mapped at another place"));
                return;
            }
            NodeAction::UnmapCmem(mapping) => {
                self.shares.retain(|share| share.mapping != *mapping);
                self.mapped.retain(|extent, _| !mapping.extents.iter().any(|gone| gone == *extent));
            }
        }
        self.results.push(CommandResult::done(command.seq));
    }
}

/// State built only from committed changes, as a store would hold it.
#[derive(Debug, Clone, Default)]
struct CommittedState(FabricState);

impl CommittedState {
    fn state(&self) -> FabricState {
        self.0.clone()
    }

    fn commit(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.0.apply(change.clone()));
    }
}

struct Fabric {
    manager: Manager,
    store: CommittedState,
    now_ms: u64,
    nodes: Vec<Node>,
    agents: BTreeMap<CnId, Agent>,
    options: Options,
}

/// Agent without faults: it attaches its regions, and releases them when asked.
#[derive(Debug, Clone, Default)]
struct Agent {
    registration: u64,
    after_event: u64,
    attached: BTreeMap<Name, Region>,
    released: Vec<ReleasedRegion>,
    held: bool,
    /// Number of an event: the agent reports that all its requests from before that event have ended.
    quiet: u64,
}

impl Agent {
    fn follow(&mut self, regions: Vec<Region>, held: bool) {
        self.held = held;
        self.released.clear();
        let mut attached = BTreeMap::new();
        for region in regions {
            let asked = region.release.is_some_and(|release| release.option == UnbindOption::Managed);
            if region.state == RegionState::Releasing && asked {
                let (name, created_ms) = (region.name.clone(), region.created_ms);
                self.released.push(ReleasedRegion { name, created_ms });
            } else if !held && may_be_used(region.state) {
                if let Some(before) = self.attached.get(&region.name)
                    && before.created_ms == region.created_ms
                {
                    let grown = region.decoders.starts_with(&before.decoders);
                    assert!(grown, "what was attached changed: {before:?}, now {region:?}");
                }
                let region = Region { decoders: committed(&region), ..region };
                attached.insert(region.name.clone(), region);
            }
        }
        self.attached = attached;
    }
}

fn committed(region: &Region) -> Vec<cxloe_fabric::model::HdmDecoder> {
    region.decoders.iter().filter(|decoder| decoder.committed).copied().collect()
}

fn may_be_used(state: RegionState) -> bool {
    matches!(
        state,
        RegionState::Active
            | RegionState::Exposed
            | RegionState::Degraded
            | RegionState::Lost
            | RegionState::Releasing
    )
}

impl Fabric {
    fn new(extents: &[u64]) -> Self {
        Self::with(extents, Options::default())
    }

    fn with(extents: &[u64], options: Options) -> Self {
        let mut store = CommittedState::default();
        assert_eq!(options.node_timeout_ms, TIMEOUT_MS);
        let (manager, outcome) = Manager::take_over(FabricState::default(), options.clone(), 1000).unwrap();
        store.commit(&outcome.changes);
        let nodes = (0..).zip(extents).map(|(index, &extents)| Node::new(index, extents)).collect();
        let mut fabric = Self { manager, store, now_ms: 1000, nodes, agents: BTreeMap::new(), options };
        (0..extents.len()).for_each(|node| fabric.register(node).unwrap());
        fabric
    }

    /// Applies a command and stores its changes; asserts that a refused command changes nothing.
    fn apply(&mut self, command: Command) -> Result<CommandOutcome, ManagerError> {
        let before = self.manager.state().clone();
        let result = self.manager.apply(command, self.now_ms);
        match &result {
            Ok(outcome) => self.store.commit(&outcome.changes),
            Err(_) => assert_eq!(&before, self.manager.state(), "a refused command left a trace"),
        }
        assert_eq!(&self.store.state(), self.manager.state(), "the store and the manager differ");
        assert_eq!(Index::new(self.manager.state()), self.manager.index, "the index has lost touch");
        result
    }

    fn register(&mut self, node: usize) -> Result<(), ManagerError> {
        self.apply(Command::RegisterMemoryNode(self.nodes[node].register()))?;
        let registered =
            self.manager.memory_node_registered(&self.nodes[node].name, self.nodes[node].seen).unwrap();
        let node = &mut self.nodes[node];
        node.registration = registered.registration;
        node.acked_seq = registered.acked_seq;
        node.results.clear();
        node.mapped.clear();
        registered.mappings.iter().for_each(|mapping| node.map(mapping));
        node.shares = registered.shares;
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

    /// Has every memory node carry out its commands and report the results.
    fn settle(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.settle_only(node));
    }

    /// Has one memory node carry out its commands and report the results.
    fn settle_only(&mut self, node: usize) {
        (0..2).for_each(|_| self.sync(node, false).unwrap());
    }

    fn register_cn(&mut self, last: u8) {
        self.register_run(last, 5);
    }

    fn register_run(&mut self, last: u8, instance_id: u64) {
        let register = RegisterComputeNode {
            cn_id: cn(last),
            name: name(&format!("cn{last}")),
            udp: None,
            key: None,
            new_key: false,
            instance_id,
            seen: Watermark::default(),
        };
        self.apply(Command::RegisterComputeNode(register)).unwrap();
        let registered = self.manager.compute_node_registered(cn(last), Watermark::default()).unwrap();
        let agent = self.agents.entry(cn(last)).or_default();
        agent.registration = registered.registration;
        agent.after_event = registered.after_event;
        agent.follow(registered.regions, registered.held);
    }

    fn sync_cn(&mut self, last: u8) -> Result<(), ManagerError> {
        let agent = &self.agents[&cn(last)];
        let (registration, after_event) = (agent.registration, agent.after_event);
        let sync = ComputeNodeSync {
            registration,
            after_event,
            released: agent.released.clone(),
            quiet: agent.quiet,
            settled: false,
            wait_ms: 0,
        };
        self.apply(Command::SyncComputeNode(cn(last), sync))?;
        let synced = self.manager.compute_node_synced(cn(last), after_event);
        let agent = self.agents.get_mut(&cn(last)).unwrap();
        agent.after_event = synced.after_event;
        agent.released.clear();
        if let Some(regions) = synced.regions {
            agent.follow(regions, synced.held);
        }
        Ok(())
    }

    fn grow(&mut self, region: &str, extents: u64) -> Result<(), ManagerError> {
        let grow = GrowRegion { size: ByteSize(extents * EXTENT), on: Vec::new(), wait_ms: 0 };
        self.apply(Command::GrowRegion(name(region), grow)).map(drop)
    }

    fn set_ld(&mut self, node: &str, ld: u16, units: u64) -> Result<(), ManagerError> {
        let sizes = vec![ByteSize(units * LD_UNIT)];
        self.apply(Command::SetLdAllocations(name(node), ld, sizes)).map(drop)
    }

    fn bind(
        &mut self,
        node: &str,
        ld: Option<u16>,
        owner: CnId,
        switch: Option<u32>,
    ) -> Result<(), ManagerError> {
        let (compute_node, memory_node) = (owner.into(), name(node));
        let bind = Bind { compute_node, memory_node, ld, vppb: None, wait_ms: 0 };
        self.apply(Command::Bind(bind, switch)).map(drop)
    }

    fn unbind(
        &mut self,
        node: &str,
        ld: u16,
        option: UnbindOption,
        switch: Option<u32>,
    ) -> Result<(), ManagerError> {
        let unbind = Unbind { memory_node: name(node), ld, option, wait_ms: 0 };
        self.apply(Command::Unbind(unbind, switch)).map(drop)
    }

    fn create(&mut self, region: &str, extents: u64, owner: CnId) -> Result<(), ManagerError> {
        self.apply(Command::CreateRegion(CreateRegion::new(name(region), extents * EXTENT, owner))).map(drop)
    }

    fn destroy(&mut self, region: &str) -> Result<(), ManagerError> {
        self.apply(Command::DestroyRegion { name: name(region), force: true, created_ms: None }).map(drop)
    }

    fn state_of(&self, region: &str) -> Option<RegionState> {
        self.manager.region(&name(region)).ok().map(|region| region.state)
    }

    fn free(&self) -> u64 {
        self.manager.memory_node_statuses().iter().map(|status| status.free_bytes / EXTENT).sum()
    }

    /// Replaces the process of a memory node by another one, whose pool has the same content or is empty.
    fn restart_node(&mut self, node: usize, keep_content: bool) {
        let key = NodeKey::Memory(self.nodes[node].name.clone());
        self.apply(Command::HungUp(key, self.nodes[node].registration)).unwrap();
        self.nodes[node].instance_id += 1;
        self.nodes[node].incarnation += u64::from(!keep_content);
        self.register(node).unwrap();
    }

    fn restart_manager(&mut self) {
        let (manager, outcome) =
            Manager::take_over(self.store.state(), self.options.clone(), self.now_ms).unwrap();
        self.manager = manager;
        self.store.commit(&outcome.changes);
    }
}
