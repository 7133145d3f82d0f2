//! Tests of CMem addresses, which are reused, but never while an old request could still reach them; and of the removal
//! of compute nodes.

use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::CMEM_LIMIT;
use proptest::prelude::*;

use super::super::cmem::QUARANTINE_MS;
use super::*;

/// Returns a fabric in which `cn1` has `extents` extents of CMem left that were never used.
fn nearly_used_up(extents: u64) -> Fabric {
    let mut fabric = Fabric::new(&[16, 16]);
    fabric.register_cn(1);
    let mut node = fabric.manager.state.compute_nodes[&cn(1)].clone();
    node.cmem_next = CMEM_LIMIT - extents * EXTENT;
    fabric.manager.put(Change::ComputeNode(node));
    let outcome = fabric.manager.close_journal();
    fabric.store.commit(&outcome.changes);
    fabric
}

fn quiet(fabric: &mut Fabric) {
    let agent = fabric.agents.get_mut(&cn(1)).unwrap();
    agent.quiet = agent.after_event;
}

fn bases(fabric: &Fabric, region: &str) -> Vec<u64> {
    fabric.manager.region(&name(region)).unwrap().legs.iter().map(|leg| leg.cmem_base).collect()
}

#[test]
fn addresses_are_reused_after_confirmation_of_nodes_and_agent() {
    let mut fabric = nearly_used_up(2);
    fabric.now_ms += QUARANTINE_MS;
    let refused = |fabric: &mut Fabric| {
        let error = fabric.create("next", 2, cn(1)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::LimitReached, "{error}");
    };
    fabric.create("first", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    let first = bases(&fabric, "first");
    fabric.destroy("first").unwrap();
    refused(&mut fabric);
    // The agent has received the event of the region's destruction, and its requests have ended, but the memory node
    // still maps the region.
    fabric.sync_cn(1).unwrap();
    quiet(&mut fabric);
    fabric.sync_cn(1).unwrap();
    refused(&mut fabric);
    // The memory node has unmapped the region, but requests of the agent may still be in the network.
    fabric.settle();
    assert!(fabric.state_of("first").is_none());
    refused(&mut fabric);
    fabric.sync_cn(1).unwrap();
    refused(&mut fabric);
    quiet(&mut fabric);
    fabric.sync_cn(1).unwrap();
    fabric.create("next", 2, cn(1)).unwrap();
    assert_eq!(bases(&fabric, "next"), first);
    assert_eq!(fabric.create("more", 1, cn(1)).unwrap_err().code(), ErrorCode::LimitReached);
}

#[test]
fn another_run_of_the_agent_waits_until_nothing_of_the_one_before_can_be_on_its_way() {
    let mut fabric = nearly_used_up(2);
    fabric.create("first", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    fabric.destroy("first").unwrap();
    fabric.settle();
    let registration = fabric.agents[&cn(1)].registration;
    fabric.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), registration)).unwrap();
    fabric.register_run(1, 6);
    let since = fabric.now_ms;
    for passed in [0, QUARANTINE_MS - 1] {
        fabric.now_ms = since + passed;
        fabric.sync_cn(1).unwrap();
        (0..2).for_each(|node| fabric.register(node).unwrap());
        assert_eq!(fabric.create("next", 2, cn(1)).unwrap_err().code(), ErrorCode::LimitReached);
    }
    fabric.now_ms = since + QUARANTINE_MS;
    fabric.create("next", 2, cn(1)).unwrap();
}

/// Runs a thousand programs in succession, each of which uses half of the pool. Together they need far more
/// CMem addresses than there are: the addresses must not run out.
#[test]
fn programs_may_come_and_go_for_ever() {
    let mut fabric = nearly_used_up(8);
    fabric.now_ms += QUARANTINE_MS;
    for round in 0..1000 {
        let region = format!("exec-{round}");
        fabric.create(&region, 4, cn(1)).unwrap_or_else(|error| panic!("round {round}: {error}"));
        fabric.settle();
        fabric.sync_cn(1).unwrap();
        fabric.destroy(&region).unwrap();
        fabric.settle();
        fabric.sync_cn(1).unwrap();
        quiet(&mut fabric);
        fabric.sync_cn(1).unwrap();
    }
    let node = &fabric.manager.state().compute_nodes[&cn(1)];
    assert!(node.retired.len() <= 2, "{:?}", node.retired);
    assert!(fabric.manager.state().verify().is_ok());
}

