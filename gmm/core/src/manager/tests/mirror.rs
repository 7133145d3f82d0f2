//! Copies of mirrored regions: a test for each transition, and a search for an order of events that breaks an
//! invariant.

use super::*;
use cxloe_fabric::api::{LegsFilled, LegsStale, ProtectRegion, RelocateRegion};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{Leg, LegState, Protection};
use proptest::prelude::*;

const REBUILD_AFTER_MS: u64 = 60_000;

impl Fabric {
    /// Returns a fabric with memory nodes of these sizes, one per rack, and the agent of `cn(1)`.
    fn racked(extents: &[u64]) -> Self {
        let options = Options { rebuild_after_ms: REBUILD_AFTER_MS, ..Options::default() };
        let mut fabric = Self::with(extents, options);
        fabric.register_cn(1);
        fabric
    }

    fn mirrored(extents: &[u64], size: u64) -> Self {
        let mut fabric = Self::racked(extents);
        fabric.create_mirrored("r", size, Ways::One).unwrap();
        fabric.settle();
        assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
        fabric
    }

    fn create_mirrored(&mut self, region: &str, extents: u64, ways: Ways) -> Result<(), ManagerError> {
        let create = CreateRegion::new(name(region), extents * EXTENT, cn(1));
        let create = CreateRegion { protect: Protection::Mirror, ways, ..create };
        self.apply(Command::CreateRegion(create)).map(drop)
    }

    fn region(&self) -> &Region {
        self.manager.region(&name("r")).unwrap()
    }

    /// Returns copy, number of the memory node, and state of each leg that is not being unmapped.
    fn legs(&self) -> Vec<(u8, usize, LegState)> {
        let live = self.region().legs.iter().filter(|leg| leg.state != LegState::Unmapping);
        let mut legs: Vec<_> = live.map(|leg| (leg.copy, self.node_of(leg), leg.state)).collect();
        legs.sort_by_key(|(copy, ..)| *copy);
        legs
    }

    fn node_of(&self, leg: &Leg) -> usize {
        self.nodes.iter().position(|node| node.name == leg.memory_node).unwrap()
    }

    fn stale_at(&mut self, node: usize, epoch: u64) -> Result<(), ManagerError> {
        let (registration, mac) = (self.agents[&cn(1)].registration, self.nodes[node].mac.into());
        self.apply(Command::LegsStale(name("r"), LegsStale { registration, mac, epoch })).map(drop)
    }

    fn stale(&mut self, node: usize) -> Result<(), ManagerError> {
        self.stale_at(node, self.region().epoch)
    }

    fn filled_at(&mut self, node: usize, epoch: u64) -> Result<(), ManagerError> {
        let leg = self
            .region()
            .legs
            .iter()
            .find(|leg| leg.state != LegState::Unmapping && leg.memory_node == self.nodes[node].name);
        let cmem_base = leg.map_or(u64::MAX, |leg| leg.cmem_base);
        let (registration, mac) = (self.agents[&cn(1)].registration, self.nodes[node].mac.into());
        self.apply(Command::LegsFilled(name("r"), LegsFilled { registration, mac, cmem_base, epoch }))
            .map(drop)
    }

    fn filled(&mut self, node: usize) -> Result<(), ManagerError> {
        self.filled_at(node, self.region().epoch)
    }

    /// Lets time pass, while only these memory nodes and the agent send messages.
    fn pass(&mut self, ms: u64, alive: &[usize]) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.now_ms = until.min(self.now_ms + 1000);
            alive.iter().for_each(|node| self.sync(*node, false).unwrap());
            self.sync_cn(1).unwrap();
            self.apply(Command::Tick).unwrap();
        }
    }

    fn protect(&mut self, protect: Protection) -> Result<(), ManagerError> {
        let protect = ProtectRegion { protect, on: Vec::new(), wait_ms: 0 };
        self.apply(Command::ProtectRegion(name("r"), protect)).map(drop)
    }

    fn relocate(&mut self, from: usize, to: Option<usize>) -> Result<(), ManagerError> {
        let of = |node: usize| self.nodes[node].name.clone();
        let relocate = RelocateRegion { from: of(from), to: to.map(of), wait_ms: 0 };
        self.apply(Command::RelocateRegion(name("r"), relocate)).map(drop)
    }

    /// Restarts a memory node with an empty pool.
    fn lose(&mut self, node: usize) {
        self.nodes[node].incarnation += 1;
        self.nodes[node].instance_id += 1;
        self.apply(Command::HungUp(
            NodeKey::Memory(self.nodes[node].name.clone()),
            self.nodes[node].registration,
        ))
        .unwrap();
        self.register(node).unwrap();
    }
}

