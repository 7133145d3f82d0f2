//! Rules of the manager, one command after another: allocation, states of a region, silence of nodes.

use super::*;
use cxloe_fabric::api::{ErrorCode, Owner};
use cxloe_fabric::hdm::Ways;
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::time::Time;

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

/// The store takes records up to a size, and a region in very many pieces has a large one: it is refused before anything
/// changes, as the bind of a logical device that makes such a region.
#[test]
fn a_region_in_more_pieces_than_its_record_may_have_is_refused() {
    let options = Options { record_bytes_max: Some(4000), ..Options::default() };
    let mut fabric = Fabric::with(&[120], options);
    (0..120).for_each(|number| fabric.create(&format!("r{number}"), 1, cn(1)).unwrap());
    (0..120).step_by(2).for_each(|number| fabric.destroy(&format!("r{number}")).unwrap());
    fabric.settle();
    assert_eq!(fabric.free(), 60);
    let refused = fabric.create("all", 60, cn(1)).unwrap_err();
    assert_eq!((refused.code(), fabric.free()), (ErrorCode::LimitReached, 60));
    assert!(matches!(refused, ManagerError::TooFragmented { pieces: 61, .. }), "{refused}");
    fabric.create("some", 10, cn(1)).unwrap();
    fabric.settle();
    assert_eq!(fabric.state_of("some"), Some(RegionState::Active));
    let error = fabric.grow("some", 60).unwrap_err();
    assert!(matches!(error, ManagerError::TooFragmented { .. }), "{error}");
}

#[test]
fn regions_go_to_the_emptiest_node_and_over_several_when_none_is_large_enough() {
    let mut fabric = Fabric::new(&[4, 10, 6]);
    fabric.create("one", 5, cn(1)).unwrap();
    fabric.create("many", 12, cn(1)).unwrap();
    let legs = |region: &str| -> Vec<(String, u64, u64)> {
        let region = fabric.manager.region(&name(region)).unwrap();
        let offset = |leg: &cxloe_fabric::model::Leg| region.decoders[leg.decoder as usize].offset;
        let legs = region.legs.iter();
        legs.map(|leg| (leg.memory_node.to_string(), offset(leg) / EXTENT, leg.bytes / EXTENT)).collect()
    };
    assert_eq!(legs("one"), [("mn1".to_owned(), 0, 5)]);
    assert_eq!(legs("many"), [("mn2".to_owned(), 0, 6), ("mn1".to_owned(), 6, 5), ("mn0".to_owned(), 11, 1)]);
    let error = fabric.create("more", 4, cn(1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NoSpace);
    assert!(error.to_string().contains("512.00 MiB") && error.to_string().contains("384.00 MiB"), "{error}");
}

#[test]
fn invalid_values_are_refused_by_name() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 1, cn(1)).unwrap();
    let ask = |change: fn(&mut CreateRegion)| {
        let mut create = CreateRegion::new(name("s"), EXTENT, cn(1));
        change(&mut create);
        Command::CreateRegion(create)
    };
    let table = [
        (ask(|c| c.name = Some(name("r"))), ErrorCode::NameInUse),
        (ask(|c| c.size.0 = 0), ErrorCode::BadRequest),
        (ask(|c| c.size.0 = EXTENT + 1), ErrorCode::BadRequest),
        (ask(|c| c.size.0 = u64::MAX), ErrorCode::NoSpace),
        (ask(|c| c.ways = Ways::Two), ErrorCode::NoSpace),
        (ask(|c| c.on = vec![name("mn7")]), ErrorCode::NotFound),
        (ask(|c| c.owner = Owner::Name(name("nobody"))), ErrorCode::NotFound),
        (Command::DestroyRegion { name: name("s"), force: true, created_ms: None }, ErrorCode::NotFound),
        (Command::ResetRegion(name("r")), ErrorCode::WrongState),
    ];
    for (command, code) in table {
        let error = fabric.apply(command.clone()).unwrap_err();
        assert_eq!(error.code(), code, "{command:?}: {error}");
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn a_region_without_a_name_gets_the_first_free_one() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("region1", 1, cn(1)).unwrap();
    let nameless = || Command::CreateRegion(CreateRegion::nameless(EXTENT, cn(1)));
    let made = |fabric: &mut Fabric| fabric.apply(nameless()).unwrap().created_region().unwrap().to_string();
    assert_eq!(made(&mut fabric), "region0");
    assert_eq!(made(&mut fabric), "region2");
    assert_eq!(fabric.state_of("region2"), Some(RegionState::Creating));
    // The name of a region that is being zeroed must not be given to another region.
    fabric.settle();
    fabric.destroy("region0").unwrap();
    assert_eq!(made(&mut fabric), "region3");
    fabric.settle();
    assert_eq!(made(&mut fabric), "region0");
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
        (ask(|r| r.extent_bytes = 3 << 26), ErrorCode::BadRequest),
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
    let due = Deadline::new(Time::from_millis(fabric.now_ms), "silence of a node");
    assert_eq!(fabric.manager.deadline(), due);
    fabric.apply(Command::Tick).unwrap();
    assert!(!fabric.manager.deadline().is_due(due.at), "ticked");
    assert_eq!(fabric.state_of("r"), Some(RegionState::Degraded));
    assert_eq!(fabric.create("s", 1, cn(1)).unwrap_err().code(), ErrorCode::NoSpace);

    fabric.destroy("r").unwrap();
    assert_eq!((fabric.state_of("r"), fabric.free()), (Some(RegionState::Draining), 6), "quarantine");
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));
}

