//! Restored stores, memory that belongs to no region, and stores that cannot be written.

use super::*;
use cxloe_fabric::api::{AdoptFabric, ErrorCode, Held, NotFollowed, Party, ReportOrphans};
use cxloe_fabric::model::{CMEM_LIMIT, ExtentRun, Extents, lineage};
use cxloe_wire::machine::{Deadline, StateMachine};

/// Starts a manager over a store, with this run number.
fn start(store: &mut CommittedState, run: u64) -> Manager {
    let options = Options { run, ..Options::default() };
    let (manager, outcome) = Manager::take_over(store.state(), options, 1000).unwrap();
    store.commit(&outcome.changes);
    manager
}

fn apply(manager: &mut Manager, store: &mut CommittedState, command: Command) -> Result<(), ManagerError> {
    let outcome = manager.apply(command, 2000)?;
    store.commit(&outcome.changes);
    assert_eq!(&store.state(), manager.state());
    Ok(())
}

fn register(seen: Watermark) -> Command {
    let register = RegisterComputeNode {
        cn_id: cn(1),
        name: name("cn1"),
        udp: None,
        key: None,
        new_key: false,
        instance_id: 5,
        seen,
    };
    Command::RegisterComputeNode(register)
}

#[test]
fn a_store_that_was_put_back_is_refused_at_every_further_start_until_it_is_adopted() {
    let mut store = CommittedState::default();
    let mut manager = start(&mut store, 11);
    let mut node = Node::new(0, 8);
    apply(&mut manager, &mut store, Command::RegisterMemoryNode(node.register())).unwrap();
    let mut copy = store.clone();
    let mut manager = start(&mut store, 22);
    apply(&mut manager, &mut store, Command::CreateRegion(CreateRegion::new(name("b"), EXTENT, cn(1))))
        .unwrap();
    node.seen = manager.watermark();
    assert_eq!(node.seen.run, 22);
    // A node accepts each manager that starts with the current store, but none with an older copy.
    for run in 30..33 {
        let mut manager = start(&mut store, run);
        apply(&mut manager, &mut store, Command::RegisterMemoryNode(node.register())).unwrap();
        apply(&mut manager, &mut store, register(node.seen)).unwrap();
    }

    for run in 100..120 {
        let mut manager = start(&mut copy, run);
        let before = manager.state().clone();
        for command in [Command::RegisterMemoryNode(node.register()), register(node.seen)] {
            let error = apply(&mut manager, &mut copy, command).unwrap_err();
            assert_eq!(error.code(), ErrorCode::StaleManager, "start {run}: {error}");
            assert!(error.hint().contains("gmm adopt-fabric"), "{}", error.hint());
        }
        assert_eq!(&before, manager.state());
        let refused: Vec<Party> =
            manager.refused_nodes(2000).into_iter().map(|refused| refused.node).collect();
        assert_eq!(refused, [Party::MemoryNode(name("mn0")), Party::ComputeNode(cn(1))]);
        // The node must reach the same decision from the lineage in the manager's answer.
        let shown = manager.lineage_for(node.seen);
        assert!(!lineage::contains(&shown, manager.watermark(), node.seen));
        assert!(shown.len() <= 2, "{shown:?}");
    }

    let mut manager = start(&mut copy, 200);
    assert!(manager.apply(register(node.seen), 2000).is_err());
    let held = |region: &str, bytes| Held {
        compute_node: cn(1),
        region: Some(name(region)),
        created_ms: None,
        bytes,
    };
    let said = NotFollowed {
        node: Party::ComputeNode(cn(1)),
        seen: node.seen,
        holds: vec![held("b", EXTENT), held("c", 2 * EXTENT)],
    };
    apply(&mut manager, &mut copy, Command::NotFollowed(said.clone())).unwrap();
    assert_eq!(manager.refused_nodes(2000)[0].would_lose, said.holds, "with what it would lose");
    assert!(
        manager.refused_nodes(2000 + 3_600_000).is_empty(),
        "who has not been heard for long is not shown"
    );
    let other = Watermark { revision: node.seen.revision + 1, ..node.seen };
    let adopt = |seen| Command::Adopt(AdoptFabric { seen: vec![seen] });
    assert_eq!(apply(&mut manager, &mut copy, adopt(other)).unwrap_err().code(), ErrorCode::NotFound);
    apply(&mut manager, &mut copy, adopt(node.seen)).unwrap();
    for run in 201..204 {
        apply(&mut manager, &mut copy, Command::RegisterMemoryNode(node.register())).unwrap();
        apply(&mut manager, &mut copy, register(node.seen)).unwrap();
        assert!(manager.refused_nodes(2000).is_empty());
        assert!(lineage::contains(&manager.lineage_for(node.seen), manager.watermark(), node.seen));
        assert!(apply(&mut manager, &mut copy, register(other)).is_err(), "and no further");
        manager = start(&mut copy, run);
    }
}

