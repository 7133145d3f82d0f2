//! Copies that memory nodes make of regions at rest: a test for each step and each end, and a search for an order of
//! events after which the owner reads something else than it has written.

use super::*;
use cxloe_fabric::api::{CloneRegion, CopyProgress, LegsFilled, ProtectRegion};
use cxloe_fabric::model::{FillCmem, FillProgress, FormerLeg, Leg, LegState, Protection};
use proptest::prelude::*;

use LegState::{Lost, Mapped, Stale, Unmapping};

impl Fabric {
    /// Returns a fabric with memory nodes of these sizes, and the region `r` of two extents, whose owner's agent runs.
    fn in_use(extents: &[u64]) -> Self {
        let mut fabric = Self::new(extents);
        fabric.register_cn(1);
        fabric.create("r", 2, cn(1)).unwrap();
        fabric.settle();
        assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
        fabric
    }

    /// Like [`attached`](Self::in_use), but the agent has ended in order.
    fn at_rest(extents: &[u64]) -> Self {
        let mut fabric = Self::in_use(extents);
        fabric.end_agent(true);
        fabric
    }

    /// Ends the agent, in order or not, and lets the node time-out pass.
    fn end_agent(&mut self, settled: bool) {
        let Agent { registration, after_event, .. } = self.agents[&cn(1)];
        let (released, quiet) = (Vec::new(), 0);
        let sync = ComputeNodeSync { registration, after_event, released, quiet, settled, wait_ms: 0 };
        self.apply(Command::SyncComputeNode(cn(1), sync)).unwrap();
        self.let_pass(TIMEOUT_MS + 1000);
        let health = self.manager.state().compute_nodes[&cn(1)].health;
        assert_eq!(health, Health::Unreachable);
    }

    /// Starts another agent of the owner.
    fn start_agent(&mut self) {
        let registration = self.agents[&cn(1)].registration;
        self.apply(Command::HungUp(NodeKey::Compute(cn(1)), registration)).unwrap();
        let instance_id = self.manager.state().compute_nodes[&cn(1)].instance_id + 1;
        self.register_run(1, instance_id);
    }

    /// Lets time pass, while all memory nodes carry out their commands.
    fn let_pass(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.now_ms = until.min(self.now_ms + 1000);
            self.settle();
            self.apply(Command::Tick).unwrap();
        }
    }

    fn drain_node(&mut self, node: usize, draining: bool) {
        let node = self.nodes[node].name.clone();
        self.apply(Command::DrainMemoryNode(node, draining)).unwrap();
    }

    fn the_region(&self) -> &Region {
        self.manager.region(&name("r")).unwrap()
    }

    /// Returns number of the memory node, state, and whether it is lent, of each leg that is not being unmapped.
    fn parts(&self) -> Vec<(usize, LegState, bool)> {
        let live = self.the_region().legs.iter().filter(|leg| leg.state != Unmapping);
        live.map(|leg| (self.number_of(leg), leg.state, leg.lent.is_some())).collect()
    }

    fn number_of(&self, leg: &Leg) -> usize {
        self.nodes.iter().position(|node| node.name == leg.memory_node).unwrap()
    }

    fn orders(&self, node: usize) -> Vec<FillCmem> {
        self.manager.fills_on(&self.nodes[node].name)
    }

    /// Has a memory node report `done` bytes of each of its orders to copy.
    fn report_copied(&mut self, node: usize, done: u64) {
        let report = |order: &FillCmem| FillProgress { cmem_base: order.mapping.cmem_base, done };
        let fills = self.orders(node).iter().map(report).collect();
        let sync = MemoryNodeSync { fills, ..self.nodes[node].sync() };
        self.apply(Command::SyncMemoryNode(self.nodes[node].name.clone(), sync)).unwrap();
        self.nodes[node].results.clear();
    }

    /// Drains the node that has the region, and returns it and the node that copies the region.
    fn begin_copy(&mut self) -> (usize, usize) {
        let from = self.parts()[0].0;
        self.drain_node(from, true);
        self.let_pass(4000);
        let to = self.parts()[1].0;
        assert_eq!(self.parts(), [(from, Mapped, true), (to, Stale, true)]);
        (from, to)
    }

    /// Returns true if the memory node serves a leg for this CN id alone.
    fn serves(&self, leg: &Leg, cn: CnId) -> bool {
        let mapped = &self.nodes[self.number_of(leg)].mapped;
        leg.extents.iter().all(|extent| mapped.get(&extent).is_some_and(|(held_by, _)| *held_by == cn))
    }
}

