//! Regions that move to another compute node: the moment at which the owner changes, and the state after each
//! failure.

use super::*;
use cxloe_fabric::api::{LegsFilled, MoveRegion, ProtectRegion};
use cxloe_fabric::model::{LegState, Protection};

impl Fabric {
    /// Returns a fabric with two memory nodes, agents of `cn(1)` and `cn(2)`, and the region `r` of `cn(1)`
    /// on both nodes.
    fn with_region() -> Self {
        let mut fabric = Self::new(&[6, 6]);
        (1..3).for_each(|last| fabric.register_cn(last));
        let create = CreateRegion::new(name("r"), 8 * EXTENT, cn(1));
        fabric.apply(Command::CreateRegion(create)).unwrap();
        fabric.settle();
        (1..3).for_each(|last| fabric.sync_cn(last).unwrap());
        assert!(fabric.agents[&cn(1)].attached.contains_key(&name("r")));
        fabric
    }

    fn order(&mut self, to: Option<u8>, force: bool) -> Result<(), ManagerError> {
        let order = MoveRegion { to: to.map(|to| cn(to).into()), force, wait_ms: 0 };
        self.apply(Command::MoveRegion(name("r"), order)).map(drop)
    }

    fn owner_of_r(&self) -> CnId {
        self.manager.region(&name("r")).unwrap().owner
    }

    /// Syncs agents and memory nodes until nothing changes any more.
    fn follow(&mut self) {
        for _ in 0..3 {
            (1..3).for_each(|last| self.sync_cn(last).unwrap());
            self.settle();
        }
    }

    fn attached(&self) -> Vec<CnId> {
        let has = |agent: &Agent| agent.attached.contains_key(&name("r"));
        self.agents.iter().filter(|(_, agent)| has(agent)).map(|(cn, _)| *cn).collect()
    }

    /// Returns the compute nodes for which memory nodes have mappings.
    fn served(&self) -> Vec<CnId> {
        let served = self.nodes.iter().flat_map(|node| node.mapped.values().map(|(cn, _)| *cn));
        let mut served: Vec<CnId> = served.collect();
        served.sort_unstable();
        served.dedup();
        served
    }
}

fn refused(result: Result<(), ManagerError>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn the_owner_changes_once_it_has_released_the_region() {
    let mut fabric = Fabric::with_region();
    let epoch = fabric.manager.region(&name("r")).unwrap().epoch;
    fabric.order(Some(2), false).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Releasing), cn(1)));
    fabric.order(Some(2), false).unwrap();
    assert_eq!(fabric.served(), [cn(1)]);
    fabric.sync_cn(1).unwrap();
    assert_eq!(fabric.owner_of_r(), cn(1), "it has not reported the release");
    fabric.sync_cn(1).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Creating), cn(2)));
    assert_eq!(fabric.attached(), []);
    // The region becomes active only when both memory nodes have replaced their mappings.
    fabric.settle_only(0);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
    fabric.settle_only(1);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    assert_eq!(fabric.served(), [cn(2)]);
    fabric.follow();
    assert_eq!(fabric.attached(), [cn(2)]);
    let region = fabric.manager.region(&name("r")).unwrap();
    assert!(region.epoch > epoch && region.legs.iter().all(|leg| leg.former.is_none()));
    let bound: Vec<CnId> =
        (1..3).flat_map(|last| fabric.manager.devices_of(cn(last)).map(move |_| cn(last))).collect();
    assert_eq!(bound, [cn(2); 2], "each memory node is bound to the owner");
    // The region moves back and forth: it must not get its earlier addresses at the same compute node again.
    let before: Vec<u64> = region.legs.iter().map(|leg| leg.cmem_base).collect();
    fabric.order(Some(1), false).unwrap();
    fabric.follow();
    fabric.order(Some(2), false).unwrap();
    fabric.follow();
    let region = fabric.manager.region(&name("r")).unwrap();
    assert_eq!((region.owner, region.state), (cn(2), RegionState::Active));
    assert!(region.legs.iter().all(|leg| !before.contains(&leg.cmem_base)));
    assert_eq!(fabric.free(), 4);
    fabric.destroy("r").unwrap();
    fabric.settle();
    assert_eq!((fabric.free(), fabric.served()), (12, vec![]));
}