use LegState::{Lost, Mapped, Mapping, Stale};

#[test]
fn both_copies_of_a_new_region_are_in_sync_on_different_nodes() {
    let fabric = Fabric::mirrored(&[4, 4], 2);
    assert_eq!(fabric.legs(), [(0, 0, Mapped), (1, 1, Mapped)]);
    assert_eq!((fabric.region().epoch, fabric.region().size, fabric.free()), (0, 2 * EXTENT, 4));
    fabric.manager.state().verify().unwrap();
}

#[test]
fn copies_are_on_different_racks_and_refused_by_name_otherwise() {
    let mut fabric = Fabric::racked(&[8, 8, 4]);
    let rack = |node: usize| Some(name(if node < 2 { "a" } else { "b" }));
    let register = |fabric: &mut Fabric, node: usize| {
        let register = RegisterMemoryNode { rack: rack(node), ..fabric.nodes[node].register() };
        fabric.apply(Command::RegisterMemoryNode(register)).unwrap();
        fabric.nodes[node].registration =
            fabric.manager.state().memory_nodes[&fabric.nodes[node].name].registration;
    };
    (0..3).for_each(|node| register(&mut fabric, node));
    fabric.create_mirrored("r", 4, Ways::One).unwrap();
    fabric.settle();
    let on: Vec<usize> = fabric.legs().iter().map(|(_, node, _)| *node).collect();
    assert!(on.contains(&2), "one copy is on the other rack: {on:?}");
    let refused = fabric.create_mirrored("x", 2, Ways::One).unwrap_err();
    assert!(matches!(refused, ManagerError::OneRack { .. }), "{refused}");
    let mut alone = Fabric::racked(&[8]);
    let refused = alone.create_mirrored("x", 2, Ways::One).unwrap_err();
    assert!(matches!(refused, ManagerError::TooFewForMirror { nodes: 1, .. }), "{refused}");
}

#[test]
fn two_nodes_serve_both_copies_of_two_ways() {
    let mut fabric = Fabric::racked(&[4, 4]);
    fabric.create_mirrored("r", 4, Ways::Two).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Active), 0));
    let region = fabric.region().clone();
    for leg in &region.legs {
        let other = region.legs.iter().find(|other| other.is_copy_of(leg)).unwrap();
        assert_ne!(leg.memory_node, other.memory_node);
    }
    assert_eq!(
        fabric.create_mirrored("x", 2, Ways::Two).unwrap_err().code(),
        cxloe_fabric::api::ErrorCode::NoSpace
    );
}

#[test]
fn both_copies_count_for_the_quota_and_grow() {
    let mut fabric = Fabric::mirrored(&[8, 8], 2);
    let quota = |extents: u64| Command::SetQuota(cn(1).into(), Some(extents * EXTENT));
    fabric.apply(quota(7)).unwrap();
    assert!(matches!(fabric.grow("r", 4), Err(ManagerError::OverQuota { used, .. }) if used == 4 * EXTENT));
    fabric.apply(quota(8)).unwrap();
    fabric.grow("r", 4).unwrap();
    fabric.settle_only(0);
    assert_eq!(fabric.region().size, 2 * EXTENT, "one copy of the addition is not confirmed");
    fabric.settle();
    assert_eq!((fabric.region().size, fabric.state_of("r")), (4 * EXTENT, Some(RegionState::Active)));
    assert!(fabric.region().legs.iter().all(Leg::is_in_sync), "zeros are in sync");
}

