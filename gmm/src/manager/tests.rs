//! The manager against a fabric of memory nodes that do what they are told, late, twice, or not at all.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::api::{DestroyRegion, ErrorCode, Owner};
use crate::model::{CommandResult, LegState, Mapping, RegionState};
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

#[test]
fn a_region_is_active_once_its_node_confirms_and_gone_once_it_is_zeroed() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 3, cn(1)).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
    fabric.sync(0, false).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating), "the command was fetched, not confirmed");
    fabric.sync(0, false).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    let leg = &fabric.manager.region(&name("r")).unwrap().legs[0];
    assert_eq!(
        (leg.mac(), leg.bytes, leg.incarnation),
        (Some([2, 0, 0, 0, 2, 0].into()), 3 * EXTENT, Some(1))
    );
    assert_eq!(fabric.nodes[0].mapped.len(), 3);

    fabric.destroy("r").unwrap();
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Draining), 5));
    fabric.sync(0, false).unwrap();
    assert_eq!(fabric.free(), 5, "extents were free before the node confirmed");
    fabric.sync(0, false).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));
    assert!(fabric.nodes[0].mapped.is_empty());
}

#[test]
fn regions_go_to_the_emptiest_node_and_over_several_when_none_is_large_enough() {
    let mut fabric = Fabric::new(&[4, 10, 6]);
    fabric.create("one", 5, cn(1)).unwrap();
    fabric.create("many", 12, cn(1)).unwrap();
    let legs = |region: &str| -> Vec<(String, u64, u64)> {
        let legs = &fabric.manager.region(&name(region)).unwrap().legs;
        legs.iter()
            .map(|leg| (leg.memory_node.to_string(), leg.offset / EXTENT, leg.bytes / EXTENT))
            .collect()
    };
    assert_eq!(legs("one"), [("mn1".to_owned(), 0, 5)]);
    assert_eq!(legs("many"), [("mn2".to_owned(), 0, 6), ("mn1".to_owned(), 6, 5), ("mn0".to_owned(), 11, 1)]);
    let error = fabric.create("more", 4, cn(1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NoSpace);
    assert!(error.to_string().contains("8.00 MiB") && error.to_string().contains("6.00 MiB"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 1, cn(1)).unwrap();
    let ask = |change: fn(&mut CreateRegion)| {
        let mut create = CreateRegion::new(name("s"), EXTENT, cn(1));
        change(&mut create);
        Command::CreateRegion(create)
    };
    let table = [
        (ask(|c| c.name = name("r")), ErrorCode::NameInUse),
        (ask(|c| c.size.0 = 0), ErrorCode::BadRequest),
        (ask(|c| c.size.0 = EXTENT + 1), ErrorCode::BadRequest),
        (ask(|c| c.size.0 = u64::MAX), ErrorCode::NoSpace),
        (ask(|c| c.ways = 2), ErrorCode::BadRequest),
        (ask(|c| c.granularity = 128), ErrorCode::BadRequest),
        (ask(|c| c.granularity = 3000), ErrorCode::BadRequest),
        (ask(|c| c.owner = Owner::Name(name("nobody"))), ErrorCode::NotFound),
        (Command::DestroyRegion { name: name("s"), force: true }, ErrorCode::NotFound),
        (Command::ResetRegion(name("r")), ErrorCode::WrongState),
    ];
    for (command, code) in table {
        let error = fabric.apply(command.clone()).unwrap_err();
        assert_eq!(error.code(), code, "{command:?}: {error}");
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn registrations_that_do_not_fit_are_refused() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.create("r", 6, cn(1)).unwrap();
    fabric.settle();
    let ask = |change: fn(&mut RegisterMemoryNode)| {
        let mut register = Node::new(0, 8).register();
        change(&mut register);
        Command::RegisterMemoryNode(register)
    };
    let table = [
        (ask(|r| r.macs.clear()), ErrorCode::BadRequest),
        (ask(|r| r.macs[0] = [1, 0, 0, 0, 0, 0].into()), ErrorCode::BadRequest),
        (ask(|r| r.macs.push(r.macs[0])), ErrorCode::BadRequest),
        (ask(|r| r.macs[0] = Node::new(1, 8).mac.into()), ErrorCode::NameInUse),
        (ask(|r| r.extent_bytes = 3 << 20), ErrorCode::BadRequest),
        (ask(|r| r.pool_bytes = EXTENT - 1), ErrorCode::BadRequest),
        (ask(|r| r.pool_bytes = 5 * EXTENT), ErrorCode::WrongState),
        (ask(|r| r.extent_bytes = EXTENT / 2), ErrorCode::WrongState),
        (ask(|r| r.instance_id = 9), ErrorCode::NameInUse),
        (ask(|r| r.seen.term = 2), ErrorCode::StaleManager),
        (ask(|r| r.seen.revision = 1000), ErrorCode::StaleManager),
    ];
    for (command, code) in table {
        let error = fabric.apply(command.clone()).unwrap_err();
        assert_eq!(error.code(), code, "{command:?}: {error}");
    }
    fabric.apply(ask(|r| r.pool_bytes = 6 * EXTENT)).expect("a pool may shrink to what is held");
    assert_eq!(fabric.free(), 8);
}

#[test]
fn a_silent_node_degrades_its_regions_and_comes_back_by_itself() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.now_ms += TIMEOUT_MS - 1;
    fabric.apply(Command::Tick).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    fabric.now_ms += 1;
    assert_eq!(fabric.manager.next_deadline_ms(), Some(fabric.now_ms));
    fabric.apply(Command::Tick).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Degraded));
    assert_eq!(fabric.create("s", 1, cn(1)).unwrap_err().code(), ErrorCode::NoSpace);

    fabric.destroy("r").unwrap();
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Draining), 6), "quarantine");
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));
}