#[test]
fn a_region_that_nobody_uses_is_copied_by_the_memory_node_it_moves_to() {
    let mut fabric = Fabric::at_rest(&[4, 4]);
    let (from, to) = fabric.begin_copy();
    let borrower = CnId::new(fabric.nodes[to].mac).unwrap();
    let legs = fabric.the_region().legs.clone();
    assert!(legs.iter().all(|leg| fabric.serves(leg, borrower)), "the owner reaches neither leg");
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
    let [order] = &fabric.orders(to)[..] else { panic!("{:?}", fabric.orders(to)) };
    assert_eq!(order.source.memory_node, fabric.nodes[from].name);
    assert_eq!((order.mapping.cn, order.mapping.bytes()), (borrower, 2 * EXTENT));
    let admitted = |node: usize| {
        let keys = fabric.manager.cn_keys(&fabric.nodes[node].name);
        keys.iter().any(|key| key.compute_node == borrower)
    };
    assert!(admitted(from) && admitted(to), "the address of the memory node needs its key at both");

    fabric.report_copied(to, EXTENT);
    let status = fabric.manager.region_status(fabric.the_region());
    assert_eq!(status.copying, Some(CopyProgress { bytes: 2 * EXTENT, done: EXTENT }));
    assert_eq!(fabric.parts()[1], (to, Stale, true), "a half is not all");
    fabric.report_copied(to, 2 * EXTENT);
    assert_eq!(fabric.parts()[1].1, Stale, "its memory node has not handed it over yet");
    fabric.let_pass(4000);
    assert_eq!(fabric.parts(), [(to, Mapped, false)]);
    let region = fabric.the_region();
    assert!(region.legs.len() == 1 && fabric.serves(&region.legs[0], cn(1)));
    assert!(fabric.nodes[from].mapped.is_empty() && fabric.orders(to).is_empty());
    assert!(region.epoch > 0, "other legs are in sync");
    let former = FormerLeg { cmem_base: legs[0].cmem_base, incarnation: legs[0].incarnation.unwrap() };
    assert_eq!(region.legs[0].succeeds, Some(former), "as the agent knows it");
    assert_eq!((region.state, fabric.free()), (RegionState::Active, 6));
    fabric.start_agent();
    assert!(fabric.agents[&cn(1)].attached.contains_key(&name("r")), "at once, at its new place");
}

#[test]
fn an_owner_that_comes_back_gets_its_region_before_it_can_use_it() {
    let mut fabric = Fabric::at_rest(&[4, 4]);
    let before = fabric.the_region().legs[0].clone();
    let (from, to) = fabric.begin_copy();
    let late = fabric.orders(to);
    fabric.start_agent();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating), "the memory node has yet to give it back");
    assert!(fabric.agents[&cn(1)].attached.is_empty());
    assert_eq!(fabric.parts(), [(from, Mapped, true)], "the copy is given up");
    fabric.settle();
    let leg = fabric.the_region().legs.iter().find(|leg| leg.state == Mapped).unwrap().clone();
    assert_eq!(
        (leg.cmem_base, leg.lent, leg.former),
        (before.cmem_base, None, None),
        "as the agent knows it"
    );
    assert!(fabric.serves(&leg, cn(1)));
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));

    // A report about the copy that was given up arrives late.
    let fills = late.iter().map(|order| FillProgress { cmem_base: order.mapping.cmem_base, done: u64::MAX });
    let sync = MemoryNodeSync { fills: fills.collect(), ..fabric.nodes[to].sync() };
    fabric.apply(Command::SyncMemoryNode(fabric.nodes[to].name.clone(), sync)).unwrap();
    assert_eq!(fabric.parts(), [(from, Mapped, false)]);
    // From now on, the agent copies.
    fabric.now_ms += 1000;
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    assert_eq!(fabric.parts(), [(from, Mapped, false), (to, Stale, false)]);
}