#[test]
fn before_the_release_the_owner_keeps_it() {
    let mut fabric = Fabric::with_region();
    // Case 1: the move is stopped by order.
    fabric.order(Some(2), false).unwrap();
    fabric.order(None, false).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(1)));
    fabric.order(None, false).unwrap();
    // Case 2: the region is disabled during the move.
    fabric.order(Some(2), false).unwrap();
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Disabled), cn(1)));
    fabric.apply(Command::EnableRegion(name("r"))).unwrap();
    fabric.follow();
    // Case 3: the owner's agent stops without having written back.
    fabric.order(Some(2), false).unwrap();
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(1)));
    // Case 4: another agent of the owner starts before the release.
    fabric.register_run(1, 6);
    fabric.sync_cn(1).unwrap();
    fabric.order(Some(2), false).unwrap();
    let key = liveness::NodeKey::Compute(cn(1));
    let registration = fabric.agents[&cn(1)].registration;
    fabric.apply(Command::HungUp(key, registration)).unwrap();
    fabric.register_run(1, 7);
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(1)));
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    // The owner's agent is unreachable, and may have changes that it has not written back.
    refused(fabric.order(Some(2), false), "--force");
    fabric.order(Some(2), true).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Creating), cn(2)));
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));
}

#[test]
fn after_the_commit_it_is_the_new_owners_whatever_restarts() {
    for keep in [true, false] {
        let mut fabric = Fabric::with_region();
        fabric.order(Some(2), false).unwrap();
        (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
        fabric.restart_manager();
        assert_eq!(fabric.owner_of_r(), cn(2));
        let key = liveness::NodeKey::Memory(name("mn0"));
        let registration = fabric.nodes[0].registration;
        fabric.apply(Command::HungUp(key, registration)).unwrap();
        fabric.nodes[0].instance_id += 1;
        fabric.nodes[0].incarnation += u64::from(!keep);
        fabric.register(0).unwrap();
        assert!(fabric.nodes[0].mapped.is_empty(), "nobody is served before the command");
        (1..3).for_each(|last| fabric.register_cn(last));
        (0..2).for_each(|node| fabric.register(node).unwrap());
        fabric.follow();
        let state = if keep { RegionState::Active } else { RegionState::Lost };
        assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(state), cn(2)));
        assert_eq!(fabric.attached(), [cn(2)]);
    }
}

/// Returns a fabric whose region `r` moved to `cn(2)`, and whose first memory node refused the hand-over.
fn refused_by_a_memory_node() -> Fabric {
    let mut fabric = Fabric::with_region();
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    fabric.sync(0, true).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Lost), cn(2)));
    let region = fabric.manager.region(&name("r")).unwrap();
    let states: Vec<LegState> = region.legs.iter().map(|leg| leg.state).collect();
    assert_eq!(states, [LegState::Lost, LegState::Mapped]);
    assert_eq!(fabric.served(), [cn(1), cn(2)], "one memory node still has it for the former owner");
    fabric
}

