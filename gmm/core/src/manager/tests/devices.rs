//! Interleaving, growth, quotas, logical devices and their bindings, release, and the modes of
//! initialisation: one test for each rule.

use super::*;
use cxloe_fabric::api::{ErrorCode, LegsFilled};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{LegState, OperationOutcome};

fn wide(region: &str, extents: u64, owner: CnId, ways: u32) -> Command {
    let (ways, granularity) = (Ways::try_from(ways).unwrap(), Granularity::try_from(1024).unwrap());
    let create = CreateRegion::new(name(region), extents * EXTENT, owner);
    Command::CreateRegion(CreateRegion { ways, granularity, ..create })
}

fn active(fabric: &Fabric, region: &str) -> bool {
    fabric.state_of(region) == Some(RegionState::Active)
}

#[test]
fn a_region_of_four_ways_lies_on_the_four_emptiest_nodes() {
    let mut fabric = Fabric::new(&[8, 2, 8, 9, 10]);
    fabric.apply(wide("r", 8, cn(1), 4)).unwrap();
    fabric.settle();
    assert!(active(&fabric, "r"));
    let region = fabric.manager.region(&name("r")).unwrap();
    assert_eq!((region.size, region.decoders.len()), (8 * EXTENT, 1));
    let legs: Vec<_> =
        region.legs.iter().map(|l| (l.position, l.memory_node.as_str(), l.bytes / EXTENT)).collect();
    assert_eq!(legs, [(0, "mn4", 2), (1, "mn3", 2), (2, "mn0", 2), (3, "mn2", 2)]);

    let error = fabric.apply(wide("odd", 5, cn(1), 4)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BadRequest, "{error}");
    assert!(error.hint().contains(&(8 * EXTENT).to_string()), "{}", error.hint());
    assert_eq!(fabric.apply(wide("big", 16, cn(1), 8)).unwrap_err().code(), ErrorCode::NoSpace);
}

#[test]
fn a_region_that_fits_in_no_one_set_is_several() {
    let mut fabric = Fabric::new(&[2, 4, 6]);
    fabric.apply(wide("r", 10, cn(1), 2)).unwrap();
    fabric.settle();
    let region = fabric.manager.region(&name("r")).unwrap();
    assert_eq!((region.size, region.decoders.len()), (10 * EXTENT, 2));
    let distinct = |decoder| {
        let mut nodes: Vec<_> = region.legs_of(decoder).map(|leg| &leg.memory_node).collect();
        nodes.dedup();
        nodes.len()
    };
    assert_eq!((distinct(0), distinct(1)), (2, 2));
}

#[test]
fn growing_leaves_what_is_there_alone_and_shows_only_when_it_is_whole() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.register_cn(1);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    let before = fabric.manager.region(&name("r")).unwrap().clone();
    fabric.grow("r", 6).unwrap();
    assert!(active(&fabric, "r"), "its user goes on");
    assert_eq!(fabric.manager.region(&name("r")).unwrap().size, 2 * EXTENT);
    assert_eq!(fabric.grow("r", 7).unwrap_err().code(), ErrorCode::WrongState, "one at a time");
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    let after = fabric.manager.region(&name("r")).unwrap();
    assert_eq!((after.size, after.state), (6 * EXTENT, RegionState::Active));
    assert_eq!(after.legs[..1], before.legs[..]);
    assert_eq!(fabric.agents[&cn(1)].attached[&name("r")].size, 6 * EXTENT, "its owner heard of it");
    assert_eq!(fabric.grow("r", 6).unwrap_err().code(), ErrorCode::BadRequest);
}

#[test]
fn a_growth_that_a_node_refuses_is_undone_and_the_region_stays() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.grow("r", 5).unwrap();
    fabric.sync(0, true).unwrap();
    fabric.settle();
    fabric.settle();
    let region = fabric.manager.region(&name("r")).unwrap();
    assert_eq!((region.size, region.state, region.decoders.len()), (2 * EXTENT, RegionState::Active, 1));
    assert_eq!((fabric.free(), fabric.nodes[0].mapped.len()), (6, 2));
    fabric.grow("r", 3).unwrap();
    fabric.settle();
    assert_eq!(fabric.manager.region(&name("r")).unwrap().size, 3 * EXTENT);
}

