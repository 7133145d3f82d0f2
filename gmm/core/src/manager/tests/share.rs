//! Sealed regions and their readers: the regions of each compute node, and the shares that memory nodes
//! serve, at each step.

use super::*;
use cxloe_fabric::api::{MoveRegion, ProtectRegion, SealRegion, ShareRegion};
use cxloe_fabric::model::{Protection, Share};

impl Fabric {
    /// Returns a fabric with two memory nodes, agents of `cn(1)` to `cn(3)`, and the region `r` of `cn(1)` on
    /// both nodes.
    fn with_owner_and_readers() -> Self {
        let mut fabric = Self::new(&[6, 6]);
        (1..4).for_each(|last| fabric.register_cn(last));
        fabric.apply(Command::CreateRegion(CreateRegion::new(name("r"), 8 * EXTENT, cn(1)))).unwrap();
        fabric.all_follow();
        fabric
    }

    /// Syncs all agents and memory nodes until nothing changes any more.
    fn all_follow(&mut self) {
        for _ in 0..3 {
            self.settle();
            (1..4).for_each(|last| self.sync_cn(last).unwrap());
        }
    }

    fn seal(&mut self) -> Result<(), ManagerError> {
        self.apply(Command::SealRegion(name("r"), SealRegion { force: false, wait_ms: 0 })).map(drop)
    }

    fn share(&mut self, with: u8, end: bool) -> Result<(), ManagerError> {
        let order = ShareRegion { with: cn(with).into(), end, uid: None, wait_ms: 0 };
        self.apply(Command::ShareRegion(name("r"), order)).map(drop)
    }

    /// Returns a fabric whose region `r` is sealed.
    fn with_sealed_region() -> Self {
        let mut fabric = Self::with_owner_and_readers();
        fabric.seal().unwrap();
        fabric.all_follow();
        assert!(fabric.r().sealed && fabric.r().state == RegionState::Active, "{:?}", fabric.r());
        fabric
    }

    fn r(&self) -> &Region {
        self.manager.region(&name("r")).unwrap()
    }

    fn who_has_it(&self) -> Vec<CnId> {
        let has = |agent: &Agent| agent.attached.contains_key(&name("r"));
        self.agents.iter().filter(|(_, agent)| has(agent)).map(|(cn, _)| *cn).collect()
    }

    /// Returns the readers that memory nodes serve, with the first address of each share.
    fn shares(&self) -> Vec<(CnId, u64)> {
        let shares = self.nodes.iter().flat_map(|node| &node.shares);
        let mut shares: Vec<_> = shares.map(|share: &Share| (share.reader, share.reader_base)).collect();
        shares.sort_unstable();
        shares
    }
}