#[test]
fn the_owner_declares_a_leg_stale_once_and_fills_it() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.stale(1).unwrap();
    assert_eq!(fabric.legs(), [(0, 0, Mapped), (1, 1, Stale)]);
    assert_eq!((fabric.state_of("r"), fabric.region().epoch), (Some(RegionState::Exposed), 1));
    let events = fabric.manager.state().events.clone();
    assert!(matches!(&events.back().unwrap().kind, EventKind::LegStale { epoch: 1, .. }));
    fabric.stale_at(1, 0).unwrap();
    assert_eq!(fabric.region().epoch, 1, "a repetition changes nothing");
    assert!(matches!(fabric.stale(0), Err(ManagerError::OnlyCopy { .. })));
    assert!(matches!(fabric.stale_at(0, 0), Err(ManagerError::StaleEpoch { epoch: 1, .. })));
    assert!(
        matches!(fabric.filled_at(1, 0), Err(ManagerError::StaleEpoch { .. })),
        "filled before it was stale"
    );
    fabric.filled(1).unwrap();
    assert_eq!((fabric.state_of("r"), fabric.region().epoch), (Some(RegionState::Active), 2));
    fabric.filled_at(1, 1).unwrap();
    assert_eq!(fabric.region().epoch, 2, "a repetition changes nothing");
    let registration = fabric.agents[&cn(1)].registration + 1;
    let other = LegsStale { registration, mac: fabric.nodes[0].mac.into(), epoch: 2 };
    assert!(matches!(
        fabric.apply(Command::LegsStale(name("r"), other)),
        Err(ManagerError::NotRegistered { .. })
    ));
}

/// The agent has filled a leg, and its report of that was lost, when the leg's memory node fails: the agent reports
/// only the failure. With a new epoch its writes complete without the leg.
#[test]
fn a_leg_that_fails_once_it_is_filled_gets_a_new_epoch() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.stale(1).unwrap();
    let epoch = fabric.region().epoch;
    fabric.stale_at(1, epoch).unwrap();
    assert_eq!((fabric.legs()[1], fabric.region().epoch), ((1, 1, Stale), epoch + 1));
    fabric.stale_at(1, epoch).unwrap();
    assert_eq!(fabric.region().epoch, epoch + 1, "a repetition changes nothing");
    assert!(matches!(fabric.filled_at(1, epoch), Err(ManagerError::StaleEpoch { .. })));
    fabric.filled(1).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
}

#[test]
fn a_dead_node_exposes_and_two_dead_nodes_degrade() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.pass(TIMEOUT_MS + 1, &[0]);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Exposed));
    fabric.stale(1).unwrap();
    fabric.pass(TIMEOUT_MS + 1, &[]);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Degraded), "the stale copy does not count");
    fabric.register(1).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Degraded));
    assert!(!fabric.nodes[1].mapped.is_empty(), "a stale leg is mapped, so that it can be filled");
    fabric.register(0).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Exposed));
}

#[test]
fn a_node_that_lost_its_content_is_mapped_again_and_filled() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.lose(0);
    assert_eq!(fabric.legs(), [(0, 0, Mapping), (1, 1, Mapped)]);
    assert_eq!((fabric.state_of("r"), fabric.region().epoch), (Some(RegionState::Exposed), 1));
    fabric.settle();
    assert_eq!(fabric.legs(), [(0, 0, Stale), (1, 1, Mapped)], "zeros are not the content");
    let fresh = fabric.region().legs.iter().find(|leg| leg.copy == 0).unwrap().incarnation;
    assert_eq!(fresh, Some(2));
    fabric.lose(0);
    fabric.settle();
    assert_eq!(fabric.legs()[0], (0, 0, Stale), "again, while stale");
    fabric.filled(0).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
}

#[test]
fn a_region_is_lost_with_its_last_copy_in_sync_and_reset() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.lose(0);
    fabric.settle();
    fabric.lose(1);
    assert_eq!(fabric.legs(), [(0, 0, Stale), (1, 1, Lost)]);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));
    assert!(fabric.filled(0).is_err(), "there is nothing to fill it from");
    fabric.lose(0);
    fabric.settle();
    assert_eq!(fabric.legs()[0], (0, 0, Stale), "zeros never replace lost content by themselves");
    fabric.apply(Command::ResetRegion(name("r"))).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs()[0].2, Mapped, "zeros, by order of a user");
    fabric.pass(1000, &[0, 1]);
    fabric.settle();
    assert_eq!(fabric.legs().len(), 2, "the copy that was given up is made again: {:?}", fabric.legs());
    let stale = fabric.legs().iter().find(|leg| leg.2 == Stale).unwrap().1;
    fabric.filled(stale).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
}