#[test]
fn who_may_have_changes_is_waited_for_until_an_operator_disables_the_region() {
    let mut fabric = Fabric::in_use(&[4, 4]);
    fabric.end_agent(false);
    let from = fabric.parts()[0].0;
    fabric.drain_node(from, true);
    fabric.let_pass(40_000);
    assert_eq!(fabric.parts(), [(from, Mapped, false)], "the agent may be cut off, and run");
    assert!(!fabric.manager.region_status(fabric.the_region()).at_rest);
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    fabric.let_pass(4000);
    let to = fabric.parts()[1].0;
    assert_eq!(fabric.parts(), [(from, Mapped, true), (to, Stale, true)]);
    fabric.report_copied(to, 2 * EXTENT);
    fabric.let_pass(2000);
    assert_eq!(
        (fabric.parts(), fabric.state_of("r")),
        (vec![(to, Mapped, false)], Some(RegionState::Disabled))
    );
}

#[test]
fn a_disabled_region_moves_while_its_owner_runs_and_is_enabled_during_it() {
    let mut fabric = Fabric::in_use(&[4, 4]);
    fabric.apply(Command::DisableRegion(name("r"))).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    assert_eq!(fabric.state_of("r"), Some(RegionState::Disabled));
    let from = fabric.parts()[0].0;
    fabric.drain_node(from, true);
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    fabric.settle();
    assert_eq!(fabric.parts().len(), 2);
    fabric.apply(Command::EnableRegion(name("r"))).unwrap();
    assert_eq!(fabric.state_of("r"), Some(RegionState::Creating));
    fabric.settle();
    assert_eq!((fabric.state_of("r"), fabric.parts()[0]), (Some(RegionState::Active), (from, Mapped, false)));
}

#[test]
fn a_leg_that_stays_beside_the_new_one_gets_another_address() {
    let mut fabric = Fabric::at_rest(&[4, 4]);
    let before = fabric.the_region().legs[0].cmem_base;
    let protect = ProtectRegion { protect: Protection::Mirror, on: Vec::new(), wait_ms: 0 };
    fabric.apply(Command::ProtectRegion(name("r"), protect)).unwrap();
    fabric.let_pass(4000);
    let (one, other) = (fabric.parts()[0].0, fabric.parts()[1].0);
    assert_eq!(fabric.parts(), [(one, Mapped, true), (other, Stale, true)]);
    fabric.report_copied(other, 2 * EXTENT);
    fabric.let_pass(4000);
    assert_eq!(fabric.parts(), [(one, Mapped, false), (other, Mapped, false)]);
    let legs = &fabric.the_region().legs;
    assert_ne!(legs[0].cmem_base, before, "an agent that knows one copy only may not write to it");
    assert!(legs.iter().all(|leg| fabric.serves(leg, cn(1))));
    assert_eq!(fabric.state_of("r"), Some(RegionState::Active));
}

#[test]
fn a_copy_begins_again_when_its_memory_node_has_lost_it() {
    let mut fabric = Fabric::at_rest(&[4, 4]);
    let (from, to) = fabric.begin_copy();
    let restart = |fabric: &mut Fabric, node: usize, incarnation: u64| {
        let (key, registration) =
            (NodeKey::Memory(fabric.nodes[node].name.clone()), fabric.nodes[node].registration);
        fabric.apply(Command::HungUp(key, registration)).unwrap();
        (fabric.nodes[node].instance_id, fabric.nodes[node].incarnation) =
            (fabric.nodes[node].instance_id + 1, incarnation);
        fabric.register(node).unwrap();
    };
    restart(&mut fabric, to, 2);
    assert!(fabric.orders(to).is_empty(), "it has yet to be mapped");
    fabric.let_pass(1000);
    assert_eq!(fabric.orders(to).len(), 1);
    // A restart that keeps the content changes nothing, at either node and at the manager.
    restart(&mut fabric, to, 2);
    restart(&mut fabric, from, 1);
    fabric.restart_manager();
    (0..2).for_each(|node| fabric.register(node).unwrap());
    assert_eq!((fabric.orders(to).len(), fabric.parts()[0]), (1, (from, Mapped, true)));

    // The content is lost with its only copy, and comes back with the pool.
    restart(&mut fabric, from, 7);
    assert_eq!((fabric.state_of("r"), fabric.parts()[0].1), (Some(RegionState::Lost), Lost));
    assert!(fabric.orders(to).is_empty());
    fabric.let_pass(1000);
    restart(&mut fabric, from, 1);
    fabric.let_pass(40_000);
    let last = fabric.parts().last().unwrap().0;
    assert_eq!(fabric.orders(last).len(), 1, "{:?}", fabric.the_region());
    fabric.report_copied(last, 2 * EXTENT);
    fabric.let_pass(2000);
    assert_eq!(
        (fabric.parts(), fabric.state_of("r")),
        (vec![(to, Mapped, false)], Some(RegionState::Active))
    );
}