#[test]
fn a_memory_node_that_refuses_leaves_a_lost_part() {
    // Case 1: a reset of the region gives up its content.
    let mut fabric = refused_by_a_memory_node();
    refused(fabric.order(Some(1), false), "gmm reset-region");
    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    assert_eq!(fabric.served(), [cn(1), cn(2)]);
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));
    fabric.order(Some(1), false).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.attached()), (Some(RegionState::Active), vec![cn(1)]));

    // Case 2: the memory node refuses the reset as well.
    let mut fabric = refused_by_a_memory_node();
    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    fabric.sync(0, true).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Lost), vec![cn(1), cn(2)]));
    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));

    // Case 3: the region is destroyed.
    let mut fabric = refused_by_a_memory_node();
    fabric.destroy("r").unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.free(), fabric.served()), (None, 12, vec![]));

    // Case 4: the region is destroyed before the memory node refuses the hand-over.
    let mut fabric = Fabric::with_region();
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    fabric.destroy("r").unwrap();
    fabric.sync(0, true).unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.free(), fabric.served()), (None, 12, vec![]));

    // Case 5: the memory node restarts with its content, and then maps it for the new owner.
    let mut fabric = refused_by_a_memory_node();
    let registration = fabric.nodes[0].registration;
    let key = liveness::NodeKey::Memory(name("mn0"));
    fabric.apply(Command::HungUp(key, registration)).unwrap();
    fabric.nodes[0].instance_id += 1;
    fabric.register(0).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));
    assert_eq!(fabric.attached(), [cn(2)]);
}

#[test]
fn what_cannot_move_says_why() {
    let mut fabric = Fabric::with_region();
    let unknown = fabric.order(Some(9), false);
    assert!(matches!(unknown, Err(ManagerError::NoComputeNode(_))), "{unknown:?}");
    fabric.order(Some(1), false).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active), "it is its owner's already");
    fabric.apply(Command::SetQuota(cn(2).into(), Some(7 * EXTENT))).unwrap();
    assert!(matches!(fabric.order(Some(2), false), Err(ManagerError::OverQuota { .. })));
    fabric.apply(Command::SetQuota(cn(2).into(), None)).unwrap();

    // During the move, the new owner gets a quota that is too small: the region stays with its present owner.
    fabric.order(Some(2), false).unwrap();
    fabric.apply(Command::SetQuota(cn(2).into(), Some(7 * EXTENT))).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.attached()), (Some(RegionState::Active), vec![cn(1)]));
    fabric.apply(Command::SetQuota(cn(2).into(), None)).unwrap();

    fabric.grow("r", 10).unwrap();
    refused(fabric.order(Some(2), false), "does not grow");
    fabric.settle();
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.follow();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
    fabric.order(Some(2), false).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.attached()), (Some(RegionState::Active), vec![cn(2)]));
    fabric.destroy("r").unwrap();
    refused(fabric.order(Some(1), false), "only a region in use");

    // Capacity reserved for a logical device of a compute node stays with this compute node.
    let mut fabric = Fabric::new(&[6]);
    (1..3).for_each(|last| fabric.register_cn(last));
    fabric.set_ld("mn0", 0, 1).unwrap();
    fabric.bind("mn0", Some(0), cn(1), None).unwrap();
    fabric.settle();
    let region = fabric.manager.state().regions.keys().next().cloned().unwrap();
    let order = MoveRegion { to: Some(cn(2).into()), force: false, wait_ms: 0 };
    refused(fabric.apply(Command::MoveRegion(region, order)).map(drop), "set aside for logical device 0");

    // A memory node that is allocated as a whole belongs to one compute node, so a region on it can move only if it is
    // the only one there.
    let mut fabric = Fabric::new(&[6]);
    fabric.nodes[0].kind = DeviceKind::Sld;
    fabric.register(0).unwrap();
    (1..3).for_each(|last| fabric.register_cn(last));
    ["r", "other"].into_iter().for_each(|region| fabric.create(region, 2, cn(1)).unwrap());
    fabric.settle();
    refused(fabric.order(Some(2), false), "has other regions there");
    fabric.destroy("other").unwrap();
    fabric.settle();
    fabric.order(Some(2), false).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));
}

/// A copy is still being mapped when the owner releases the region: the owner changes only after the memory node has
/// answered.
#[test]
fn a_mirrored_region_moves_with_both_copies() {
    let mut fabric = Fabric::new(&[4, 4]);
    (1..3).for_each(|last| fabric.register_cn(last));
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    (1..3).for_each(|last| fabric.sync_cn(last).unwrap());
    let protect = ProtectRegion { protect: Protection::Mirror, on: Vec::new(), wait_ms: 0 };
    fabric.apply(Command::ProtectRegion(name("r"), protect)).unwrap();
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.owner_of_r(), cn(1), "a part is being mapped for it");
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Exposed), cn(2)));
    let region = fabric.manager.region(&name("r")).unwrap();
    let states: Vec<LegState> = region.legs.iter().map(|leg| leg.state).collect();
    assert_eq!(states, [LegState::Mapped, LegState::Stale], "the new owner fills the copy");
    assert_eq!(fabric.served(), [cn(2)]);
}