#[test]
fn a_registered_node_without_link_is_unreachable_until_it_has_one() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let sync = |fabric: &mut Fabric, stats| {
        let sync = MemoryNodeSync { stats, ..fabric.nodes[0].sync() };
        fabric.apply(Command::SyncMemoryNode(name("mn0"), sync)).unwrap();
    };
    let events = fabric.manager.state().meta.last_event;
    let why = "interface `mn0` is down";
    let down = serde_json::json!([{ "link_down": why }, {}]);
    sync(&mut fabric, down.clone());
    assert_eq!(fabric.state_of("r"), Some(RegionState::Degraded));
    let node = &fabric.manager.overview("", 0).memory_nodes[0];
    assert_eq!((node.health, node.link_down.as_deref()), (Health::Unreachable, Some(why)));
    assert_eq!(fabric.create("s", 1, cn(1)).unwrap_err().code(), ErrorCode::NoSpace);
    let once = fabric.manager.state().meta.last_event;
    assert!(once > events);
    sync(&mut fabric, down);
    assert_eq!(fabric.manager.state().meta.last_event, once, "it is said once");
    sync(&mut fabric, serde_json::json!([{}]));
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    assert_eq!(fabric.manager.overview("", 0).memory_nodes[0].link_down, None);
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

/// Messages of a former process arrive while its successor is briefly disconnected. They must be refused, or
/// the content of the successor's pool would count as lost.
#[test]
fn a_superseded_process_is_rejected() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    let superseded = (fabric.nodes[0].instance_id, fabric.nodes[0].incarnation);
    let hang_up = |fabric: &Fabric| {
        Command::HungUp(liveness::NodeKey::Memory(name("mn0")), fabric.nodes[0].registration)
    };
    fabric.apply(hang_up(&fabric)).unwrap();
    (fabric.nodes[0].instance_id, fabric.nodes[0].incarnation) = (superseded.0 + 1, superseded.1 + 1);
    fabric.register(0).unwrap();
    fabric.apply(hang_up(&fabric)).unwrap();
    let present = std::mem::replace(&mut fabric.nodes[0].instance_id, superseded.0);
    let incarnation = std::mem::replace(&mut fabric.nodes[0].incarnation, superseded.1);
    assert_eq!(fabric.register(0).unwrap_err().code(), ErrorCode::NameInUse);
    assert_eq!(fabric.manager.state().memory_nodes[&name("mn0")].incarnation, incarnation);
    (fabric.nodes[0].instance_id, fabric.nodes[0].incarnation) = (present, incarnation);
    fabric.register(0).unwrap();
}

/// The registrations of two processes arrive in the wrong order: the running process must not be refused for
/// ever.
#[test]
fn a_process_without_successor_is_accepted_after_the_timeout() {
    let mut fabric = Fabric::new(&[8]);
    let hang_up = |fabric: &Fabric| {
        Command::HungUp(liveness::NodeKey::Memory(name("mn0")), fabric.nodes[0].registration)
    };
    fabric.apply(hang_up(&fabric)).unwrap();
    let present = fabric.nodes[0].instance_id;
    fabric.nodes[0].instance_id = present + 1;
    fabric.register(0).unwrap();
    fabric.apply(hang_up(&fabric)).unwrap();
    fabric.nodes[0].instance_id = present;
    fabric.now_ms += superseded::REFUSED_MS - 1;
    assert_eq!(fabric.register(0).unwrap_err().code(), ErrorCode::NameInUse);
    fabric.now_ms += 1;
    fabric.register(0).unwrap();
}

