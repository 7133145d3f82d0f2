//! Clones and snapshots: the regions of each compute node, and the commands to memory nodes, at each step.

use super::*;
use cxloe_fabric::api::{CloneRegion, MoveRegion, ProtectRegion, SealRegion};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{LegState, Protection};

impl Fabric {
    /// Returns a fabric with three memory nodes, agents of `cn(1)` and `cn(2)`, and the region `r` of `cn(1)`
    /// on two nodes.
    fn with_region_to_clone() -> Self {
        let mut fabric = Self::new(&[8, 8, 8]);
        [1, 2].into_iter().for_each(|last| fabric.register_cn(last));
        let create = CreateRegion::new(name("r"), 4 * EXTENT, cn(1));
        fabric.apply(Command::CreateRegion(CreateRegion { ways: Ways::Two, ..create })).unwrap();
        fabric.both_follow();
        fabric
    }

    fn both_follow(&mut self) {
        for _ in 0..3 {
            self.settle();
            [1, 2].into_iter().for_each(|last| self.sync_cn(last).unwrap());
        }
    }

    fn clone_of_r(&mut self, new: &str, change: impl FnOnce(&mut CloneRegion)) -> Result<(), ManagerError> {
        let mut order =
            CloneRegion { name: name(new), owner: None, uid: None, sealed: false, force: false, wait_ms: 0 };
        change(&mut order);
        self.apply(Command::CloneRegion(name("r"), order)).map(drop)
    }

    fn has(&self, last: u8, region: &str) -> bool {
        self.agents[&cn(last)].attached.contains_key(&name(region))
    }
}

fn refused(result: Result<(), ManagerError>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_region_in_use_is_released_until_it_is_cloned() {
    let mut fabric = Fabric::with_region_to_clone();
    fabric.clone_of_r("c", |order| order.owner = Some(cn(2).into())).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Releasing));
    assert!(
        fabric.nodes.iter().all(|node| fabric.manager.memory_node_synced(&node.name).commands.is_empty())
    );
    refused(fabric.apply(Command::DisableRegion(name("r"))).map(drop), "clone");
    refused(fabric.apply(Command::EnableRegion(name("r"))).map(drop), "clone");
    let order = MoveRegion { to: Some(cn(2).into()), force: false, wait_ms: 0 };
    refused(fabric.apply(Command::MoveRegion(name("r"), order)).map(drop), "clone");
    fabric.sync_cn(1).unwrap();
    fabric.sync_cn(1).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled), "released");
    fabric.settle_only(0);
    assert!(!fabric.has(1, "r"), "a memory node has not cloned its part");
    fabric.both_follow();
    assert!(fabric.has(1, "r") && fabric.has(2, "c") && !fabric.has(1, "c"));
    let (source, clone) =
        (fabric.manager.region(&name("r")).unwrap(), fabric.manager.region(&name("c")).unwrap());
    assert_eq!((source.state, clone.state), (RegionState::Active, RegionState::Active));
    assert_eq!((clone.size, clone.ways), (source.size, source.ways));
    for (leg, from) in clone.legs.iter().zip(&source.legs) {
        assert_eq!((&leg.memory_node, leg.position), (&from.memory_node, from.position));
    }
    assert_eq!(clone.origin.as_ref().map(|origin| origin.waits), Some(false));
}

/// Its owner has released it for the clone, and gets it back.
#[test]
fn a_region_that_is_being_cloned_is_in_use() {
    let mut fabric = Fabric::with_region_to_clone();
    fabric.clone_of_r("c", |_| {}).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
    let destroy = Command::DestroyRegion { name: name("r"), force: false, created_ms: None };
    let refused = fabric.apply(destroy).unwrap_err();
    assert!(matches!(refused, ManagerError::RegionInUse { .. }), "{refused}");
    fabric.both_follow();
    assert!(fabric.has(1, "r") && fabric.has(1, "c"));
}

#[test]
fn snapshots_are_sealed_and_cloned_at_once() {
    let mut fabric = Fabric::with_region_to_clone();
    fabric.clone_of_r("s", |order| order.sealed = true).unwrap();
    fabric.both_follow();
    assert!(fabric.manager.region(&name("s")).unwrap().sealed && fabric.has(1, "s"));
    let order =
        CloneRegion { name: name("c"), owner: None, uid: None, sealed: false, force: false, wait_ms: 0 };
    fabric.apply(Command::CloneRegion(name("s"), order)).unwrap();
    assert_eq!(fabric.state_of("s"), Some(RegionState::Active), "nobody writes it: its owner keeps it");
    fabric.both_follow();
    assert!(!fabric.manager.region(&name("c")).unwrap().sealed);
    // Cloning a disabled region leaves it disabled.
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.both_follow();
    fabric.clone_of_r("d", |_| {}).unwrap();
    refused(fabric.apply(Command::EnableRegion(name("r"))).map(drop), "clone");
    fabric.both_follow();
    assert_eq!(
        (fabric.state_of("r"), fabric.state_of("d")),
        (Some(RegionState::Disabled), Some(RegionState::Active))
    );
}