/// A copy that is to be unmapped is on an unreachable memory node: the region moves after that node's record is
/// removed.
#[test]
fn a_move_does_not_wait_for_a_forgotten_memory_node() {
    let mut fabric = Fabric::new(&[4, 4]);
    (1..3).for_each(|last| fabric.register_cn(last));
    let create = CreateRegion::new(name("r"), 2 * EXTENT, cn(1));
    let create = CreateRegion { protect: Protection::Mirror, ..create };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    let away = fabric.manager.region(&name("r")).unwrap().legs.iter().find(|leg| leg.copy == 1);
    let away = away.unwrap().memory_node.clone();
    let there = fabric.nodes.iter().position(|node| node.name != away).unwrap();
    fabric.now_ms += TIMEOUT_MS;
    (1..3).for_each(|last| fabric.sync_cn(last).unwrap());
    fabric.settle_only(there);
    fabric.apply(Command::Tick).unwrap();
    let protect = ProtectRegion { protect: Protection::None, on: Vec::new(), wait_ms: 0 };
    fabric.apply(Command::ProtectRegion(name("r"), protect)).unwrap();
    fabric.order(Some(2), false).unwrap();
    (0..3).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Disabled), cn(1)));
    fabric.apply(Command::ForgetMemoryNode { name: away, force: false }).unwrap();
    fabric.settle_only(there);
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(2)));
}

/// While a memory node may still map the region for the former owner, the former owner's addresses must not be counted
/// as those of a compute node that nobody knows any more.
#[test]
fn the_former_owner_is_not_forgotten_before_memory_nodes_have_answered() {
    let mut fabric = Fabric::with_region();
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.owner_of_r(), cn(2));
    fabric.now_ms += TIMEOUT_MS;
    fabric.sync_cn(2).unwrap();
    fabric.apply(Command::Tick).unwrap();
    let forget = || Command::ForgetComputeNode(cn(1).into());
    refused(fabric.apply(forget()).map(drop), "may still map");
    fabric.settle();
    fabric.apply(forget()).unwrap();
    fabric.register_run(1, 6);
    // A manager does not start with a state that contradicts itself.
    fabric.restart_manager();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(2)));
}

/// One memory node has given its copy to the new owner, and the other has not answered yet, when the new owner's agent
/// is replaced: the copy that the new owner can use stays in sync.
#[test]
fn the_copy_that_moved_is_kept_when_the_new_owner_restarts() {
    let mut fabric = Fabric::new(&[4, 4]);
    (1..3).for_each(|last| fabric.register_cn(last));
    let create = CreateRegion::new(name("r"), 2 * EXTENT, cn(1));
    let create = CreateRegion { protect: Protection::Mirror, ..create };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    (1..3).for_each(|last| fabric.sync_cn(last).unwrap());
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.owner_of_r(), cn(2));
    let region = fabric.manager.region(&name("r")).unwrap();
    let moved = region.legs.iter().find(|leg| leg.copy == 1).unwrap().memory_node.clone();
    let there = fabric.nodes.iter().position(|node| node.name == moved).unwrap();
    fabric.settle_only(there);
    fabric.sync_cn(2).unwrap();
    let registration = fabric.agents[&cn(2)].registration;
    fabric.apply(Command::HungUp(liveness::NodeKey::Compute(cn(2)), registration)).unwrap();
    fabric.register_run(2, 6);
    let state = |fabric: &Fabric, copy: u8| {
        let region = fabric.manager.region(&name("r")).unwrap();
        region.legs.iter().find(|leg| leg.copy == copy).unwrap().state
    };
    assert_eq!((state(&fabric, 0), state(&fabric, 1)), (LegState::Stale, LegState::Mapped));
    fabric.settle();
    assert_eq!((state(&fabric, 0), state(&fabric, 1)), (LegState::Stale, LegState::Mapped));
}