fn refused(result: Result<(), ManagerError>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_region_is_sealed_once_its_owner_has_released_it() {
    let mut fabric = Fabric::with_owner_and_readers();
    refused(fabric.share(2, false), "seal-region");
    let before: Vec<u64> = fabric.r().legs.iter().map(|leg| leg.cmem_base).collect();
    fabric.seal().unwrap();
    assert!(!fabric.r().sealed && fabric.r().state == RegionState::Releasing);
    fabric.seal().unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert!(fabric.r().sealed && fabric.r().state == RegionState::Creating, "{:?}", fabric.r());
    assert_eq!(fabric.who_has_it(), [], "not before the memory nodes refuse writes");
    refused(fabric.share(2, false), "seal-region");
    fabric.all_follow();
    assert_eq!((fabric.r().state, fabric.who_has_it()), (RegionState::Active, vec![cn(1)]));
    let after: Vec<u64> = fabric.r().legs.iter().map(|leg| leg.cmem_base).collect();
    assert!(
        before.iter().all(|base| !after.contains(base)),
        "no earlier write reaches it: {before:?} {after:?}"
    );
    fabric.seal().unwrap();
    refused(fabric.grow("r", 10), "sealed");
    let mirror = ProtectRegion { protect: Protection::Mirror, on: Vec::new(), wait_ms: 0 };
    refused(fabric.apply(Command::ProtectRegion(name("r"), mirror)).map(drop), "sealed");
}

#[test]
fn a_mirrored_region_is_not_sealed() {
    let mut fabric = Fabric::new(&[8, 8, 8, 8]);
    fabric.register_cn(1);
    let create =
        CreateRegion { protect: Protection::Mirror, ..CreateRegion::new(name("r"), 4 * EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    refused(fabric.seal(), "gmm protect r none");
}

#[test]
fn readers_have_the_region_once_every_memory_node_serves_them() {
    let mut fabric = Fabric::with_sealed_region();
    fabric.share(2, false).unwrap();
    fabric.settle_only(0);
    fabric.sync_cn(2).unwrap();
    assert_eq!(fabric.who_has_it(), [cn(1)], "one memory node does not serve it yet");
    fabric.all_follow();
    fabric.share(3, false).unwrap();
    fabric.share(2, false).unwrap();
    fabric.all_follow();
    assert_eq!(fabric.who_has_it(), [cn(1), cn(2), cn(3)]);
    let (own, read) = (fabric.r().clone(), fabric.agents[&cn(2)].attached[&name("r")].clone());
    assert_eq!((own.readers.len(), read.readers.len(), read.sealed), (2, 0, true));
    let served: Vec<u64> =
        fabric.shares().iter().filter(|(reader, _)| *reader == cn(2)).map(|(_, base)| *base).collect();
    let mut bases: Vec<u64> = read.legs.iter().map(|leg| leg.cmem_base).collect();
    bases.sort_unstable();
    assert_eq!(served, bases);
    refused(fabric.share(1, false), "its owner");

    // A region with readers cannot move, because memory nodes serve the readers from the owner's mapping.
    let order = MoveRegion { to: Some(cn(3).into()), force: false, wait_ms: 0 };
    refused(fabric.apply(Command::MoveRegion(name("r"), order)).map(drop), "share-region");
    let destroy = |force| Command::DestroyRegion { name: name("r"), force, created_ms: None };
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.all_follow();
    assert_eq!(fabric.who_has_it(), [cn(2), cn(3)], "what its owner does does not concern readers");
    refused(fabric.apply(destroy(false)).map(drop), "share-region r");
    refused(fabric.apply(Command::ForgetComputeNode(cn(2).into())).map(drop), "it is there");
}

#[test]
fn a_reader_for_whom_the_record_of_the_region_has_no_room_is_refused() {
    let limit = 6000;
    let options = Options { record_bytes_max: Some(limit), ..Options::default() };
    let mut fabric = Fabric::with(&[6, 6], options);
    (1..100).for_each(|last| fabric.register_cn(last));
    fabric.create("r", 8, cn(1)).unwrap();
    fabric.all_follow();
    fabric.seal().unwrap();
    fabric.all_follow();
    let refused = (2..100).find_map(|reader| fabric.share(reader, false).err()).unwrap();
    assert!(matches!(refused, ManagerError::LimitReached { .. }), "{refused}");
    let record = serde_json::to_vec(fabric.r()).unwrap();
    assert!(record.len() as u64 <= limit && fabric.r().readers.len() > 2, "{:?}", fabric.r());
}

#[test]
fn the_end_of_a_share_leaves_the_others() {
    let mut fabric = Fabric::with_sealed_region();
    [2, 3].into_iter().for_each(|reader| fabric.share(reader, false).unwrap());
    fabric.all_follow();
    fabric.share(2, true).unwrap();
    fabric.sync_cn(2).unwrap();
    assert_eq!(fabric.who_has_it(), [cn(1), cn(3)]);
    refused(fabric.share(2, false), "still end");
    fabric.all_follow();
    assert!(fabric.shares().iter().all(|(reader, _)| *reader == cn(3)), "{:?}", fabric.shares());
    assert_eq!(fabric.r().readers.len(), 1);
    fabric.share(2, true).unwrap();
    fabric.share(2, false).unwrap();
    fabric.all_follow();
    assert_eq!(fabric.who_has_it(), [cn(1), cn(2), cn(3)]);

    // The region is destroyed by force: no reader is served any more, and all addresses are free again.
    fabric.apply(Command::DestroyRegion { name: name("r"), force: true, created_ms: None }).unwrap();
    fabric.all_follow();
    assert_eq!((fabric.who_has_it(), fabric.shares()), (vec![], vec![]));
    assert!(fabric.manager.region(&name("r")).is_err());
    fabric.manager.state().verify().unwrap();
}

/// A memory node fails to end a share, and may still serve the reader: the share ends when it has ended it, after a repeated
/// order or after it has registered again.
#[test]
fn the_end_of_a_share_that_fails_is_ordered_again() {
    for registers in [true, false] {
        let mut fabric = Fabric::with_sealed_region();
        fabric.share(2, false).unwrap();
        fabric.all_follow();
        fabric.share(2, true).unwrap();
        fabric.sync(0, true).unwrap();
        fabric.all_follow();
        assert_eq!((fabric.r().readers.len(), fabric.shares().len()), (1, 1), "one memory node serves it");
        assert_eq!(fabric.who_has_it(), [cn(1)]);
        refused(fabric.share(2, false), "still end");
        match registers {
            true => fabric.register(0).unwrap(),
            false => (0..2).for_each(|_| fabric.share(2, true).unwrap()),
        }
        assert_eq!(fabric.manager.state().commands.len(), 1, "it is ordered once");
        fabric.all_follow();
        assert_eq!((fabric.r().readers.len(), fabric.shares()), (0, vec![]));
    }
}

#[test]
fn a_refused_share_is_ended_everywhere() {
    let mut fabric = Fabric::with_sealed_region();
    fabric.share(2, false).unwrap();
    fabric.sync(1, true).unwrap();
    fabric.all_follow();
    assert_eq!((fabric.who_has_it(), fabric.shares()), (vec![cn(1)], vec![]));
    assert_eq!(fabric.r().readers, []);
}

#[test]
fn memory_nodes_and_managers_that_return_serve_the_readers() {
    let mut fabric = Fabric::with_sealed_region();
    fabric.share(2, false).unwrap();
    fabric.all_follow();
    let before = fabric.shares();
    fabric.register(0).unwrap();
    assert_eq!(fabric.shares(), before);
    fabric.restart_manager();
    (0..2).for_each(|node| fabric.register(node).unwrap());
    fabric.register_cn(2);
    assert_eq!(fabric.shares(), before);
    assert!(fabric.who_has_it().contains(&cn(2)));
}