#[test]
fn after_a_restart_of_the_agent_one_copy_is_stale_unless_it_had_settled() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    let hang_up = |fabric: &mut Fabric| {
        let registration = fabric.agents[&cn(1)].registration;
        fabric.apply(Command::HungUp(NodeKey::Compute(cn(1)), registration)).unwrap();
    };
    hang_up(&mut fabric);
    fabric.register_run(1, 6);
    assert_eq!(fabric.legs(), [(0, 0, Mapped), (1, 1, Stale)]);
    assert_eq!(fabric.agents[&cn(1)].attached[&name("r")].epoch, 1, "the answer has it");
    fabric.filled(1).unwrap();
    let registration = fabric.agents[&cn(1)].registration;
    let after_event = fabric.agents[&cn(1)].after_event;
    let settled = ComputeNodeSync {
        registration,
        after_event,
        released: Vec::new(),
        quiet: 0,
        settled: true,
        wait_ms: 0,
    };
    fabric.apply(Command::SyncComputeNode(cn(1), settled)).unwrap();
    hang_up(&mut fabric);
    fabric.register_run(1, 7);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active), "each write was complete");
    fabric.stale(0).unwrap();
    hang_up(&mut fabric);
    fabric.register_run(1, 8);
    assert_eq!(fabric.legs(), [(0, 0, Stale), (1, 1, Mapped)], "the only copy in sync stays");
}

#[test]
fn an_owner_that_dies_while_it_releases_leaves_one_copy_stale() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    assert_eq!(fabric.legs()[1].2, Mapped);
    fabric.now_ms += TIMEOUT_MS + 1;
    fabric.settle();
    fabric.apply(Command::Tick).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
    assert_eq!(fabric.legs()[1].2, Stale);
    let mut clean = Fabric::mirrored(&[4, 4], 2);
    clean.apply(Command::DisableRegion(name("r"))).unwrap();
    (0..2).for_each(|_| clean.sync_cn(1).unwrap());
    assert_eq!((clean.state_of("r"), clean.legs()[1].2), (Some(RegionState::Disabled), Mapped));
}

#[test]
fn a_spare_replaces_a_copy_on_a_node_that_stays_away() {
    let mut fabric = Fabric::mirrored(&[4, 4, 4], 2);
    let (dead, alive) = (fabric.legs()[1].1, fabric.legs()[0].1);
    let third = (0..3).find(|node| ![dead, alive].contains(node)).unwrap();
    fabric.pass(TIMEOUT_MS + 1000, &[alive, third]);
    fabric.stale(dead).unwrap();
    fabric.pass(REBUILD_AFTER_MS - 2000, &[alive, third]);
    assert_eq!(fabric.legs()[1], (1, dead, Stale), "not yet");
    fabric.pass(3000, &[alive, third]);
    assert_eq!(fabric.legs()[1], (1, third, Stale));
    fabric.filled(third).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    fabric.register(dead).unwrap();
    fabric.settle();
    assert_eq!((fabric.region().legs.len(), fabric.free()), (2, 8), "the old copy is zeroed and free");
}

#[test]
fn a_missing_spare_is_said_once_and_made_when_there_is_room() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.pass(TIMEOUT_MS + REBUILD_AFTER_MS * 3, &[0]);
    assert_eq!(fabric.legs()[1], (1, 1, Mapped), "without a better one it stays");
    let missing = |fabric: &Fabric| {
        let events = fabric.manager.state().events.iter();
        events.filter(|event| matches!(event.kind, EventKind::SpareMissing { .. })).count()
    };
    assert_eq!((missing(&fabric), fabric.manager.without_spare().count()), (1, 1));
    fabric.nodes.push(Node::new(2, 4));
    fabric.register(2).unwrap();
    fabric.pass(40_000, &[0, 2]);
    assert_eq!(fabric.legs()[1], (1, 2, Stale));
    assert_eq!(missing(&fabric), 1);
}