/// Scenario: two memory nodes are drained, and one fails that has more regions than a list of orders.
#[test]
fn regions_move_from_one_memory_node_while_another_does_not_answer() {
    let mut fabric = Fabric::new(&[20, 4, 24]);
    fabric.register_cn(1);
    let regions = (0..17).map(|at| (format!("a{at:02}"), "mn0")).chain([("z".to_owned(), "mn1")]);
    for (region, node) in regions {
        let on = vec![name(node)];
        let create = CreateRegion { on, ..CreateRegion::new(name(&region), EXTENT, cn(1)) };
        fabric.apply(Command::CreateRegion(create)).unwrap();
    }
    fabric.settle();
    fabric.end_agent(true);
    (0..2).for_each(|node| fabric.drain_node(node, true));
    fabric.let_pass(8000);
    let sources = |fabric: &Fabric| -> Vec<Name> {
        fabric.orders(2).into_iter().map(|order| order.source.memory_node).collect()
    };
    assert_eq!(sources(&fabric).len(), 16);
    assert!(sources(&fabric).contains(&name("mn1")), "it may be that mn2 does not reach mn0");
    for _ in 0..TIMEOUT_MS / 1000 + 2 {
        fabric.now_ms += 1000;
        (1..3).for_each(|node| fabric.settle_only(node));
        fabric.apply(Command::Tick).unwrap();
    }
    assert_eq!(sources(&fabric)[0], name("mn1"));
}

#[test]
fn a_snapshot_moves_while_it_is_disabled() {
    let mut fabric = Fabric::in_use(&[8, 8]);
    let order =
        CloneRegion { name: name("s"), owner: None, uid: None, sealed: true, force: false, wait_ms: 0 };
    fabric.apply(Command::CloneRegion(name("r"), order)).unwrap();
    (0..3).for_each(|_| {
        fabric.sync_cn(1).unwrap();
        fabric.settle();
    });
    assert_eq!(fabric.state_of("s"), Some(RegionState::Active));
    let snapshot = |fabric: &Fabric| fabric.manager.region(&name("s")).unwrap().clone();
    let from = fabric.number_of(&snapshot(&fabric).legs[0]);
    fabric.drain_node(from, true);
    fabric.apply(Command::Tick).unwrap();
    fabric.settle();
    assert_eq!(snapshot(&fabric).legs.len(), 1, "no agent can fill a copy of it");
    fabric.apply(Command::DisableRegion(name("s"))).unwrap();
    (0..2).for_each(|_| fabric.sync_cn(1).unwrap());
    fabric.apply(Command::Tick).unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!(fabric.orders(1 - from).len(), 1);
    fabric.report_copied(1 - from, 2 * EXTENT);
    (0..2).for_each(|_| fabric.settle());
    let moved = snapshot(&fabric);
    assert_eq!((moved.legs.len(), moved.sealed), (1, true));
    assert_eq!(fabric.number_of(&moved.legs[0]), 1 - from);
}

