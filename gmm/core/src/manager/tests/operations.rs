//! Background operations of switches, and the events that they must never wait for: one test for each rule.

use super::*;
use cxloe_fabric::model::OperationOutcome;

fn active(fabric: &Fabric, region: &str) -> bool {
    fabric.state_of(region) == Some(RegionState::Active)
}

#[test]
fn percent_complete_follows_released_and_then_zeroed_bytes() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.create("r", 4, cn(1)).unwrap();
    fabric.create("s", 1, cn(1)).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 0, UnbindOption::Managed, Some(0)).unwrap();
    let percent = |fabric: &Fabric| {
        let operation = fabric.manager.operation(0).unwrap();
        let region = fabric.manager.region(&name("r")).ok();
        (fabric.manager.operation_percent(operation), region.and_then(|r| fabric.manager.zeroed_percent(r)))
    };
    assert_eq!(percent(&fabric), (0, None));
    fabric.destroy("r").unwrap();
    assert_eq!(percent(&fabric), (80, Some(0)));
    let progress = Some(Progress { seq: fabric.nodes[0].acked_seq + 1, done: 3 * EXTENT });
    let sync = MemoryNodeSync { progress, ..fabric.nodes[0].sync() };
    fabric.apply(Command::SyncMemoryNode(name("mn0"), sync)).unwrap();
    assert_eq!(percent(&fabric), (80, Some(75)));
    fabric.destroy("s").unwrap();
    assert_eq!(percent(&fabric), (100, Some(75)));
    fabric.settle();
    assert_eq!(percent(&fabric), (100, None));
}

/// Makes `mn0` unreachable: the other nodes report after the node time-out, and `mn0` does not.
fn lose_first_node(fabric: &mut Fabric) {
    fabric.now_ms += TIMEOUT_MS;
    (1..fabric.nodes.len()).for_each(|node| fabric.sync(node, false).unwrap());
    let agents: Vec<CnId> = fabric.agents.keys().copied().collect();
    agents.into_iter().for_each(|cn| fabric.sync_cn(cn.octets()[5]).unwrap());
    fabric.apply(Command::Tick).unwrap();
}

fn outcome(fabric: &Fabric) -> Option<OperationOutcome> {
    fabric.manager.operation(0).unwrap().outcome
}

#[test]
fn an_unbinding_ends_though_its_memory_node_is_gone() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.register_cn(1);
    for node in ["mn0", "mn1"] {
        fabric.set_ld(node, 3, 2).unwrap();
        fabric.bind(node, Some(3), cn(1), None).unwrap();
    }
    fabric.settle();
    lose_first_node(&mut fabric);
    fabric.unbind("mn0", 3, UnbindOption::Managed, Some(0)).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Done));
    fabric.restart_manager();
    fabric.unbind("mn1", 3, UnbindOption::Surprise, Some(0)).expect("the switch is not busy");
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Done));
    assert_eq!(fabric.state_of("mn0-ld3"), Some(RegionState::Draining), "its extents wait for the node");
    assert_eq!(fabric.manager.memory_node_statuses()[0].free_bytes, 4 * EXTENT);
    fabric.settle();
    assert_eq!((fabric.state_of("mn0-ld3"), fabric.state_of("mn1-ld3"), fabric.free()), (None, None, 16));
}

#[test]
fn waiting_for_the_link_to_go_down_ends_when_it_does() {
    let waiting = || {
        let mut fabric = Fabric::new(&[8]);
        fabric.register_cn(1);
        fabric.create("r", 2, cn(1)).unwrap();
        fabric.settle();
        fabric
    };
    let wait = |fabric: &mut Fabric| fabric.unbind("mn0", 0, UnbindOption::WaitLinkDown, Some(0)).unwrap();
    let mut reset = waiting();
    wait(&mut reset);
    (0..2).for_each(|_| reset.sync_cn(1).unwrap());
    assert_eq!(outcome(&reset), None, "it stays");
    reset.apply(Command::Hold(cn(1).into(), true)).unwrap();
    assert_eq!(
        (outcome(&reset), reset.state_of("r")),
        (Some(OperationOutcome::Done), Some(RegionState::Draining))
    );

    let mut down = waiting();
    down.apply(Command::Hold(cn(1).into(), true)).unwrap();
    assert_eq!(down.state_of("r"), Some(RegionState::Active), "nobody waited");
    wait(&mut down);
    assert_eq!(outcome(&down), Some(OperationOutcome::Done));

    let mut restarted = waiting();
    wait(&mut restarted);
    let registration = restarted.agents[&cn(1)].registration;
    restarted.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), registration)).unwrap();
    restarted.register_cn(1);
    assert_eq!(outcome(&restarted), None, "it only connected anew");
    restarted.apply(Command::HungUp(liveness::NodeKey::Compute(cn(1)), registration + 1)).unwrap();
    let register = RegisterComputeNode {
        cn_id: cn(1),
        name: name("cn1"),
        udp: None,
        key: None,
        new_key: false,
        instance_id: 6,
        seen: Watermark::default(),
    };
    restarted.apply(Command::RegisterComputeNode(register)).unwrap();
    assert_eq!(outcome(&restarted), Some(OperationOutcome::Done));
}