#[test]
fn what_is_being_added_and_lost_before_anyone_saw_it_is_mapped_once_more() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.apply(wide("r", 4, cn(1), 2)).unwrap();
    fabric.sync(0, false).unwrap();
    fabric.sync(0, false).unwrap();
    fabric.nodes[0].incarnation = 2;
    fabric.register(0).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
    fabric.settle();
    assert!(active(&fabric, "r"));
}

#[test]
fn a_quota_holds_for_creating_growing_and_binding() {
    let mut fabric = Fabric::new(&[16]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.apply(Command::SetQuota(cn(1).into(), Some(4 * EXTENT))).unwrap();
    fabric.set_ld("mn0", 3, 2).unwrap();
    let over =
        [fabric.create("s", 3, cn(1)), fabric.grow("r", 5), fabric.apply(wide("w", 3, cn(1), 1)).map(drop)];
    for refused in over {
        let error = refused.unwrap_err();
        assert_eq!(error.code(), ErrorCode::OverQuota, "{error}");
        assert!(error.to_string().contains("512.00 MiB"), "{error}");
    }
    fabric.grow("r", 4).unwrap();
    fabric.create("other", 3, cn(2)).unwrap();
    fabric.apply(Command::SetQuota(cn(1).into(), None)).unwrap();
    fabric.create("s", 3, cn(1)).unwrap();
}

#[test]
fn capacity_set_aside_is_nobody_elses() {
    let mut fabric = Fabric::new(&[8]);
    fabric.set_ld("mn0", 0, 3).unwrap();
    assert_eq!(fabric.create("big", 3, cn(2)).unwrap_err().code(), ErrorCode::NoSpace);
    fabric.create("small", 2, cn(2)).unwrap();
    assert_eq!(fabric.set_ld("mn0", 5, 1).unwrap_err().code(), ErrorCode::BadRequest, "none is left");
    assert_eq!(fabric.set_ld("mn0", 16, 1).unwrap_err().code(), ErrorCode::BadRequest);
    let odd = Command::SetLdAllocations(name("mn0"), 0, vec![ByteSize(LD_UNIT + 1)]);
    assert_eq!(fabric.apply(odd).unwrap_err().code(), ErrorCode::BadRequest);
    fabric.set_ld("mn0", 0, 1).unwrap();
    fabric.create("now", 4, cn(2)).unwrap();
    assert_eq!(fabric.manager.memory_node_statuses()[0].reserved_bytes, LD_UNIT);
}

#[test]
fn binding_makes_a_region_of_what_is_set_aside_and_unbinding_gives_it_back() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.set_ld("mn0", 4, 2).unwrap();
    fabric.bind("mn0", Some(4), cn(1), Some(0)).unwrap();
    let operation = fabric.manager.operation(0).unwrap();
    assert_eq!(operation.outcome, None);
    let busy = fabric.unbind("mn0", 4, UnbindOption::Managed, Some(0)).unwrap_err();
    assert_eq!(busy.code(), ErrorCode::Unavailable, "one background operation at a time");
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    assert_eq!(fabric.manager.operation(0).unwrap().outcome, Some(OperationOutcome::Done));
    let agent = &fabric.agents[&cn(1)];
    assert_eq!(agent.attached[&name("mn0-ld4")].size, 2 * LD_UNIT, "hot-added");
    let twice = fabric.bind("mn0", Some(4), cn(2), None).unwrap_err();
    assert!(matches!(twice, ManagerError::Bound { .. }), "{twice}");
    assert_eq!(twice.to_string(), format!("LD 4 of mn0 is bound already, to CN {}, at vPPB 0", cn(1)));
    let twice = fabric.bind("mn0", Some(5), cn(1), None).unwrap_err();
    assert_eq!(twice.to_string(), format!("CN {} is bound already, to LD 4 of mn0, at vPPB 0", cn(1)));

    fabric.unbind("mn0", 4, UnbindOption::Managed, Some(0)).unwrap();
    fabric.settle();
    assert_eq!(fabric.state_of("mn0-ld4"), Some(RegionState::Releasing), "its owner was asked");
    assert_eq!(fabric.nodes[0].mapped.len(), 4, "and can write back");
    fabric.sync_cn(1).unwrap();
    assert!(fabric.agents[&cn(1)].attached.is_empty());
    fabric.sync_cn(1).unwrap();
    assert_eq!(fabric.state_of("mn0-ld4"), Some(RegionState::Draining));
    assert_eq!(fabric.manager.operation(0).unwrap().outcome, Some(OperationOutcome::Done));
    let ld = &fabric.manager.state().logical_devices[&(name("mn0"), 4)];
    assert_eq!((ld.reserved, &ld.binding), (2 * LD_UNIT, &None), "it keeps its capacity");
    fabric.settle();
    assert_eq!(fabric.state_of("mn0-ld4"), None);
    fabric.bind("mn0", None, cn(2), None).unwrap();
    fabric.settle();
    assert!(active(&fabric, "mn0-ld4"));
}