/// The memory node of one copy loses its content before it has given the copy to the new owner: it maps the copy for
/// the new owner alone, with zeros.
#[test]
fn a_copy_whose_content_is_lost_during_the_move_is_made_again() {
    let mut fabric = Fabric::new(&[4, 4]);
    (1..3).for_each(|last| fabric.register_cn(last));
    let create = CreateRegion::new(name("r"), 2 * EXTENT, cn(1));
    let create = CreateRegion { protect: Protection::Mirror, ..create };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    (1..3).for_each(|last| fabric.sync_cn(last).unwrap());
    fabric.order(Some(2), false).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.owner_of_r(), cn(2));
    fabric.restart_node(0, false);
    fabric.settle();
    let region = fabric.manager.region(&name("r")).unwrap();
    assert!(region.legs.iter().all(|leg| leg.former.is_none()), "{region:?}");
    let stale = region.legs.iter().find(|leg| leg.state == LegState::Stale).unwrap();
    let (registration, mac) = (fabric.agents[&cn(2)].registration, stale.mac().unwrap());
    let filled = LegsFilled { registration, mac, cmem_base: stale.cmem_base, epoch: region.epoch };
    fabric.apply(Command::LegsFilled(name("r"), filled)).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    fabric.restart_node(0, true);
    assert!(!fabric.nodes[0].mapped.is_empty(), "it serves the copy again");
    fabric.order(Some(1), false).unwrap();
    fabric.follow();
    assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Active), cn(1)));
}

/// A memory node is away with the content of its part, and another pool is in its place. The region moves, once or twice,
/// and the node returns with the content: the present owner gets it.
#[test]
fn content_that_returns_belongs_to_the_new_owner() {
    for owners in [vec![2], vec![2, 1]] {
        let mut fabric = Fabric::with_region();
        fabric.restart_node(0, false);
        assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));
        for to in &owners {
            fabric.order(Some(*to), false).unwrap();
            fabric.follow();
            assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Lost), cn(*to)));
        }
        let owner = cn(*owners.last().unwrap());
        assert_eq!(fabric.served(), [owner], "the other part");
        fabric.nodes[0].incarnation -= 1;
        fabric.restart_node(0, true);
        assert!(fabric.nodes[0].mapped.is_empty(), "nobody is served before the command");
        fabric.follow();
        assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![owner]));
        let region = fabric.manager.region(&name("r")).unwrap();
        assert!(!fabric.nodes[0].mapped.is_empty() && region.legs.iter().all(|leg| leg.former.is_none()));
    }
    // Without the content, a reset gives the region back.
    let mut fabric = Fabric::with_region();
    fabric.restart_node(0, false);
    fabric.order(Some(2), false).unwrap();
    fabric.follow();
    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.served()), (Some(RegionState::Active), vec![cn(2)]));
}

/// The region is lost, so it can be released again while a memory node has not answered the first move yet: the second
/// move happens after this answer.
#[test]
fn a_move_during_another_one_waits_for_its_memory_nodes() {
    for (fails, owner) in [(false, cn(1)), (true, cn(2))] {
        let mut fabric = Fabric::with_region();
        fabric.restart_node(0, false);
        assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));
        fabric.order(Some(2), false).unwrap();
        (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
        assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Lost), cn(2)));
        fabric.order(Some(1), false).unwrap();
        (0..2).for_each(|_| fabric.sync_cn(2).unwrap());
        assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Disabled), cn(2)));
        fabric.sync(1, fails).unwrap();
        fabric.settle_only(1);
        assert_eq!((fabric.state_of("r"), fabric.owner_of_r()), (Some(RegionState::Lost), owner), "{fails}");
    }
}