#[test]
fn lost_content_is_reported_and_not_served_until_someone_accepts_it() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let base = fabric.manager.region(&name("r")).unwrap().legs[0].cmem_base;
    fabric.nodes[0].incarnation = 2;
    fabric.register(0).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));
    assert!(fabric.nodes[0].mapped.is_empty(), "lost content is served");
    fabric.settle();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));

    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
    fabric.settle();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    let leg = &fabric.manager.region(&name("r")).unwrap().legs[0];
    assert_eq!((leg.cmem_base, leg.incarnation), (base, Some(2)));
    assert_eq!(fabric.nodes[0].mapped.len(), 2);
}

#[test]
fn content_that_was_never_touched_is_served_again_after_a_restart() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric
        .apply(Command::HungUp(liveness::NodeKey::Memory(name("mn0")), fabric.nodes[0].registration))
        .unwrap();
    fabric.nodes[0].instance_id = 2;
    fabric.restart_manager();
    assert_eq!(
        fabric.register(0).unwrap_err().code(),
        ErrorCode::NameInUse,
        "the other daemon may still be there"
    );
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    fabric.register(0).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.nodes[0].mapped.len()), (Some(RegionState::Active), 2));
}

#[test]
fn a_node_that_refuses_ends_the_region_with_its_reason() {
    let mut fabric = Fabric::new(&[8, 7]);
    fabric.create("r", 12, cn(1)).unwrap();
    let created = fabric.manager.state().meta.last_event;
    fabric.sync(1, true).unwrap();
    fabric.sync(1, false).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Draining));
    let reason = fabric.manager.reason_after(&name("r"), created).unwrap();
    assert!(reason.contains("mn1") && reason.contains("page table full"), "{reason}");
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 15));
}

#[test]
fn a_failed_unmap_keeps_the_extents_until_one_succeeds() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.destroy("r").unwrap();
    fabric.sync(0, true).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Draining), 6));
    fabric.destroy("r").unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));
}

#[test]
fn a_number_alone_confirms_nothing() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    let table = [(1, vec![]), (2, vec![CommandResult::done(1)]), (0, vec![CommandResult::done(1)])];
    for (acked_seq, results) in table {
        let sync = MemoryNodeSync { acked_seq, results, ..fabric.nodes[0].sync() };
        let error = fabric.apply(Command::SyncMemoryNode(name("mn0"), sync)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest, "{error}");
    }
    let sync = MemoryNodeSync { registration: 77, ..fabric.nodes[0].sync() };
    let error = fabric.apply(Command::SyncMemoryNode(name("mn0"), sync)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotRegistered);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
}