#[test]
fn each_option_of_unbinding_waits_for_what_it_says() {
    for (option, after_ask, after_silence) in [
        (UnbindOption::Surprise, RegionState::Draining, RegionState::Draining),
        (UnbindOption::Managed, RegionState::Releasing, RegionState::Draining),
        (UnbindOption::WaitLinkDown, RegionState::Releasing, RegionState::Draining),
    ] {
        let mut fabric = Fabric::new(&[8]);
        fabric.register_cn(1);
        fabric.create("r", 2, cn(1)).unwrap();
        fabric.create("others", 2, cn(2)).unwrap();
        fabric.settle();
        fabric.sync_cn(1).unwrap();
        fabric.unbind("mn0", 0, option, None).unwrap();
        assert_eq!(fabric.state_of("r"), Some(after_ask), "{option:?}");
        if option == UnbindOption::WaitLinkDown {
            (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
            assert!(fabric.agents[&cn(1)].attached.contains_key(&name("r")), "it goes on using it");
            assert_eq!(fabric.state_of("r"), Some(after_ask));
        }
        fabric.now_ms += TIMEOUT_MS;
        fabric.sync(0, false).unwrap();
        fabric.apply(Command::Tick).unwrap();
        assert_eq!(fabric.state_of("r"), Some(after_silence), "{option:?}");
        fabric.settle();
        assert_eq!(fabric.state_of("r"), None, "{option:?}");
        assert!(active(&fabric, "others"), "{option:?}: the other device is as before");
        assert_eq!(fabric.manager.devices_of(cn(1)).count(), 0);
        assert_eq!(fabric.manager.devices_of(cn(2)).count(), 1);
    }
}

#[test]
fn unbinding_takes_every_region_with_a_leg_there_and_no_other() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.apply(wide("both", 4, cn(1), 2)).unwrap();
    let create = CreateRegion { on: vec![name("mn1")], ..CreateRegion::new(name("one"), EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 0, UnbindOption::Surprise, None).unwrap();
    fabric.settle();
    assert_eq!((fabric.state_of("both"), fabric.state_of("one")), (None, Some(RegionState::Active)));
    assert_eq!(fabric.manager.state().logical_devices.len(), 1);
    let error = fabric.unbind("mn0", 0, UnbindOption::Surprise, None).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
}

/// The region has left a drained memory node, which has not zeroed its former part yet.
#[test]
fn unbinding_spares_a_region_that_has_moved_away() {
    let mut fabric = Fabric::new(&[4, 4]);
    fabric.register_cn(1);
    let create = CreateRegion { on: vec![name("mn0")], ..CreateRegion::new(name("r"), 2 * EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(create)).unwrap();
    fabric.settle();
    fabric.apply(Command::DrainMemoryNode(name("mn0"), true)).unwrap();
    fabric.now_ms += 1;
    fabric.apply(Command::Tick).unwrap();
    fabric.settle_only(1);
    let region = fabric.manager.region(&name("r")).unwrap();
    let leg = region.legs.iter().find(|leg| leg.state == LegState::Stale).unwrap();
    let (registration, mac) = (fabric.agents[&cn(1)].registration, fabric.nodes[1].mac.into());
    let filled = LegsFilled { registration, mac, cmem_base: leg.cmem_base, epoch: region.epoch };
    fabric.apply(Command::LegsFilled(name("r"), filled)).unwrap();
    fabric.unbind("mn0", 0, UnbindOption::Surprise, None).unwrap();
    assert!(active(&fabric, "r"));
    let bound: Vec<Name> =
        fabric.manager.devices_of(cn(1)).map(|device| device.memory_node.clone()).collect();
    assert_eq!(bound, [name("mn1")]);
    fabric.settle();
    assert!(active(&fabric, "r"));
    assert_eq!(fabric.free(), 6);
}

#[test]
fn while_a_device_is_unbound_nothing_new_goes_there() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 0, UnbindOption::Managed, None).unwrap();
    assert_eq!(fabric.create("s", 1, cn(1)).unwrap_err().code(), ErrorCode::NoSpace);
    fabric.create("t", 1, cn(2)).unwrap();
}