#[test]
fn protection_changes_while_a_region_is_used() {
    let mut fabric = Fabric::racked(&[4, 4]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.protect(Protection::Mirror).unwrap();
    fabric.settle();
    let other = fabric.legs()[1].1;
    assert_eq!((fabric.legs()[1].2, fabric.state_of("r")), (Stale, Some(RegionState::Exposed)));
    fabric.filled(other).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    fabric.stale(fabric.legs()[0].1).unwrap();
    fabric.protect(Protection::None).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs(), [(1, other, Mapped)], "the stale copy goes");
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Active), 6));
    fabric.protect(Protection::Mirror).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs().iter().map(|leg| leg.2).collect::<Vec<_>>(), [Stale, Mapped]);
    fabric.filled(fabric.legs()[0].1).unwrap();
    fabric.protect(Protection::None).unwrap();
    assert_eq!(fabric.legs().iter().map(|leg| leg.0).collect::<Vec<_>>(), [0], "of two in sync copy 1 goes");
    let mut full = Fabric::racked(&[4, 1]);
    full.create("r", 2, cn(1)).unwrap();
    full.settle();
    assert!(matches!(full.protect(Protection::Mirror), Err(ManagerError::NoOtherNode { .. })));
    assert_eq!(full.region().protect, Protection::None);
}

/// Both copies are in sync, because the owner has written nothing since the memory node of copy 0 became unreachable.
#[test]
fn the_copy_that_is_given_up_is_the_one_out_of_reach() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.pass(TIMEOUT_MS + 1, &[1]);
    assert_eq!(fabric.legs(), [(0, 0, Mapped), (1, 1, Mapped)]);
    fabric.protect(Protection::None).unwrap();
    assert_eq!(fabric.legs(), [(1, 1, Mapped)]);
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    fabric.register(0).unwrap();
    fabric.settle();
    assert_eq!((fabric.region().legs.len(), fabric.free()), (1, 6));
}

#[test]
fn a_drained_node_is_emptied_while_its_regions_are_used() {
    let mut fabric = Fabric::racked(&[4, 4]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let from = fabric.legs()[0].1;
    let to = 1 - from;
    let drain = |fabric: &mut Fabric, draining| {
        let node = fabric.nodes[from].name.clone();
        fabric.apply(Command::DrainMemoryNode(node, draining)).unwrap();
    };
    drain(&mut fabric, true);
    fabric.pass(1000, &[0, 1]);
    fabric.settle();
    assert_eq!(fabric.legs(), [(0, from, Mapped), (1, to, Stale)]);
    drain(&mut fabric, false);
    fabric.settle();
    assert_eq!(fabric.legs(), [(0, from, Mapped)], "stopped cleanly");
    drain(&mut fabric, true);
    fabric.pass(31_000, &[0, 1]);
    fabric.settle();
    fabric.filled(to).unwrap();
    assert_eq!(fabric.legs(), [(1, to, Mapped)]);
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.region().legs.len()), (Some(RegionState::Active), 1));
    let create = CreateRegion::new(name("x"), 3 * EXTENT, cn(1));
    assert!(fabric.apply(Command::CreateRegion(create)).is_err(), "nothing is placed on it");
}

#[test]
fn a_region_moves_to_the_node_it_is_ordered_to() {
    let mut fabric = Fabric::racked(&[4, 4, 1, 6]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let from = fabric.legs()[0].1;
    assert_eq!(from, 3, "the node with the most room");
    for (to, why) in [(2, "has no room"), (3, "has it")] {
        assert!(fabric.relocate(from, Some(to)).is_err(), "{why}");
    }
    assert!(fabric.relocate(0, Some(1)).is_err(), "no part lies there");
    fabric.relocate(from, Some(1)).unwrap();
    fabric.relocate(from, Some(1)).unwrap();
    fabric.pass(1000, &[0, 1, 2, 3]);
    fabric.settle();
    assert_eq!(fabric.legs(), [(0, from, Mapped), (1, 1, Stale)], "not to mn0, which has as much room");
    fabric.relocate(from, None).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs(), [(0, from, Mapped)], "stopped cleanly");
    assert!(fabric.region().legs.iter().all(|leg| leg.moves_to.is_none()));
    fabric.relocate(from, Some(0)).unwrap();
    fabric.pass(31_000, &[0, 1, 2, 3]);
    fabric.settle();
    fabric.filled(0).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs(), [(1, 0, Mapped)]);
    assert!(fabric.region().legs[0].moves_to.is_none(), "it stays there");
    fabric.pass(31_000, &[0, 1, 2, 3]);
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.region().legs.len()), (Some(RegionState::Active), 1));
}