#[test]
fn a_compute_node_hears_of_its_own_regions_only() {
    let mut fabric = Fabric::new(&[8]);
    for last in [1, 2] {
        let register =
            RegisterComputeNode { cn_id: cn(last), name: name(&format!("cn{last}")), instance_id: 5 };
        fabric.apply(Command::RegisterComputeNode(register)).unwrap();
    }
    let before = [1, 2].map(|last| fabric.manager.compute_node_registered(cn(last)).unwrap().after_event);
    let by_name =
        CreateRegion { owner: Owner::Name(name("cn2")), ..CreateRegion::new(name("r"), EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(by_name)).unwrap();
    assert!(!fabric.manager.regions_changed(cn(1), before[0]));
    let synced = fabric.manager.compute_node_synced(cn(2), before[1]);
    assert_eq!(synced.regions.unwrap()[0].owner, cn(2));
    assert!(fabric.manager.compute_node_synced(cn(2), synced.after_event).regions.is_none());

    let DestroyRegion { force, .. } = DestroyRegion { force: false, wait_ms: 0 };
    let error = fabric.apply(Command::DestroyRegion { name: name("r"), force }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::RegionInUse);
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    fabric.apply(Command::DestroyRegion { name: name("r"), force }).unwrap();
}

#[test]
fn two_agents_with_one_cn_id_or_one_name_are_told_apart() {
    let mut fabric = Fabric::new(&[1]);
    let register = |last, node: &str, instance_id| {
        Command::RegisterComputeNode(RegisterComputeNode { cn_id: cn(last), name: name(node), instance_id })
    };
    fabric.apply(register(1, "a", 1)).unwrap();
    let registration = fabric.manager.compute_node_registered(cn(1)).unwrap().registration;
    assert_eq!(fabric.apply(register(1, "a", 2)).unwrap_err().code(), ErrorCode::NameInUse);
    assert_eq!(fabric.apply(register(2, "a", 3)).unwrap_err().code(), ErrorCode::NameInUse);
    fabric.apply(register(1, "a", 1)).expect("the same run may register again");
    let error = fabric.apply(Command::SyncComputeNode(cn(1), registration)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotRegistered);
    let current = fabric.manager.compute_node_registered(cn(1)).unwrap().registration;
    fabric.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), registration)).unwrap();
    assert!(fabric.apply(register(1, "a", 2)).is_err(), "an old connection says nothing about the new run");
    fabric.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), current)).unwrap();
    fabric.apply(register(1, "a", 2)).expect("the run before has hung up");
}