#[test]
fn from_the_seventeenth_compute_node_on_there_is_no_device_but_there_are_regions() {
    let mut fabric = Fabric::new(&[40]);
    for last in 0..18 {
        fabric.create(&format!("r{last}"), 2, cn(last)).unwrap();
    }
    fabric.settle();
    assert_eq!(fabric.manager.state().logical_devices.len(), 16);
    assert_eq!(fabric.manager.devices_of(cn(17)).count(), 0);
    assert!(active(&fabric, "r17"));
    fabric.destroy("r3").unwrap();
    fabric.settle();
    fabric.create("again", 1, cn(17)).unwrap();
    assert_eq!(fabric.manager.devices_of(cn(17)).next().map(|ld| ld.id), Some(3));
}

#[test]
fn a_node_given_away_whole_has_one_owner() {
    let mut fabric = Fabric::new(&[8]);
    fabric.nodes[0].kind = DeviceKind::Sld;
    fabric.register(0).unwrap();
    assert!(matches!(fabric.set_ld("mn0", 0, 1).unwrap_err(), ManagerError::WrongKind { .. }));
    assert!(matches!(fabric.bind("mn0", Some(0), cn(1), None).unwrap_err(), ManagerError::WrongKind { .. }));
    fabric.bind("mn0", None, cn(1), None).unwrap();
    fabric.settle();
    assert_eq!(fabric.manager.region(&name("mn0-ld0")).unwrap().size, 8 * EXTENT);
    assert_eq!(fabric.create("r", 1, cn(2)).unwrap_err().code(), ErrorCode::NoSpace);
    fabric.unbind("mn0", 0, UnbindOption::Surprise, None).unwrap();
    fabric.settle();
    assert!(fabric.manager.state().logical_devices.is_empty());
    fabric.create("r", 1, cn(2)).unwrap();
    assert_eq!(fabric.create("s", 1, cn(3)).unwrap_err().code(), ErrorCode::NoSpace);
    fabric.create("more", 1, cn(2)).unwrap();
    fabric.nodes[0].kind = DeviceKind::Mld;
    assert_eq!(fabric.register(0).unwrap_err().code(), ErrorCode::WrongState, "not while it is bound");
}