#[test]
fn a_background_operation_can_be_aborted() {
    let mut fabric = Fabric::new(&[8]);
    fabric.register_cn(1);
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.apply(Command::AbortOperation(0)).expect("nothing goes on");
    fabric.bind("mn0", Some(3), cn(1), Some(0)).unwrap();
    fabric.apply(Command::AbortOperation(0)).unwrap();
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Aborted));
    assert_eq!(fabric.manager.devices_of(cn(1)).count(), 0);
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("mn0-ld3"), fabric.free()), (None, 8));

    fabric.bind("mn0", Some(3), cn(1), Some(0)).unwrap();
    fabric.settle();
    fabric.create("more", 1, cn(1)).unwrap();
    fabric.settle();
    fabric.sync_cn(1).unwrap();
    for option in [UnbindOption::WaitLinkDown, UnbindOption::Managed] {
        fabric.unbind("mn0", 3, option, Some(0)).unwrap();
        assert_eq!(fabric.state_of("mn0-ld3"), Some(RegionState::Releasing));
        fabric.apply(Command::AbortOperation(0)).unwrap();
        assert_eq!(outcome(&fabric), Some(OperationOutcome::Aborted));
        let ld = fabric.manager.devices_of(cn(1)).next().unwrap();
        assert_eq!(ld.binding.as_ref().unwrap().unbinding, None);
        assert!(active(&fabric, "mn0-ld3") && active(&fabric, "more"), "{option:?}");
        (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
        assert_eq!(fabric.agents[&cn(1)].attached.len(), 2, "{option:?}");
    }
    fabric.unbind("mn0", 3, UnbindOption::Surprise, Some(0)).unwrap();
    fabric.apply(Command::AbortOperation(0)).expect("it is over");
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Done));
}

#[test]
fn a_binding_that_a_switch_waits_for_ends_when_its_memory_node_goes() {
    let mut fabric = Fabric::new(&[8, 8]);
    fabric.set_ld("mn0", 3, 2).unwrap();
    fabric.bind("mn0", Some(3), cn(1), Some(0)).unwrap();
    lose_first_node(&mut fabric);
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Failed));
    fabric.settle();
    fabric.settle();
    assert_eq!((fabric.state_of("mn0-ld3"), fabric.free()), (None, 16));
}

#[test]
fn operations_left_by_an_earlier_manager_end() {
    let mut fabric = Fabric::new(&[8]);
    fabric.create("r", 2, cn(1)).unwrap();
    fabric.settle();
    fabric.unbind("mn0", 0, UnbindOption::Surprise, Some(0)).unwrap();
    // The store contains an operation of an earlier version of the manager, in which an unbinding lasted until the
    // memory was zeroed.
    let unbinding =
        Some(cxloe_fabric::model::Unbinding { option: UnbindOption::Surprise, total: 2 * EXTENT });
    let binding =
        cxloe_fabric::model::Binding { compute_node: cn(1), vppb: Some(0), region: None, unbinding };
    let ld = cxloe_fabric::model::LogicalDevice {
        memory_node: name("mn0"),
        id: 0,
        reserved: 0,
        binding: Some(binding),
    };
    let operation = fabric.manager.operation(0).unwrap().clone();
    let running = cxloe_fabric::model::Operation { outcome: None, ..operation };
    fabric.store.commit(&[Change::LogicalDevice(ld), Change::Operation(running)]);
    fabric.restart_manager();
    assert_eq!(outcome(&fabric), Some(OperationOutcome::Done));
    assert!(fabric.manager.state().logical_devices.is_empty());
}