#[test]
fn an_order_to_another_node_during_a_move_is_followed() {
    for second in [(2, 1), (0, 1)] {
        let mut fabric = Fabric::racked(&[4, 4, 6]);
        fabric.create("r", 2, cn(1)).unwrap();
        fabric.settle();
        fabric.relocate(2, Some(0)).unwrap();
        fabric.pass(1000, &[0, 1, 2]);
        fabric.settle();
        assert_eq!(fabric.legs(), [(0, 2, Mapped), (1, 0, Stale)]);
        // The leg, or the copy of it that is being filled, is to be on mn1.
        fabric.relocate(second.0, Some(second.1)).unwrap();
        for ms in [1000, 31_000] {
            fabric.pass(ms, &[0, 1, 2]);
            fabric.settle();
            assert_eq!(fabric.legs(), [(0, 2, Mapped), (1, 1, Stale)], "{second:?}");
        }
        fabric.filled(1).unwrap();
        fabric.settle();
        assert_eq!((fabric.legs(), fabric.free()), (vec![(1, 1, Mapped)], 12));
    }
}

#[test]
fn a_region_with_one_copy_moves_within_its_rack_and_a_mirrored_one_not_into_the_others() {
    let mut fabric = Fabric::racked(&[4, 4, 4]);
    let register = |fabric: &mut Fabric, node: usize, rack: &str| {
        let register = RegisterMemoryNode { rack: Some(name(rack)), ..fabric.nodes[node].register() };
        fabric.apply(Command::RegisterMemoryNode(register)).unwrap();
        fabric.nodes[node].registration =
            fabric.manager.state().memory_nodes[&fabric.nodes[node].name].registration;
    };
    for (node, rack) in [(0, "a"), (1, "a"), (2, "b")] {
        register(&mut fabric, node, rack);
    }
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs()[0].1, 0);
    fabric.relocate(0, Some(1)).unwrap();
    fabric.pass(1000, &[0, 1, 2]);
    fabric.settle();
    fabric.filled(1).unwrap();
    fabric.settle();
    assert_eq!(fabric.legs(), [(1, 1, Mapped)]);
    fabric.protect(Protection::Mirror).unwrap();
    fabric.settle();
    fabric.filled(2).unwrap();
    let refused = fabric.relocate(2, Some(0)).unwrap_err().to_string();
    assert!(refused.contains("rack of mn0"), "{refused}");
}