#[test]
fn a_region_can_be_destroyed_and_forgotten_nodes_leave_nothing_lent() {
    let mut fabric = Fabric::at_rest(&[4, 4]);
    fabric.begin_copy();
    fabric.destroy("r").unwrap();
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.state_of("r"), fabric.free()), (None, 8));

    let mut fabric = Fabric::at_rest(&[4, 4]);
    let (from, to) = fabric.begin_copy();
    fabric.drain_node(from, false);
    (0..2).for_each(|_| fabric.settle());
    assert_eq!((fabric.parts(), fabric.free()), (vec![(from, Mapped, false)], 6), "stopped cleanly");
    fabric.drain_node(from, true);
    fabric.let_pass(40_000);
    fabric.now_ms += TIMEOUT_MS + 1;
    fabric.settle_only(from);
    fabric.apply(Command::Tick).unwrap();
    fabric.apply(Command::ForgetMemoryNode { name: fabric.nodes[to].name.clone(), force: false }).unwrap();
    fabric.settle_only(from);
    assert_eq!(fabric.parts(), [(from, Mapped, false)]);
}

/// Fabric whose memory nodes have content: the number of the write that each extent has, 0 for zeros.
struct World {
    fabric: Fabric,
    content: BTreeMap<(usize, u64), u64>,
    /// Orders that each memory node has received, and its progress with them.
    orders: Vec<(Vec<FillCmem>, Vec<FillProgress>)>,
    /// Region as the agent knows it; `None` while it has released the region, or no agent runs.
    view: Option<Region>,
    /// Region in the state file of an agent that does not run.
    stored: Option<Region>,
    registered: bool,
    writes: u64,
    /// For each extent of the region, the writes that a read may return.
    allowed: [Vec<u64>; 2],
}

impl World {
    fn new() -> Self {
        let fabric = Fabric::in_use(&[6, 6, 6]);
        let mut world = World {
            fabric,
            content: BTreeMap::new(),
            orders: vec![Default::default(); 3],
            view: None,
            stored: None,
            registered: true,
            writes: 0,
            allowed: [vec![0], vec![0]],
        };
        world.sync_agent();
        world
    }

    fn sync(&mut self, node: usize) {
        let World { fabric, content, orders, .. } = self;
        let name = fabric.nodes[node].name.clone();
        let sync = MemoryNodeSync { fills: orders[node].1.clone(), ..fabric.nodes[node].sync() };
        fabric.apply(Command::SyncMemoryNode(name.clone(), sync)).unwrap();
        let synced = fabric.manager.memory_node_synced(&name);
        fabric.nodes[node].results.clear();
        for command in &synced.commands {
            let new = command.seq > fabric.nodes[node].acked_seq;
            let zeroed: Vec<u64> = match &command.action {
                NodeAction::MapCmem(mapping) => {
                    let is_new = |extent: &u64| !fabric.nodes[node].mapped.contains_key(extent);
                    mapping.extents.iter().filter(is_new).collect()
                }
                NodeAction::UnmapCmem(mapping) if !fabric.nodes[node].is_taken(mapping) => {
                    mapping.extents.iter().collect()
                }
                _ => Vec::new(),
            };
            for extent in zeroed.into_iter().filter(|_| new) {
                content.remove(&(node, extent));
            }
            fabric.nodes[node].carry_out(command, false);
        }
        let known = |progress: &FillProgress| {
            synced.fills.iter().any(|order| order.mapping.cmem_base == progress.cmem_base)
        };
        orders[node].1.retain(known);
        orders[node].0 = synced.fills;
    }

    /// Place of a leg's extent, if its memory node serves it for `cn` at `cmem_base` and the following addresses.
    fn place(&self, leg: &Leg, (cn, cmem_base): (CnId, u64), extent: usize) -> Option<(usize, u64)> {
        let node = self.fabric.number_of(leg);
        let at = leg.extents.iter().nth(extent)?;
        let held = self.fabric.nodes[node].mapped.get(&at)?;
        (*held == (cn, cmem_base + extent as u64 * EXTENT)).then_some((node, at))
    }