#[test]
fn a_device_is_bound_only_if_its_region_can_be_created() {
    // Case 1: the memory node is drained.
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.apply(Command::DrainMemoryNode(name("mn0"), true)).unwrap();
    let refused = fabric.bind("mn0", Some(3), cn(1), None).unwrap_err();
    assert!(matches!(refused, ManagerError::NoSpace { free: 0, .. }), "{refused}");

    // Case 2: an extent is larger than the capacity.
    let mut fabric = Fabric::new(&[]);
    let register = RegisterMemoryNode {
        extent_bytes: 2 * LD_UNIT,
        pool_bytes: 8 * LD_UNIT,
        ..Node::new(0, 0).register()
    };
    fabric.apply(Command::RegisterMemoryNode(register)).unwrap();
    fabric.set_ld("mn0", 0, 1).unwrap();
    let refused = fabric.bind("mn0", Some(0), cn(1), None).unwrap_err();
    assert!(matches!(refused, ManagerError::NoLogicalDevice { .. }), "{refused}");
}

#[test]
fn a_binding_whose_region_fails_ends() {
    let mut fabric = Fabric::new(&[8]);
    fabric.set_ld("mn0", 1, 1).unwrap();
    fabric.bind("mn0", Some(1), cn(1), Some(0)).unwrap();
    fabric.sync(0, true).unwrap();
    fabric.settle();
    fabric.settle();
    assert_eq!(fabric.manager.operation(0).unwrap().outcome, Some(OperationOutcome::Failed));
    let ld = &fabric.manager.state().logical_devices[&(name("mn0"), 1)];
    assert_eq!((ld.reserved, &ld.binding, fabric.free()), (LD_UNIT, &None, 8));
}

#[test]
fn what_is_set_aside_may_still_be_being_zeroed() {
    let mut fabric = Fabric::new(&[8]);
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.bind("mn0", Some(3), cn(1), None).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 3, UnbindOption::Surprise, None).unwrap();
    fabric.set_ld("mn0", 5, 1).unwrap();
    assert_eq!(fabric.create("r", 3, cn(2)).unwrap_err().code(), ErrorCode::NoSpace, "2 are for LD 5");
    fabric.create("r", 2, cn(2)).expect("the memory of LD 3 is being zeroed for it");
    let early = fabric.bind("mn0", Some(3), cn(2), None).unwrap_err();
    assert_eq!(early.code(), ErrorCode::WrongState, "{early}");
    let early = fabric.bind("mn0", Some(3), cn(3), None).unwrap_err();
    assert_eq!(early.code(), ErrorCode::NoSpace, "{early}");
    fabric.settle();
    fabric.bind("mn0", Some(3), cn(3), None).unwrap();
}

#[test]
fn a_whole_node_is_reassigned_only_after_zeroing() {
    let mut fabric = Fabric::new(&[8]);
    fabric.nodes[0].kind = DeviceKind::Sld;
    fabric.register(0).unwrap();
    fabric.bind("mn0", None, cn(1), Some(0)).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 0, UnbindOption::Surprise, Some(0)).unwrap();
    assert_eq!(fabric.bind("mn0", None, cn(2), Some(0)).unwrap_err().code(), ErrorCode::NoSpace);
    fabric.settle();
    fabric.bind("mn0", None, cn(2), Some(0)).unwrap();
}

#[test]
fn what_is_set_aside_for_a_bound_device_does_not_shrink_below_its_use() {
    let mut fabric = Fabric::new(&[16]);
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.bind("mn0", Some(3), cn(1), None).unwrap();
    fabric.settle();
    for units in [0, 1] {
        let error = fabric.set_ld("mn0", 3, units).unwrap_err();
        assert!(matches!(error, ManagerError::LdInUse { .. }), "{error}");
        assert!(error.to_string().contains("512.00 MiB"), "{error}");
    }
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.set_ld("mn0", 3, 4).unwrap();
    fabric.set_ld("mn0", 3, 3).expect("more than is used");
    fabric.destroy("mn0-ld3").unwrap();
    fabric.set_ld("mn0", 3, 0).expect("nothing is used");
}