#[test]
fn a_copy_of_a_mirrored_region_moves_and_never_to_the_other_one() {
    let mut fabric = Fabric::racked(&[4, 4, 4]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.protect(Protection::Mirror).unwrap();
    fabric.settle();
    let [one, other] = [fabric.legs()[0].1, fabric.legs()[1].1];
    fabric.filled(other).unwrap();
    assert!(fabric.relocate(one, Some(other)).is_err());
    let third = 3 - one - other;
    fabric.relocate(one, Some(third)).unwrap();
    fabric.pass(31_000, &[0, 1, 2]);
    fabric.settle();
    fabric.filled(third).unwrap();
    fabric.settle();
    let on: Vec<_> = fabric.legs().iter().map(|leg| (leg.1, leg.2)).collect();
    assert!(on.contains(&(other, Mapped)) && on.contains(&(third, Mapped)) && on.len() == 2, "{on:?}");
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
}

#[test]
fn a_forgotten_node_takes_only_its_copies_along() {
    let mut fabric = Fabric::mirrored(&[4, 4], 2);
    fabric.pass(TIMEOUT_MS + 1, &[0]);
    let forget = Command::ForgetMemoryNode { name: name("mn1"), force: false };
    fabric.apply(forget).unwrap();
    assert_eq!(fabric.legs(), [(0, 0, Mapped)]);
    assert_eq!((fabric.state_of("r"), fabric.region().epoch), (Some(RegionState::Exposed), 1));
    fabric.pass(TIMEOUT_MS + 1, &[]);
    let forget = Command::ForgetMemoryNode { name: name("mn0"), force: false };
    assert!(fabric.apply(forget).is_err(), "the content would be lost");
}

#[derive(Debug, Clone)]
enum Step {
    Sync(usize),
    Lose(usize),
    Return(usize),
    Silence(Vec<usize>),
    Stale(usize),
    Filled(usize),
    OldFilled(usize),
    Restart,
    Protect(bool),
    Drain(usize, bool),
    Relocate(usize, Option<usize>),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..3usize;
    prop_oneof![
        6 => node.clone().prop_map(Step::Sync),
        2 => node.clone().prop_map(Step::Lose),
        2 => node.clone().prop_map(Step::Return),
        2 => proptest::collection::vec(0..3usize, 0..3).prop_map(Step::Silence),
        4 => node.clone().prop_map(Step::Stale),
        4 => node.clone().prop_map(Step::Filled),
        1 => node.clone().prop_map(Step::OldFilled),
        1 => Just(Step::Restart),
        1 => any::<bool>().prop_map(Step::Protect),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, drain)| Step::Drain(node, drain)),
        1 => (node.clone(), proptest::option::of(node)).prop_map(|(from, to)| Step::Relocate(from, to)),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_order_of_events_loses_a_copy_or_takes_an_outdated_one(steps in proptest::collection::vec(step(), 1..60)) {
        let mut fabric = Fabric::mirrored(&[6, 6, 6], 2);
        let mut instance = 10;
        for step in steps {
            let before = fabric.region().clone();
            let nodes_before = fabric.manager.state().memory_nodes.clone();
            match step.clone() {
                Step::Sync(node) => drop(fabric.sync(node, false)),
                Step::Lose(node) => fabric.lose(node),
                Step::Return(node) => fabric.register(node).unwrap(),
                Step::Silence(alive) => fabric.pass(REBUILD_AFTER_MS + TIMEOUT_MS, &alive),
                Step::Stale(node) => drop(fabric.stale(node)),
                Step::Filled(node) => drop(fabric.filled(node)),
                Step::OldFilled(node) => drop(fabric.filled_at(node, fabric.region().epoch.wrapping_sub(1))),
                Step::Restart => {
                    instance += 1;
                    let registration = fabric.agents[&cn(1)].registration;
                    fabric.apply(Command::HungUp(NodeKey::Compute(cn(1)), registration)).unwrap();
                    fabric.register_run(1, instance);
                }
                Step::Protect(mirror) => {
                    drop(fabric.protect(if mirror { Protection::Mirror } else { Protection::None }));
                }
                Step::Drain(node, draining) => {
                    let node = fabric.nodes[node].name.clone();
                    fabric.apply(Command::DrainMemoryNode(node, draining)).unwrap();
                }
                Step::Relocate(from, to) => drop(fabric.relocate(from, to)),
                Step::Reset => drop(fabric.apply(Command::ResetRegion(name("r")))),
            }
            fabric.manager.state().verify().unwrap();
            let after = fabric.region().clone();
            prop_assert!(after.epoch >= before.epoch);
            let in_sync = |region: &Region| region.legs.iter().filter(|leg| leg.is_in_sync()).count();
            // A position loses its last copy in sync only if the memory node of this copy lost its content.
            if in_sync(&before) > 0 && in_sync(&after) == 0 {
                prop_assert!(matches!(step, Step::Lose(_)), "{step:?}: {before:?} {after:?}");
                prop_assert!(after.legs.iter().any(|leg| leg.state == LegState::Lost));
            }
            for leg in after.legs.iter().filter(|leg| leg.is_in_sync()) {
                let was = before.legs.iter().find(|was| was.cmem_base == leg.cmem_base);
                let was_in_sync = was.is_some_and(|was| was.is_in_sync() && was.incarnation == leg.incarnation);
                // A leg in sync was in sync before, was filled, got its content back, or contains zeros that
                // a user requested.
                let came_back = was.is_some_and(|was| was.state == LegState::Lost)
                    && matches!(step, Step::Lose(_) | Step::Return(_));
                let zeros = in_sync(&before) == 0 && matches!(step, Step::Sync(_) | Step::Silence(_));
                let filled = matches!(step, Step::Filled(_)) && was.is_some_and(|was| was.state == LegState::Stale);
                prop_assert!(was_in_sync || came_back || zeros || filled, "{step:?}: {before:?} {after:?}");
                if filled && !was_in_sync {
                    // The end of a move changes the legs in sync twice, because the leg on the drained node
                    // is dropped, too.
                    prop_assert!((1..=2).contains(&(after.epoch - before.epoch)));
                    let node = &nodes_before[&leg.memory_node];
                    prop_assert_eq!(leg.incarnation, Some(node.incarnation));
                }
            }
        }
    }
}