#[test]
fn a_clone_that_cannot_be_made_leaves_its_source() {
    // Case 1: the owner's agent ends before it has written back, so the clone is destroyed and the source
    // stays.
    let mut fabric = Fabric::with_region_to_clone();
    fabric.clone_of_r("c", |_| {}).unwrap();
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.state_of("c")), (Some(RegionState::Active), None));
    refused(fabric.clone_of_r("c", |_| {}), "--force");
    fabric.register_run(1, 6);
    fabric.register_run(2, 6);
    fabric.both_follow();
    assert_eq!((fabric.state_of("r"), fabric.state_of("c")), (Some(RegionState::Active), None));
    // Case 2: a memory node refuses to copy its part.
    fabric.clone_of_r("c", |_| {}).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    let at = fabric.manager.region(&name("r")).unwrap().legs[0].memory_node.clone();
    let at = fabric.nodes.iter().position(|node| node.name == at).unwrap();
    fabric.sync(at, true).unwrap();
    fabric.both_follow();
    assert_eq!((fabric.state_of("r"), fabric.state_of("c")), (Some(RegionState::Active), None));
    assert!(fabric.has(1, "r"));
    // Case 3: the clone is destroyed while it waits for its source.
    fabric.clone_of_r("c", |_| {}).unwrap();
    fabric.apply(Command::DestroyRegion { name: name("c"), force: true, created_ms: None }).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active), "before its owner has released it");
    fabric.both_follow();
    assert_eq!((fabric.state_of("r"), fabric.state_of("c")), (Some(RegionState::Active), None));
    // Case 4: the source is destroyed while the clone waits for it.
    fabric.clone_of_r("c", |_| {}).unwrap();
    fabric.apply(Command::DestroyRegion { name: name("r"), force: true, created_ms: None }).unwrap();
    fabric.both_follow();
    assert_eq!((fabric.state_of("r"), fabric.state_of("c")), (None, None));
}

/// Memory without the content of the source must never become a region that can be used.
#[test]
fn a_memory_node_that_loses_its_content_ends_the_clone() {
    let mut fabric = Fabric::with_region_to_clone();
    fabric.clone_of_r("c", |_| {}).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    let legs = fabric.manager.region(&name("c")).unwrap().legs.clone();
    let at = fabric.nodes.iter().position(|node| node.name == legs[0].memory_node).unwrap();
    fabric.settle_only(at);
    assert_eq!(fabric.manager.region(&name("c")).unwrap().legs[0].state, LegState::Mapped);
    fabric.nodes[at].incarnation += 1;
    fabric.nodes[at].mapped.clear();
    fabric.register(at).unwrap();
    fabric.both_follow();
    assert_eq!(fabric.state_of("c"), None, "{:?}", fabric.manager.region(&name("c")));
    assert_eq!(fabric.state_of("r"), Some(RegionState::Lost));
}

#[test]
fn what_cannot_be_cloned_is_named() {
    let mut fabric = Fabric::with_region_to_clone();
    refused(fabric.clone_of_r("r", |_| {}), "already");
    fabric.create("filler", 6, cn(2)).unwrap();
    fabric.create("filler2", 6, cn(2)).unwrap();
    fabric.both_follow();
    let full = fabric.clone_of_r("c", |_| {});
    assert!(matches!(full, Err(ManagerError::NoRoomForClone { .. })), "{full:?}");
    fabric.apply(Command::SealRegion(name("r"), SealRegion { force: false, wait_ms: 0 })).unwrap();
    refused(fabric.clone_of_r("c", |_| {}), "sealed");
}

#[test]
fn a_mirrored_region_is_cloned_from_the_copy_in_sync() {
    let mut fabric = Fabric::new(&[8, 8]);
    [1, 2].into_iter().for_each(|last| fabric.register_cn(last));
    let create =
        CreateRegion { protect: Protection::Mirror, ..CreateRegion::new(name("r"), 2 * EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.both_follow();
    fabric.clone_of_r("c", |_| {}).unwrap();
    fabric.both_follow();
    let clone = fabric.manager.region(&name("c")).unwrap();
    assert_eq!(
        (clone.state, clone.legs.len(), clone.protect),
        (RegionState::Active, 1, Protection::default())
    );
    let protect = ProtectRegion { protect: Protection::Mirror, on: Vec::new(), wait_ms: 0 };
    fabric.apply(Command::ProtectRegion(name("c"), protect)).unwrap();
}