#[test]
fn an_empty_store_is_another_fabric() {
    let seen = Watermark { term: 3, revision: 40, run: 33 };
    let mut store = CommittedState::default();
    for run in 1..60 {
        let mut manager = start(&mut store, run);
        assert!(manager.apply(register(seen), 2000).is_err(), "start {run}");
        assert_eq!(manager.fabric(), Some(1), "its number stays");
    }
}

#[test]
fn a_lineage_is_bounded_and_keeps_its_beginning() {
    let mut store = CommittedState::default();
    for run in 1..5000 {
        start(&mut store, run);
    }
    let state = store.state();
    assert_eq!((state.leader_terms.len(), state.leader_terms.keys().next()), (4096, Some(&1)));
    assert_eq!(state.leader_terms.keys().next_back(), Some(&4999));
}

fn orphan(owner: CnId, first: u64, count: u64) -> Mapping {
    let extents: Extents = (first..first + count).collect();
    Mapping {
        cn: owner,
        region: name("x"),
        cmem_base: 64 * EXTENT,
        extent_bytes: EXTENT,
        extents,
        sealed: false,
        cn_key: None,
    }
}

fn report(fabric: &Fabric, orphans: Vec<Mapping>) -> Command {
    let registration = fabric.nodes[0].registration;
    Command::ReportOrphans(name("mn0"), ReportOrphans { registration, orphans })
}

#[test]
fn memory_that_no_region_has_is_given_to_nobody_until_it_is_released() {
    let mut fabric = Fabric::new(&[8]);
    let kept = orphan(cn(9), 0, 5);
    for _ in 0..2 {
        fabric.apply(report(&fabric, vec![kept.clone()])).unwrap();
        assert_eq!((fabric.free(), fabric.manager.orphan_bytes(&name("mn0"))), (3, 5 * EXTENT));
    }
    for wrong in [orphan(cn(9), 7, 2), Mapping { extent_bytes: 4096, ..kept.clone() }] {
        let error = fabric.apply(report(&fabric, vec![wrong])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest);
    }
    assert!(fabric.create("large", 4, cn(1)).is_err());
    fabric.create("small", 3, cn(1)).unwrap();
    fabric.settle();
    assert!(fabric.nodes[0].mapped.keys().all(|extent| *extent >= 5), "{:?}", fabric.nodes[0].mapped);
    // The orphans are still recorded after a restart of the manager and of the memory node.
    fabric.restart_manager();
    fabric.register(0).unwrap();
    assert_eq!(fabric.manager.orphan_bytes(&name("mn0")), 5 * EXTENT);

    for _ in 0..2 {
        fabric.apply(Command::ReleaseOrphans(name("mn0"))).unwrap();
    }
    assert_eq!(fabric.manager.state().commands.len(), 1, "it is asked for once");
    fabric.sync(0, true).unwrap();
    fabric.sync(0, false).unwrap();
    assert_eq!(fabric.free(), 0, "the node could not");
    fabric.apply(Command::ReleaseOrphans(name("mn0"))).unwrap();
    fabric.settle();
    assert_eq!((fabric.free(), fabric.manager.orphan_bytes(&name("mn0"))), (5, 0));
    fabric.create("large", 4, cn(1)).unwrap();

    // A pool with another incarnation has lost its orphans, so their records are removed.
    let mut fabric = Fabric::new(&[8]);
    fabric.apply(report(&fabric, vec![kept])).unwrap();
    fabric.nodes[0].incarnation = 2;
    fabric.nodes[0].instance_id = 2;
    fabric.apply(Command::HungUp(NodeKey::Memory(name("mn0")), fabric.nodes[0].registration)).unwrap();
    fabric.register(0).unwrap();
    assert_eq!(fabric.free(), 8);
}