    /// Has a memory node copy what it was ordered to, from the content that it reaches now.
    fn copy(&mut self, node: usize) {
        for order in self.orders[node].0.clone() {
            let base = order.mapping.cmem_base;
            let is_source = |leg: &Leg| leg.memory_node == order.source.memory_node;
            let sources = self.fabric.manager.region(&name("r")).ok().map(|region| region.legs.clone());
            let Some(source) = sources.into_iter().flatten().find(is_source) else { continue };
            let copied = order.mapping.extents.iter().enumerate().all(|(at, extent)| {
                let served = self.fabric.nodes[node].mapped.get(&extent).copied();
                let here = served == Some((order.mapping.cn, base + at as u64 * EXTENT));
                let Some(from) = self.place(&source, (order.mapping.cn, base), at).filter(|_| here) else {
                    return false;
                };
                let value = self.content.get(&from).copied().unwrap_or(0);
                self.content.insert((node, extent), value);
                true
            });
            if copied && !self.orders[node].1.iter().any(|progress| progress.cmem_base == base) {
                self.orders[node].1.push(FillProgress { cmem_base: base, done: order.mapping.bytes() });
            }
        }
    }

    fn sync_agent(&mut self) {
        if self.registered && self.fabric.sync_cn(1).is_ok() {
            self.follow();
        }
    }

    /// Takes over what the manager has said of the region. While it is `creating`, the former description stays.
    fn follow(&mut self) {
        let known = self.fabric.agents[&cn(1)].attached.get(&name("r")).cloned();
        if known.is_some() || self.fabric.state_of("r") != Some(RegionState::Creating) {
            self.view = known.filter(|region| region.state != RegionState::Releasing);
        }
    }

    /// Writes an extent through the description that the agent has. The write is complete if every leg in sync has
    /// taken it; otherwise a read may return it or what was there before.
    fn write(&mut self, extent: usize) {
        let Some(view) = self.view.clone() else { return };
        self.writes += 1;
        let in_sync = view.legs.iter().filter(|leg| leg.is_in_sync());
        let places: Vec<_> = in_sync.map(|leg| self.place(leg, (cn(1), leg.cmem_base), extent)).collect();
        if places.iter().any(Option::is_some) {
            self.allowed[extent].push(self.writes);
        }
        if !places.is_empty() && places.iter().all(Option::is_some) {
            self.allowed[extent] = vec![self.writes];
        }
        for place in places.into_iter().flatten() {
            self.content.insert(place, self.writes);
        }
    }

    /// Has the agent fill the stale leg that it knows, and report that.
    fn fill(&mut self) {
        let Some(view) = self.view.clone().filter(|_| self.registered) else { return };
        let Some(stale) = view.legs.iter().find(|leg| leg.state == Stale) else { return };
        let Some(source) = view.legs.iter().find(|leg| leg.is_in_sync()) else { return };
        for extent in 0..2 {
            let from = self.place(source, (cn(1), source.cmem_base), extent);
            let to = self.place(stale, (cn(1), stale.cmem_base), extent);
            let (Some(from), Some(to)) = (from, to) else { return };
            let value = self.content.get(&from).copied().unwrap_or(0);
            self.content.insert(to, value);
        }
        let registration = self.fabric.agents[&cn(1)].registration;
        let (cmem_base, epoch) = (stale.cmem_base, view.epoch);
        let Some(mac) = stale.mac() else { return };
        let filled = LegsFilled { registration, mac, cmem_base, epoch };
        drop(self.fabric.apply(Command::LegsFilled(name("r"), filled)));
        self.sync_agent();
    }

    /// Ends the agent, in order or not.
    fn end_agent(&mut self, settled: bool) {
        if settled && self.registered {
            let Agent { registration, after_event, .. } = self.fabric.agents[&cn(1)];
            let (released, quiet) = (Vec::new(), 0);
            let sync = ComputeNodeSync { registration, after_event, released, quiet, settled, wait_ms: 0 };
            drop(self.fabric.apply(Command::SyncComputeNode(cn(1), sync)));
        }
        self.stored = self.view.take().or(self.stored.take());
        self.registered = false;
    }