#[test]
fn a_disabled_region_keeps_its_place_and_comes_back() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Releasing));
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
    assert_eq!(fabric.nodes[0].mapped.len(), 2, "its content is kept");
    fabric.apply(Command::EnableRegion(name("r"))).unwrap();
    fabric.sync_cn(1).unwrap();
    assert!(active(&fabric, "r") && fabric.agents[&cn(1)].attached.contains_key(&name("r")));
    let destroy = || Command::DestroyRegion { name: name("r"), force: false, created_ms: None };
    assert_eq!(fabric.apply(destroy()).unwrap_err().code(), ErrorCode::RegionInUse);
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    fabric.apply(destroy()).expect("nobody uses it");
    assert_eq!(fabric.apply(Command::EnableRegion(name("r"))).unwrap_err().code(), ErrorCode::WrongState);
}

#[test]
fn an_old_release_does_not_apply_to_a_new_region() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let sync = |fabric: &Fabric, created_ms| {
        let agent = &fabric.agents[&cn(1)];
        let released = vec![ReleasedRegion { name: name("r"), created_ms }];
        let (registration, after_event) = (agent.registration, agent.after_event);
        Command::SyncComputeNode(
            cn(1),
            ComputeNodeSync { registration, after_event, released, quiet: 0, settled: false, wait_ms: 0 },
        )
    };
    let created_ms = fabric.manager.region(&name("r")).unwrap().created_ms;
    fabric.apply(sync(&fabric, created_ms)).unwrap();
    assert!(active(&fabric, "r"), "nobody asked for it");
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.apply(sync(&fabric, created_ms + 1)).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Releasing));
    fabric.apply(sync(&fabric, created_ms)).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
}

#[test]
fn manager_first_holds_compute_nodes_until_what_is_declared_is_there() {
    let declared = Declared {
        regions: vec![
            CreateRegion {
                owner: cxloe_fabric::api::Owner::Name(name("cn1")),
                ..CreateRegion::new(name("a"), EXTENT, cn(1))
            },
            CreateRegion::new(name("b"), EXTENT, cn(2)),
        ],
        quotas: vec![DeclaredQuota { compute_node: cn(2).into(), bytes: ByteSize(EXTENT) }],
    };
    let options = Options { initialisation: Initialisation::ManagerFirst, declared, ..Options::default() };
    let mut fabric = Fabric::with(&[8], options);
    assert_eq!(fabric.state_of("b"), Some(RegionState::Creating), "its owner has an id");
    assert_eq!(fabric.state_of("a"), None, "its owner is yet to come");
    (1..=3).for_each(|last| fabric.register_cn(last));
    assert!(fabric.agents.values().all(|agent| agent.held && agent.attached.is_empty()));
    fabric.settle();
    (1..=3).for_each(|last| fabric.sync_cn(last).unwrap());
    assert!(!fabric.agents[&cn(1)].held && fabric.agents[&cn(1)].attached.contains_key(&name("a")));
    assert!(!fabric.agents[&cn(2)].held && fabric.agents[&cn(2)].attached.contains_key(&name("b")));
    assert!(fabric.agents[&cn(3)].held, "nothing is declared for it");
    assert_eq!(fabric.create("more", 1, cn(2)).unwrap_err().code(), ErrorCode::OverQuota);
    fabric.apply(Command::Hold(cn(3).into(), false)).unwrap();
    fabric.sync_cn(3).unwrap();
    assert!(!fabric.agents[&cn(3)].held);
    fabric.apply(Command::Hold(cn(1).into(), true)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    assert!(fabric.agents[&cn(1)].held, "by hand: nothing but a hand releases it");
    fabric.restart_manager();
    fabric.settle();
    assert!(fabric.manager.state().compute_nodes[&cn(1)].held);
}

#[test]
fn a_static_fabric_is_what_its_file_says() {
    let declared =
        Declared { regions: vec![CreateRegion::new(name("a"), EXTENT, cn(1))], quotas: Vec::new() };
    let options = Options { initialisation: Initialisation::Static, declared, ..Options::default() };
    let mut fabric = Fabric::with(&[8, 8], options);
    fabric.settle();
    assert!(active(&fabric, "a"));
    for refused in [
        fabric.create("b", 1, cn(1)),
        fabric.destroy("a"),
        fabric.bind("mn1", None, cn(1), None),
        fabric.unbind("mn0", 0, UnbindOption::Surprise, None),
        fabric.set_ld("mn1", 0, 1),
        fabric.grow("a", 2),
    ] {
        assert_eq!(refused.unwrap_err().code(), ErrorCode::StaticFabric);
    }
    let shared = Declared {
        regions: [cn(1), cn(2)]
            .map(|owner| CreateRegion { on: vec![name("mn0")], ..CreateRegion::new(name("x"), 1, owner) })
            .into(),
        quotas: Vec::new(),
    };
    assert_eq!(Manager::shared_nodes(&shared).map(|(node, _)| node), Some(name("mn0")));
}

#[test]
fn a_forgotten_node_takes_its_quarantine_with_it_and_comes_back_as_a_new_one() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.apply(wide("r", 4, cn(1), 2)).unwrap();
    fabric.settle();
    let forget = |force| Command::ForgetMemoryNode { name: name("mn0"), force };
    assert_eq!(fabric.apply(forget(true)).unwrap_err().code(), ErrorCode::WrongState, "it is there");
    fabric.now_ms += TIMEOUT_MS;
    fabric.sync(1, false).unwrap();
    fabric.apply(Command::Tick).unwrap();
    assert_eq!(fabric.apply(forget(false)).unwrap_err().code(), ErrorCode::WrongState, "a region lies on it");
    fabric.apply(forget(true)).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Draining));
    assert!(fabric.manager.region(&name("r")).unwrap().legs.iter().all(|l| l.state == LegState::Unmapping));
    fabric.settle_only(1);
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));
    fabric.register(0).unwrap();
    assert_eq!((fabric.free(), fabric.nodes[0].mapped.len()), (16, 0));
}