/// A report takes as long as it has runs of extents, however long they are.
#[test]
fn an_orphan_may_have_very_many_extents() {
    let mut fabric = Fabric::new(&[8]);
    let register = RegisterMemoryNode {
        name: name("huge"),
        macs: vec![[2, 0, 0, 0, 2, 9u8].into()],
        pool_bytes: CMEM_LIMIT,
        extent_bytes: 4096,
        ..fabric.nodes[0].register()
    };
    fabric.apply(Command::RegisterMemoryNode(register)).unwrap();
    let registration = fabric.manager.state().memory_nodes[&name("huge")].registration;
    let extents: Extents = [ExtentRun { first: 0, count: CMEM_LIMIT / 4096 }].into_iter().collect();
    let whole = Mapping { extent_bytes: 4096, extents, ..orphan(cn(9), 0, 1) };
    let found = ReportOrphans { registration, orphans: vec![whole] };
    for _ in 0..2 {
        fabric.apply(Command::ReportOrphans(name("huge"), found.clone())).unwrap();
        assert_eq!((fabric.free(), fabric.manager.orphan_bytes(&name("huge"))), (8, CMEM_LIMIT));
    }
    // An extent that is recorded already is not recorded again as part of a longer run.
    fabric.apply(report(&fabric, vec![orphan(cn(9), 2, 1), orphan(cn(9), 0, 5)])).unwrap();
    assert_eq!(fabric.manager.orphan_bytes(&name("mn0")), EXTENT);
    // Memory beside a recorded orphan became an orphan later: it is reported in one piece with it, and recorded alone.
    fabric.apply(report(&fabric, vec![orphan(cn(9), 0, 5)])).unwrap();
    let recorded = fabric.manager.orphans_on(&name("mn0"));
    let places: Vec<_> = recorded.iter().map(|o| (o.cmem_base / EXTENT, o.extents.runs().to_vec())).collect();
    let run = |first, count| vec![ExtentRun { first, count }];
    assert_eq!(places, [(64, run(2, 1)), (64, run(0, 2)), (67, run(3, 2))]);
}

#[test]
fn a_region_whose_extents_hold_other_memory_is_lost_and_never_read_as_zeros() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("a", 2, cn(1)).unwrap();
    fabric.settle();
    assert_eq!(fabric.nodes[0].mapped.keys().copied().collect::<Vec<_>>(), [0, 1]);
    fabric.apply(report(&fabric, vec![orphan(cn(2), 1, 1)])).unwrap();
    assert_eq!(fabric.state_of("a"), Some(RegionState::Lost));
    fabric.register(0).unwrap();
    assert_eq!(fabric.state_of("a"), Some(RegionState::Lost), "its node is as it was");
    fabric.apply(Command::ReleaseOrphans(name("mn0"))).unwrap();
    fabric.settle();
    assert_eq!(fabric.state_of("a"), Some(RegionState::Lost), "until somebody accepts it");
    fabric.apply(Command::ResetRegion(name("a"))).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("a"), fabric.free()), (Some(RegionState::Active), 6));
}