    /// Checks that each leg that the agent reads has what was written last.
    fn check(&self) -> Result<(), TestCaseError> {
        let usable = matches!(
            self.fabric.state_of("r"),
            Some(RegionState::Active | RegionState::Exposed | RegionState::Degraded)
        );
        let Some(view) = self.view.as_ref().filter(|_| usable && self.registered) else { return Ok(()) };
        for leg in view.legs.iter().filter(|leg| leg.is_in_sync()) {
            for extent in 0..2 {
                let Some(place) = self.place(leg, (cn(1), leg.cmem_base), extent) else { continue };
                let value = self.content.get(&place).copied().unwrap_or(0);
                let allowed = &self.allowed[extent];
                prop_assert!(allowed.contains(&value), "{value} instead of {allowed:?}: {:?}", view);
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Sync(usize),
    Copy(usize),
    Drain(usize, bool),
    Pass(u64),
    SyncAgent,
    Write(usize),
    Fill,
    End(bool),
    /// The agent starts with the region in its state file, and has not reached the manager yet.
    StartAlone,
    Register,
    Disable,
    Enable,
    RestartNode(usize),
    RestartManager,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..3usize;
    prop_oneof![
        10 => node.clone().prop_map(Step::Sync),
        6 => node.clone().prop_map(Step::Copy),
        3 => (node.clone(), prop::bool::weighted(0.7)).prop_map(|(node, on)| Step::Drain(node, on)),
        4 => (1u64..2 * TIMEOUT_MS).prop_map(Step::Pass),
        4 => Just(Step::SyncAgent),
        8 => (0..2usize).prop_map(Step::Write),
        2 => Just(Step::Fill),
        3 => prop::bool::weighted(0.8).prop_map(Step::End),
        2 => Just(Step::StartAlone),
        3 => Just(Step::Register),
        2 => Just(Step::Disable),
        2 => Just(Step::Enable),
        1 => node.prop_map(Step::RestartNode),
        1 => Just(Step::RestartManager),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever the order in which nodes are drained, copies are made, the agent ends, starts from its own state,
    /// reaches the manager and writes: no extent is mapped twice (the memory nodes assert that), and the agent reads
    /// what it has written.
    #[test]
    fn no_order_of_events_loses_a_write(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.fabric.now_ms += 1;
            match step {
                Step::Sync(node) => world.sync(node),
                Step::Copy(node) => world.copy(node),
                Step::Drain(node, draining) => world.fabric.drain_node(node, draining),
                Step::Pass(ms) => {
                    let until = world.fabric.now_ms + ms;
                    while world.fabric.now_ms < until {
                        world.fabric.now_ms = until.min(world.fabric.now_ms + 1000);
                        (0..3).for_each(|node| world.sync(node));
                        world.sync_agent();
                        world.fabric.apply(Command::Tick).unwrap();
                    }
                }
                Step::SyncAgent => world.sync_agent(),
                Step::Write(extent) => world.write(extent),
                Step::Fill => world.fill(),
                Step::End(settled) => world.end_agent(settled),
                Step::StartAlone if world.view.is_none() && !world.registered => {
                    world.view = world.stored.clone();
                }
                Step::Register if !world.registered => {
                    world.fabric.start_agent();
                    world.registered = true;
                    world.follow();
                }
                Step::StartAlone | Step::Register => {}
                Step::Disable => drop(world.fabric.apply(Command::DisableRegion(name("r")))),
                Step::Enable => drop(world.fabric.apply(Command::EnableRegion(name("r")))),
                Step::RestartNode(node) => {
                    let key = NodeKey::Memory(world.fabric.nodes[node].name.clone());
                    let registration = world.fabric.nodes[node].registration;
                    world.fabric.apply(Command::HungUp(key, registration)).unwrap();
                    world.fabric.nodes[node].instance_id += 1;
                    world.fabric.register(node).unwrap();
                    world.orders[node] = Default::default();
                }
                Step::RestartManager => {
                    world.fabric.restart_manager();
                    (0..3).for_each(|node| world.fabric.register(node).unwrap());
                    if world.registered {
                        world.fabric.start_agent();
                        world.follow();
                    }
                }
            }
            world.fabric.manager.state().verify().unwrap();
            world.check()?;
        }
    }
}