#[test]
fn an_aer_event_reaches_the_owner_of_the_vppb() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.create("r", 1, cn(1)).unwrap();
    let before = fabric.manager.compute_node_registered(cn(1), Watermark::default()).unwrap().after_event;
    let aer = |vppb| Command::GenerateAer { compute_node: cn(1).into(), vppb, aer: 0x4000 };
    fabric.apply(aer(0)).unwrap();
    assert!(fabric.manager.regions_changed(cn(1), before));
    let synced = fabric.manager.compute_node_synced(cn(1), before);
    assert_eq!(synced.errors, [cxloe_fabric::api::VppbError { vppb: 0, aer: 0x4000 }]);
    assert!(fabric.manager.compute_node_synced(cn(1), synced.after_event).errors.is_empty(), "told once");
    assert!(fabric.manager.compute_node_synced(cn(2), before).errors.is_empty(), "and to nobody else");
    assert_eq!(fabric.apply(aer(9)).unwrap_err().code(), ErrorCode::BadRequest);
}

#[test]
fn it_is_known_whether_an_owner_has_heard_of_its_regions() {
    let mut fabric = Fabric::new(&[8]);
    let knows = |fabric: &Fabric| {
        let region = fabric.manager.region(&name("r")).unwrap();
        fabric.manager.region_status(region).owner_knows
    };
    fabric.create("r", 1, cn(1)).unwrap();
    fabric.settle();
    assert!(!knows(&fabric), "there is no agent");
    fabric.register_cn(1);
    fabric.create("s", 1, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    assert!(!knows(&fabric), "it is being told");
    fabric.sync_cn(1).unwrap();
    assert!(knows(&fabric));
    fabric.create("t", 1, cn(1)).unwrap();
    assert!(!knows(&fabric), "there is more to hear of");
}