#[test]
fn what_cannot_be_stored_is_taken_back_and_nothing_is_changed_until_it_can() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.register_cn(1);
    fabric.create("kept", 2, cn(1)).unwrap();
    fabric.settle();
    let before = fabric.manager.state().clone();
    fabric.manager.begin_batch();
    // Every kind of change is made and not stored, as with a full disk.
    let now_ms = fabric.now_ms;
    let destroy = Command::DestroyRegion { name: name("kept"), force: true, created_ms: None };
    let sizes = vec![ByteSize(LD_UNIT)];
    let orphans = report(&fabric, vec![orphan(cn(2), 7, 1)]);
    let forget = Command::ForgetMemoryNode { name: name("mn1"), force: true };
    let steps = [
        Command::CreateRegion(CreateRegion::new(name("lost"), EXTENT, cn(3))),
        destroy,
        Command::SetLdAllocations(name("mn0"), 0, sizes),
        Command::SetQuota(cn(4).into(), Some(EXTENT)),
        Command::Hold(cn(1).into(), true),
        orphans,
        Command::ClearLog(ClearedLog { switch: 0, port: None, log: 0, through: 1 }),
        Command::SyncMemoryNode(name("mn0"), fabric.nodes[0].sync()),
    ];
    for step in steps {
        let outcome =
            fabric.manager.apply(step.clone(), now_ms).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert!(!outcome.changes.is_empty() || matches!(step, Command::SyncMemoryNode(..)), "{step:?}");
    }
    // Both memory nodes become silent, and one is forgotten: these changes must be undone, too.
    fabric.manager.apply(Command::Tick, now_ms + TIMEOUT_MS).unwrap();
    fabric.manager.apply(forget, now_ms + TIMEOUT_MS).unwrap();
    assert_ne!(&before, fabric.manager.state());
    fabric.manager.freeze("no room".to_owned()).unwrap();
    assert_eq!(&before, fabric.manager.state());
    assert_eq!(Index::new(&before), fabric.manager.index);

    let mut refuse = |command: Command| {
        let error = fabric.apply(command.clone()).unwrap_err();
        assert_eq!(
            (error.code(), error.code().http_status()),
            (ErrorCode::StoreFull, 507),
            "{command:?}: {error}"
        );
        assert!(error.to_string().contains("no room"), "{error}");
    };
    refuse(Command::CreateRegion(CreateRegion::new(name("r"), EXTENT, cn(1))));
    refuse(Command::SetQuota(cn(4).into(), None));
    refuse(register(Watermark::default()));
    refuse(Command::RegisterMemoryNode(Node::new(0, 8).register()));
    for _ in 0..3 {
        fabric.now_ms += TIMEOUT_MS;
        fabric.apply(Command::Tick).unwrap();
        fabric.sync(0, false).unwrap();
        fabric.sync_cn(1).unwrap();
    }
    assert_eq!((&before, fabric.manager.deadline()), (fabric.manager.state(), Deadline::NEVER));

    let state = fabric.store.state();
    fabric.manager.thaw(state, fabric.now_ms).unwrap();
    assert_eq!(fabric.manager.frozen(), None);
    fabric.create("r", 1, cn(1)).unwrap();
    fabric.settle_only(0);
    fabric.now_ms += TIMEOUT_MS;
    fabric.sync(0, false).unwrap();
    fabric.apply(Command::Tick).unwrap();
    let reachable = fabric.manager.memory_node_count().reachable;
    assert_eq!(reachable, 1, "who fell silent is missed again");
}

#[test]
fn an_empty_store_is_not_begun_with_while_nodes_of_another_fabric_ask() {
    for anew in [false, true] {
        let options = Options { run: 71, anew, ..Options::default() };
        let mut fabric = Fabric::with(&[8], options);
        fabric.create("r", 1, cn(1)).unwrap();
        fabric.settle();
        fabric.destroy("r").unwrap();
        fabric.settle();
        // A node that has accepted a manager of another fabric registers and is refused.
        let mut stranger = Node::new(9, 8);
        stranger.seen = Watermark { term: 4, revision: 99, run: 12345 };
        let error = fabric.apply(Command::RegisterMemoryNode(stranger.register())).unwrap_err();
        assert_eq!(error.code(), ErrorCode::StaleManager);
        match fabric.create("r", 1, cn(1)) {
            Ok(()) => assert!(anew),
            Err(error) => {
                assert!(!anew && error.to_string().contains("wrong data directory"), "{error}");
                assert!(error.hint().contains("--new-fabric"), "{}", error.hint());
                // Without a further report, the node is no longer listed, so a new fabric may begin.
                fabric.now_ms += 200_000;
                (0..1).for_each(|node| fabric.register(node).unwrap());
                fabric.create("r", 1, cn(1)).unwrap();
            }
        }
        // With a region, the store is not empty: a refused node no longer prevents new regions.
        fabric.apply(Command::RegisterMemoryNode(stranger.register())).unwrap_err();
        fabric.create("s", 1, cn(1)).unwrap();
    }
}