/// Request to an address that a memory node may still carry out.
#[derive(Debug, Clone)]
struct Request {
    region: Name,
    base: u64,
    bytes: u64,
    /// Time after which no network delivers the request any more, in milliseconds; `None` while its agent runs.
    until_ms: Option<u64>,
}

/// Compute node whose agent makes requests for every region that its own records show as attached.
struct World {
    fabric: Fabric,
    requests: Vec<Request>,
    made: u64,
    run: u64,
}

impl World {
    fn new() -> World {
        let mut fabric = nearly_used_up(6);
        fabric.now_ms += QUARANTINE_MS;
        World { fabric, requests: Vec::new(), made: 0, run: 5 }
    }

    fn step(&mut self, what: u8, pick: usize) {
        let names: Vec<Name> = self.fabric.manager.state().regions.keys().cloned().collect();
        match what {
            0..=2 => {
                let region = format!("r{}", self.made);
                if self.fabric.create(&region, 1 + pick as u64 % 3, cn(1)).is_ok() {
                    self.made += 1;
                }
            }
            3 | 4 if !names.is_empty() => {
                self.fabric.destroy(names[pick % names.len()].as_str()).unwrap();
            }
            5..=8 => self.fabric.sync(pick % 2, false).unwrap(),
            9..=11 => self.fabric.sync_cn(1).unwrap(),
            12 | 13 => {
                self.requests.retain(|request| request.until_ms.is_some());
                quiet(&mut self.fabric);
            }
            14 => {
                let registration = self.fabric.agents[&cn(1)].registration;
                self.fabric.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), registration)).unwrap();
                self.run += 1;
                let until = self.fabric.now_ms + QUARANTINE_MS - 1;
                self.requests.iter_mut().for_each(|request| {
                    request.until_ms.get_or_insert(until);
                });
                // A new process starts without the records of the former one.
                self.fabric.agents.insert(cn(1), Agent::default());
                self.fabric.register_run(1, self.run);
            }
            15 => self.fabric.now_ms += 1 + pick as u64 % (QUARANTINE_MS / 2),
            _ => {}
        }
        let now_ms = self.fabric.now_ms;
        self.requests.retain(|request| request.until_ms.is_none_or(|until| until >= now_ms));
        for region in self.fabric.agents[&cn(1)].attached.values() {
            let request = |leg: &cxloe_fabric::model::Leg| (region.name.clone(), leg.cmem_base, leg.bytes);
            for (region, base, bytes) in region.legs.iter().map(request) {
                self.requests.push(Request { region, base, bytes, until_ms: None });
            }
        }
        self.requests
            .sort_unstable_by_key(|request| (request.base, request.region.clone(), request.until_ms));
        self.requests.dedup_by_key(|request| (request.base, request.region.clone(), request.until_ms));
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for region in self.fabric.manager.state().regions.values() {
            for leg in &region.legs {
                let reached = self.requests.iter().find(|request| {
                    let apart = request.base + request.bytes <= leg.cmem_base
                        || leg.cmem_base + leg.bytes <= request.base;
                    request.region != region.name && !apart
                });
                prop_assert!(
                    reached.is_none(),
                    "{:?} reaches {} at {:#x}",
                    reached,
                    region.name,
                    leg.cmem_base
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever is lost or delayed, a request for one region must never reach the memory of another.
    #[test]
    fn no_request_reaches_what_came_later(
        steps in prop::collection::vec((0_u8..16, any::<usize>()), 1..250),
    ) {
        let mut world = World::new();
        for (what, pick) in steps {
            world.step(what, pick);
            world.check()?;
        }
    }
}

#[test]
fn a_compute_node_is_forgotten_when_it_has_nothing() {
    let mut fabric = nearly_used_up(4);
    fabric.create("r", 1, cn(1)).unwrap();
    fabric.settle();
    let forget = |fabric: &mut Fabric| fabric.apply(Command::ForgetComputeNode(cn(1).into()));
    let refused = |fabric: &mut Fabric, words: &str| {
        let error = forget(fabric).unwrap_err();
        assert_eq!(error.code(), ErrorCode::WrongState);
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(&mut fabric, "it is there");
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    (0..2).for_each(|node| fabric.register(node).unwrap());
    refused(&mut fabric, "it has regions");
    fabric.destroy("r").unwrap();
    refused(&mut fabric, "it has regions");
    fabric.settle();
    forget(&mut fabric).unwrap();
    assert!(!fabric.manager.state().compute_nodes.contains_key(&cn(1)));
    assert_eq!(forget(&mut fabric).unwrap_err().code(), ErrorCode::NotFound);
    fabric.restart_manager();
    // The compute node returns: it must get none of its earlier addresses before its old requests have ended.
    fabric.register_run(1, 9);
    assert_eq!(fabric.manager.state().compute_nodes[&cn(1)].index, 0);
    let error = fabric.create("big", 5, cn(1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitReached, "{error}");
    fabric.now_ms += QUARANTINE_MS;
    (0..2).for_each(|node| fabric.register(node).unwrap());
    fabric.create("big", 5, cn(1)).unwrap();
}

#[test]
fn invented_ids_replace_each_other_only() {
    let mut fabric = Fabric::new(&[4]);
    fabric.register_cn(1);
    fabric.create("r", 1, cn(1)).unwrap();
    fabric.apply(Command::SetQuota(cn(2).into(), Some(1 << 40))).unwrap();
    let invented = |number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        CnId::new([6, 0, a, b, c, d]).unwrap()
    };
    let register = |number: u32| RegisterComputeNode {
        cn_id: invented(number),
        name: name(&format!("x{number}")),
        udp: None,
        key: None,
        new_key: false,
        instance_id: 1,
        seen: Watermark::default(),
    };
    // These commands bypass the store for speed, because there are many.
    let (manager, now_ms) = (&mut fabric.manager, fabric.now_ms);
    for number in 0..COMPUTE_NODES_MAX as u32 - 2 {
        manager.apply(Command::RegisterComputeNode(register(number)), now_ms).unwrap();
    }
    let error = manager.apply(Command::RegisterComputeNode(register(1 << 20)), now_ms).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitReached, "all are there");
    manager.apply(Command::Tick, now_ms + TIMEOUT_MS).unwrap();
    for number in 1 << 20..(1 << 20) + 10 {
        manager.apply(Command::RegisterComputeNode(register(number)), now_ms + TIMEOUT_MS).unwrap();
    }
    let nodes = &manager.state().compute_nodes;
    assert_eq!(nodes.len(), COMPUTE_NODES_MAX);
    assert!(nodes.contains_key(&cn(1)) && nodes.contains_key(&cn(2)), "who has something stays");
    assert!((0..10).all(|number| !nodes.contains_key(&invented(number))), "the first to have come");
    // An id that never registered takes an idle one's place too, as the owner of a region or by its quota.
    let quota = Command::SetQuota(invented(1 << 21).into(), Some(1 << 40));
    manager.apply(quota, now_ms + TIMEOUT_MS).unwrap();
    let node = Command::RegisterMemoryNode(fabric.nodes[0].register());
    manager.apply(node, now_ms + TIMEOUT_MS).unwrap();
    let create = CreateRegion::new(name("late"), EXTENT, invented(1 << 22));
    manager.apply(Command::CreateRegion(create), now_ms + TIMEOUT_MS).unwrap();
    let nodes = &manager.state().compute_nodes;
    assert_eq!(nodes.len(), COMPUTE_NODES_MAX);
    assert!([1 << 21, 1 << 22].iter().all(|number| nodes.contains_key(&invented(*number))));
    assert!(manager.state().verify().is_ok());
    let indices: std::collections::BTreeSet<u32> = nodes.values().map(|node| node.index).collect();
    assert_eq!(indices.len(), COMPUTE_NODES_MAX, "each has a place of its own");
}