/// The first message of a former process arrives while its successor is disconnected, or after another
/// manager has replaced the one with which both had registered. It must be refused.
#[test]
fn a_process_that_started_earlier_is_rejected() {
    for taken_over in [false, true] {
        let mut fabric = Fabric::new(&[8]);
        fabric.nodes[0].started_ms = 1_000;
        fabric.register(0).unwrap();
        fabric.create("r", 2, cn(1)).unwrap();
        fabric.settle();
        if taken_over {
            fabric.now_ms += superseded::REFUSED_MS;
            fabric.restart_manager();
        }
        let process = |fabric: &mut Fabric, instance_id, started_ms| {
            let node = &fabric.manager.state().memory_nodes[&name("mn0")];
            let key = liveness::NodeKey::Memory(name("mn0"));
            fabric.apply(Command::HungUp(key, node.registration)).unwrap();
            let incarnation = fabric.nodes[0].incarnation + instance_id - 1;
            let node = fabric.nodes[0].register();
            let node = RegisterMemoryNode { instance_id, started_ms, incarnation, ..node };
            fabric.apply(Command::RegisterMemoryNode(node)).map_err(|error| error.code())
        };
        assert_eq!(process(&mut fabric, 7, 999).err(), Some(ErrorCode::NameInUse));
        process(&mut fabric, 1, 1_000).unwrap();
        // The clock was set back between two starts: the process is accepted once no earlier message is under
        // way.
        fabric.now_ms += superseded::REFUSED_MS;
        process(&mut fabric, 8, 998).unwrap();
        // A process without a start time, or with a later one, is accepted at once.
        process(&mut fabric, 9, 0).unwrap();
        process(&mut fabric, 10, 1_001).unwrap();
        assert_eq!(process(&mut fabric, 11, 1_000).err(), Some(ErrorCode::NameInUse));
    }
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
fn a_failed_unmap_keeps_the_extents_until_a_later_one_succeeds() {
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

/// The results of all commands in an answer have to fit into the body of one request.
#[test]
fn a_memory_node_gets_many_commands_in_several_answers() {
    let mut fabric = Fabric::new(&[300]);
    (0..300).for_each(|number| fabric.create(&format!("r{number}"), 1, cn(1)).unwrap());
    let synced = fabric.manager.memory_node_synced(&name("mn0"));
    assert!(synced.commands.iter().map(|command| command.seq).eq(1..=256));
    (0..3).for_each(|_| fabric.sync(0, false).unwrap());
    assert!(fabric.manager.state().regions.values().all(|region| region.state == RegionState::Active));
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
fn a_compute_node_receives_its_own_regions_only() {
    let mut fabric = Fabric::new(&[8]);
    [1, 2].into_iter().for_each(|last| fabric.register_cn(last));
    let before = [1, 2].map(|last| {
        fabric.manager.compute_node_registered(cn(last), Watermark::default()).unwrap().after_event
    });
    let by_name =
        CreateRegion { owner: Owner::Name(name("cn2")), ..CreateRegion::new(name("r"), EXTENT, cn(1)) };
    fabric.apply(Command::CreateRegion(by_name)).unwrap();
    assert!(!fabric.manager.regions_changed(cn(1), before[0]));
    let synced = fabric.manager.compute_node_synced(cn(2), before[1]);
    assert_eq!(synced.regions.unwrap()[0].owner, cn(2));
    assert!(fabric.manager.compute_node_synced(cn(2), synced.after_event).regions.is_none());

    let force = false;
    let error =
        fabric.apply(Command::DestroyRegion { name: name("r"), force, created_ms: None }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::RegionInUse);
    for words in ["`gmm disable-region r`", "`gmm destroy-region --force r`", "is lost"] {
        assert!(error.hint().contains(words), "{}", error.hint());
    }
    fabric.now_ms += TIMEOUT_MS;
    fabric.apply(Command::Tick).unwrap();
    // A request with another creation time leaves the region unchanged.
    let created_ms = fabric.manager.region(&name("r")).unwrap().created_ms;
    let destroy =
        |created_ms| Command::DestroyRegion { name: name("r"), force, created_ms: Some(created_ms) };
    let error = fabric.apply(destroy(created_ms - 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
    assert_ne!(fabric.state_of("r"), Some(RegionState::Draining));
    fabric.apply(destroy(created_ms)).unwrap();
}

#[test]
fn two_agents_with_one_cn_id_or_one_name_are_distinguished() {
    let mut fabric = Fabric::new(&[1]);
    let register = |last, node: &str, instance_id| {
        Command::RegisterComputeNode(RegisterComputeNode {
            cn_id: cn(last),
            name: name(node),
            udp: None,
            key: None,
            new_key: false,
            instance_id,
            seen: Watermark::default(),
        })
    };
    fabric.apply(register(1, "a", 1)).unwrap();
    let registration =
        fabric.manager.compute_node_registered(cn(1), Watermark::default()).unwrap().registration;
    assert_eq!(fabric.apply(register(1, "a", 2)).unwrap_err().code(), ErrorCode::NameInUse);
    assert_eq!(fabric.apply(register(2, "a", 3)).unwrap_err().code(), ErrorCode::NameInUse);
    fabric.apply(register(1, "a", 1)).expect("the same run may register again");
    let sync = ComputeNodeSync {
        registration,
        after_event: 0,
        released: Vec::new(),
        quiet: 0,
        settled: false,
        wait_ms: 0,
    };
    let error = fabric.apply(Command::SyncComputeNode(cn(1), sync)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotRegistered);
    let current = fabric.manager.compute_node_registered(cn(1), Watermark::default()).unwrap().registration;
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
    let page = fabric.manager.events_that(0, 5, |_| true);
    assert_eq!(page.newest - page.oldest + 1, EVENTS_KEPT);
    assert_eq!(
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>(),
        (page.oldest..page.oldest + 5).collect::<Vec<_>>()
    );
    let rest = fabric.manager.events_that(page.newest - 2, 100, |_| true);
    assert_eq!(rest.events.len(), 2);
    assert!(fabric.manager.events_that(page.newest, 100, |_| true).events.is_empty());
    assert!(fabric.manager.events_that(u64::MAX - 1, 100, |_| true).events.is_empty());
}

#[test]
fn what_a_refused_command_has_changed_is_taken_back() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register(0).unwrap();
    fabric.register_cn(1);
    let manager = &mut fabric.manager;
    let (before, free) = (manager.state.clone(), manager.free.clone());
    // Changes the state directly, as a faulty command would if it were refused after its first change.
    manager.next_registration();
    let mut node = manager.state.memory_nodes.values().next().unwrap().clone();
    node.last_seq += 7;
    manager.put(Change::MemoryNode(node.clone()));
    manager.put(Change::MemoryNodeGone(node.name));
    manager.event(EventKind::ManagerStarted { term: 9 });
    assert!(!manager.undo.is_empty(&manager.state));
    manager.take_back_command();
    assert_eq!((&manager.state, &manager.free), (&before, &free));
    assert_eq!(manager.index, Index::new(&before));
    assert!(manager.journal.is_empty() && manager.undo.is_empty(&manager.state));
    // The next command starts from the restored counters.
    let error = manager.apply(Command::EnableRegion(name("none")), 1).unwrap_err();
    assert_eq!(error.code(), cxloe_fabric::api::ErrorCode::NotFound, "{error}");
    assert_eq!(manager.state, before);
}

#[test]
fn udp_addresses_are_sent_only_to_nodes_that_need_them() {
    let mut fabric = Fabric::new(&[8, 8]);
    let register = |last, address: &str| {
        Command::RegisterComputeNode(RegisterComputeNode {
            cn_id: cn(last),
            name: name(&format!("cn{last}")),
            udp: Some(address.parse().unwrap()),
            key: None,
            new_key: false,
            instance_id: u64::from(last),
            seen: Watermark::default(),
        })
    };
    let refused = |fabric: &mut Fabric, address| fabric.apply(register(1, address)).unwrap_err().code();
    for address in ["0.0.0.0:7", "10.0.0.1:0", "[::]:7", "224.0.0.1:7"] {
        assert_eq!(refused(&mut fabric, address), ErrorCode::BadRequest);
    }
    fabric.apply(register(1, "10.0.0.1:63669")).unwrap();
    fabric.apply(register(2, "10.0.0.2:63669")).unwrap();
    let nodes: Vec<Name> = fabric.nodes.iter().map(|node| node.name.clone()).collect();
    let peers = |fabric: &Fabric, node: usize| fabric.manager.memory_node_synced(&nodes[node]).udp_peers;
    assert_eq!((peers(&fabric, 0), peers(&fabric, 1)), (vec![], vec![]));
    fabric.create("a", 1, cn(1)).unwrap();
    let leg = |fabric: &Fabric| fabric.manager.region(&name("a")).unwrap().legs[0].clone();
    let at = leg(&fabric).memory_node;
    let at = nodes.iter().position(|node| *node == at).unwrap();
    let told: Vec<_> = peers(&fabric, at).iter().map(|peer| (peer.compute_node, peer.address)).collect();
    assert_eq!(told, [(cn(1), "10.0.0.1:63669".parse().unwrap())]);
    assert_eq!(peers(&fabric, 1 - at), []);
    // Both memory nodes receive the new address of the compute node.
    fabric.apply(register(1, "10.0.0.9:63669")).unwrap();
    assert_eq!(peers(&fabric, at)[0].address, "10.0.0.9:63669".parse().unwrap());
    let moved =
        RegisterMemoryNode { udp: Some("10.0.1.1:63669".parse().unwrap()), ..fabric.nodes[at].register() };
    fabric.apply(Command::RegisterMemoryNode(moved)).unwrap();
    assert_eq!(leg(&fabric).udp, Some("10.0.1.1:63669".parse().unwrap()));
}