#[test]
fn the_event_log_is_bounded_and_pages() {
    let mut fabric = Fabric::new(&[1]);
    let rounds = EVENTS_KEPT + 10;
    for _ in 0..rounds {
        fabric.manager.apply(Command::RegisterMemoryNode(fabric.nodes[0].register()), fabric.now_ms).unwrap();
    }
    let page = fabric.manager.events_after(0, 5);
    assert_eq!(page.newest - page.oldest + 1, EVENTS_KEPT);
    assert_eq!(
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>(),
        (page.oldest..page.oldest + 5).collect::<Vec<_>>()
    );
    let rest = fabric.manager.events_after(page.newest - 2, 100);
    assert_eq!(rest.events.len(), 2);
    assert!(fabric.manager.events_after(page.newest, 100).events.is_empty());
    assert!(fabric.manager.events_after(u64::MAX - 1, 100).events.is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Create {
        owner: u8,
        extents: u64,
    },
    Destroy(prop::sample::Index),
    Reset(prop::sample::Index),
    /// Sync; whether the commands fail, whether the answer is lost.
    Sync {
        node: usize,
        fail: bool,
        answer_lost: bool,
    },
    /// A sync of the past arrives again.
    Replay {
        node: usize,
    },
    Restart {
        node: usize,
        keep_content: bool,
    },
    Silence(u64),
    RestartManager,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0usize..3;
    prop_oneof![
        4 => (0u8..3, 1u64..9).prop_map(|(owner, extents)| Step::Create { owner, extents }),
        3 => any::<prop::sample::Index>().prop_map(Step::Destroy),
        1 => any::<prop::sample::Index>().prop_map(Step::Reset),
        10 => (node.clone(), prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(node, fail, answer_lost)| Step::Sync { node, fail, answer_lost }),
        1 => node.clone().prop_map(|node| Step::Replay { node }),
        2 => (node, any::<bool>()).prop_map(|(node, keep_content)| Step::Restart { node, keep_content }),
        1 => (1u64..2 * TIMEOUT_MS).prop_map(Step::Silence),
        1 => Just(Step::RestartManager),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: no extent has two owners (the nodes assert that on their side too), none is
    /// lost, CMem is never given twice, a refused command leaves no trace, the store has what the manager has, and when
    /// all is quiet everything can be taken down and everything is free again.
    #[test]
    fn no_order_of_events_breaks_the_rules(steps in prop::collection::vec(step(), 1..70)) {
        let mut fabric = Fabric::new(&[6, 9, 12]);
        let mut cmem_given: BTreeMap<CnId, u64> = BTreeMap::new();
        let mut old_syncs: BTreeMap<usize, MemoryNodeSync> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            fabric.now_ms += 1;
            let region_at = |fabric: &Fabric, pick: prop::sample::Index| {
                let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
                (!regions.is_empty()).then(|| pick.get(&regions).clone())
            };
            match step {
                Step::Create { owner, extents } => {
                    let region = format!("r{number}");
                    if fabric.create(&region, extents, cn(owner)).is_ok() {
                        let given = cmem_given.entry(cn(owner)).or_default();
                        for leg in &fabric.manager.region(&name(&region)).unwrap().legs {
                            prop_assert!(leg.cmem_base >= *given, "CMem 0x{:x} given again", leg.cmem_base);
                            *given = leg.cmem_base + leg.bytes;
                        }
                    }
                }
                Step::Destroy(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        fabric.destroy(region.as_str()).unwrap();
                    }
                }
                Step::Reset(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::ResetRegion(region)));
                    }
                }
                Step::Sync { node, fail, answer_lost } => {
                    let sync = fabric.nodes[node].sync();
                    if answer_lost {
                        fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync.clone())).unwrap();
                    } else {
                        fabric.sync(node, fail).unwrap();
                    }
                    old_syncs.insert(node, sync);
                }
                Step::Replay { node } => {
                    if let Some(sync) = old_syncs.get(&node).cloned() {
                        let before = fabric.free();
                        drop(fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync)));
                        prop_assert_eq!(fabric.free(), before, "a repeated sync freed memory");
                    }
                }
                Step::Restart { node, keep_content } => {
                    let key = liveness::NodeKey::Memory(fabric.nodes[node].name.clone());
                    let registration = fabric.nodes[node].registration;
                    fabric.apply(Command::HungUp(key, registration)).unwrap();
                    fabric.nodes[node].instance_id += 1;
                    fabric.nodes[node].incarnation += u64::from(!keep_content);
                    fabric.register(node).unwrap();
                }
                Step::Silence(ms) => {
                    fabric.now_ms += ms;
                    fabric.apply(Command::Tick).unwrap();
                }
                Step::RestartManager => fabric.restart_manager(),
            }
            fabric.manager.state().verify().unwrap();
            for node in &fabric.nodes {
                let record = &fabric.manager.state().memory_nodes[&node.name];
                let derived = fabric.manager.state().free_extents(record).unwrap();
                prop_assert_eq!(&derived, &fabric.manager.free[&node.name], "free extents were lost or invented");
                let held: u64 = fabric.manager.state().legs_on(&node.name).map(|(_, leg)| leg.extents.len()).sum();
                prop_assert_eq!(held + derived.count(), node.extents);
                // What the manager believes to be served is served, and what it believes free is not.
                prop_assert!(derived.extents().iter().all(|extent| !node.mapped.contains_key(&extent)));
                for (region, leg) in fabric.manager.state().legs_on(&node.name) {
                    if leg.state == LegState::Mapped {
                        let first = leg.extents.iter().next().and_then(|extent| node.mapped.get(&extent));
                        prop_assert_eq!(first, Some(&(region.owner, leg.cmem_base)));
                    }
                }
            }
        }
        let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
        fabric.settle();
        for region in regions {
            drop(fabric.destroy(region.as_str()));
        }
        fabric.settle();
        prop_assert!(fabric.manager.state().regions.is_empty());
        prop_assert_eq!(fabric.free(), 6 + 9 + 12);
        prop_assert!(fabric.nodes.iter().all(|node| node.mapped.is_empty()));
    }
}
