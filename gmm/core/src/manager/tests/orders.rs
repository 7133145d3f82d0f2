//! The rules of the manager must hold for events in any order, late, repeated or lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::manager::memory_nodes::served_at;
use cxloe_fabric::api::{
    CloneRegion, LegsFilled, LegsStale, MoveRegion, ProtectRegion, RelocateRegion, SealRegion, ShareRegion,
};
use cxloe_fabric::hdm::Ways;
use cxloe_fabric::model::{FillCmem, FillProgress, Leg, LegState, Protection};

#[derive(Debug, Clone)]
enum Step {
    Create {
        owner: u8,
        extents: u64,
    },
    CreateWide {
        owner: u8,
        extents: u64,
        ways: u32,
    },
    CreateMirrored {
        owner: u8,
        extents: u64,
    },
    Grow(prop::sample::Index, u64),
    Protect(prop::sample::Index, Protection),
    /// The owner's agent declares stale what a memory node has of a region.
    Stale(prop::sample::Index, usize),
    /// The owner's agent has filled a stale leg of a region.
    Filled(prop::sample::Index),
    /// A memory node has carried out its orders to copy regions at rest.
    Copied(usize),
    Drain(usize, bool),
    Relocate {
        pick: prop::sample::Index,
        from: usize,
        to: Option<usize>,
    },
    Seal(prop::sample::Index, bool),
    Share {
        pick: prop::sample::Index,
        with: u8,
        end: bool,
    },
    Disable(prop::sample::Index),
    Enable(prop::sample::Index),
    SyncComputeNode(u8),
    RestartAgent(u8),
    ForgetComputeNode(u8),
    SetLd {
        node: usize,
        ld: u16,
        units: u64,
    },
    Bind {
        node: usize,
        ld: Option<u16>,
        owner: u8,
        switch: Option<u32>,
    },
    Unbind {
        node: usize,
        ld: u16,
        option: UnbindOption,
        switch: Option<u32>,
    },
    Abort,
    SetQuota(u8, Option<u64>),
    Hold(u8, bool),
    Forget(usize),
    Destroy(prop::sample::Index),
    Reset(prop::sample::Index),
    Move {
        pick: prop::sample::Index,
        to: Option<u8>,
        force: bool,
    },
    Clone {
        pick: prop::sample::Index,
        owner: Option<u8>,
        sealed: bool,
        force: bool,
    },
    /// The memory node sends a sync; it may fail its commands, and the manager's answer may be lost.
    Sync {
        node: usize,
        fail: bool,
        answer_lost: bool,
    },
    /// An earlier sync arrives again, as after a delay in the network.
    Replay {
        node: usize,
    },
    Restart {
        node: usize,
        keep_content: bool,
    },
    Silence(u64),
    RestartManager,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0usize..3;
    prop_oneof![
        4 => (0u8..3, 1u64..9).prop_map(|(owner, extents)| Step::Create { owner, extents }),
        2 => (0u8..3, 1u64..9, prop::sample::select(vec![2u32, 3]))
            .prop_map(|(owner, extents, ways)| Step::CreateWide { owner, extents, ways }),
        2 => (0u8..3, 1u64..5).prop_map(|(owner, extents)| Step::CreateMirrored { owner, extents }),
        2 => (any::<prop::sample::Index>(), 1u64..6).prop_map(|(pick, more)| Step::Grow(pick, more)),
        2 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(pick, mirror)| {
            Step::Protect(pick, if mirror { Protection::Mirror } else { Protection::None })
        }),
        1 => (any::<prop::sample::Index>(), node.clone()).prop_map(|(pick, node)| Step::Stale(pick, node)),
        4 => any::<prop::sample::Index>().prop_map(Step::Filled),
        4 => node.clone().prop_map(Step::Copied),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, draining)| Step::Drain(node, draining)),
        2 => (any::<prop::sample::Index>(), node.clone(), prop::option::weighted(0.8, node.clone()))
            .prop_map(|(pick, from, to)| Step::Relocate { pick, from, to }),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(pick, force)| Step::Seal(pick, force)),
        2 => (any::<prop::sample::Index>(), 0u8..3, prop::bool::weighted(0.3))
            .prop_map(|(pick, with, end)| Step::Share { pick, with, end }),
        1 => any::<prop::sample::Index>().prop_map(Step::Disable),
        1 => any::<prop::sample::Index>().prop_map(Step::Enable),
        6 => (0u8..3).prop_map(Step::SyncComputeNode),
        1 => (0u8..2).prop_map(Step::RestartAgent),
        1 => (0u8..3).prop_map(Step::ForgetComputeNode),
        2 => (node.clone(), 0u16..3, 0u64..3).prop_map(|(node, ld, units)| Step::SetLd { node, ld, units }),
        2 => (node.clone(), prop::option::of(0u16..3), 0u8..3, switch())
            .prop_map(|(node, ld, owner, switch)| Step::Bind { node, ld, owner, switch }),
        2 => (node.clone(), 0u16..3, option(), switch())
            .prop_map(|(node, ld, option, switch)| Step::Unbind { node, ld, option, switch }),
        1 => Just(Step::Abort),
        1 => (0u8..3, prop::option::of(0u64..12)).prop_map(|(owner, quota)| Step::SetQuota(owner, quota)),
        1 => (0u8..3, any::<bool>()).prop_map(|(owner, held)| Step::Hold(owner, held)),
        1 => node.clone().prop_map(Step::Forget),
        3 => any::<prop::sample::Index>().prop_map(Step::Destroy),
        1 => any::<prop::sample::Index>().prop_map(Step::Reset),
        2 => (any::<prop::sample::Index>(), prop::option::weighted(0.9, 0u8..3), any::<bool>())
            .prop_map(|(pick, to, force)| Step::Move { pick, to, force }),
        3 => (any::<prop::sample::Index>(), prop::option::weighted(0.3, 0u8..3), any::<bool>(), any::<bool>())
            .prop_map(|(pick, owner, sealed, force)| Step::Clone { pick, owner, sealed, force }),
        10 => (node.clone(), prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(node, fail, answer_lost)| Step::Sync { node, fail, answer_lost }),
        1 => node.clone().prop_map(|node| Step::Replay { node }),
        2 => (node, any::<bool>()).prop_map(|(node, keep_content)| Step::Restart { node, keep_content }),
        3 => (1u64..2 * TIMEOUT_MS).prop_map(Step::Silence),
        1 => Just(Step::RestartManager),
    ]
}

fn option() -> impl Strategy<Value = UnbindOption> {
    prop::sample::select(vec![UnbindOption::WaitLinkDown, UnbindOption::Managed, UnbindOption::Surprise])
}

fn switch() -> impl Strategy<Value = Option<u32>> {
    prop::option::weighted(0.3, Just(0))
}

impl Fabric {
    /// Has the agent of a region's owner declare stale what a memory node has of the region.
    fn declare_stale(&mut self, name: &Name, node: usize) {
        let region = self.manager.region(name).unwrap();
        let Some(agent) = self.agents.get(&region.owner) else { return };
        let (registration, mac) = (agent.registration, self.nodes[node].mac.into());
        let stale = LegsStale { registration, mac, epoch: region.epoch };
        drop(self.apply(Command::LegsStale(name.clone(), stale)));
    }

    /// Has the agent of a region's owner report that it has filled the first stale leg which it can write.
    fn fill_stale(&mut self, name: &Name) {
        let region = self.manager.region(name).unwrap();
        let writable = |leg: &&Leg| leg.state == LegState::Stale && leg.former.is_none();
        let Some(leg) = region.legs.iter().find(writable) else { return };
        let (Some(agent), Some(mac)) = (self.agents.get(&region.owner), leg.mac()) else { return };
        let (registration, cmem_base, epoch) = (agent.registration, leg.cmem_base, region.epoch);
        let filled = LegsFilled { registration, mac, cmem_base, epoch };
        drop(self.apply(Command::LegsFilled(name.clone(), filled)));
    }

    /// Has a memory node report that it has carried out all its orders to copy.
    fn report_copies(&mut self, node: usize) {
        let name = self.nodes[node].name.clone();
        let report = |order: &FillCmem| FillProgress {
            cmem_base: order.mapping.cmem_base,
            done: order.mapping.bytes(),
        };
        let fills = self.manager.fills_on(&name).iter().map(report).collect();
        let sync = MemoryNodeSync { fills, ..self.nodes[node].sync() };
        self.apply(Command::SyncMemoryNode(name, sync)).unwrap();
    }

    /// Replaces the agent of a compute node by another process, if there is one, or starts it.
    fn restart_agent(&mut self, last: u8, instance_id: u64) {
        if let Some(registration) = self.agents.get(&cn(last)).map(|agent| agent.registration) {
            self.apply(Command::HungUp(NodeKey::Compute(cn(last)), registration)).unwrap();
        }
        self.register_run(last, instance_id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// For events in any order: no extent has two owners (the memory nodes assert that too), none is lost, no
    /// CMem is allocated twice, a refused command changes nothing, and the store equals the manager's state.
    /// In the end, all regions can be destroyed and all memory is free.
    #[test]
    fn no_order_of_events_breaks_the_rules(steps in prop::collection::vec(step(), 1..70)) {
        let mut fabric = Fabric::new(&[6, 9, 12]);
        let agents = 0u8..2;
        agents.clone().for_each(|last| fabric.register_cn(last));
        let mut cmem_given: BTreeMap<(CnId, u64), (Name, u64)> = BTreeMap::new();
        let mut old_syncs: BTreeMap<usize, MemoryNodeSync> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            fabric.now_ms += 1;
            let region_at = |fabric: &Fabric, pick: prop::sample::Index| {
                let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
                (!regions.is_empty()).then(|| pick.get(&regions).clone())
            };
            match step {
                Step::Create { owner, extents } => {
                    drop(fabric.create(&format!("r{number}"), extents, cn(owner)));
                }
                Step::Clone { pick, owner, sealed, force } => {
                    let Some(source) = region_at(&fabric, pick) else { continue };
                    let owner = owner.map(|owner| cn(owner).into());
                    let name = name(&format!("r{number}"));
                    let order = CloneRegion { name, owner, uid: None, sealed, force, wait_ms: 0 };
                    drop(fabric.apply(Command::CloneRegion(source, order)));
                }
                Step::CreateWide { owner, extents, ways } => {
                    let create = CreateRegion::new(name(&format!("r{number}")), extents * EXTENT, cn(owner));
                    drop(fabric.apply(Command::CreateRegion(CreateRegion { ways: Ways::try_from(ways).unwrap(), ..create })));
                }
                Step::Grow(pick, more) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        let extents = fabric.manager.region(&region).unwrap().size / EXTENT + more;
                        drop(fabric.grow(region.as_str(), extents));
                    }
                }
                Step::CreateMirrored { owner, extents } => {
                    let create = CreateRegion::new(name(&format!("r{number}")), extents * EXTENT, cn(owner));
                    let create = CreateRegion { protect: Protection::Mirror, ..create };
                    drop(fabric.apply(Command::CreateRegion(create)));
                }
                Step::Protect(pick, protect) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        let protect = ProtectRegion { protect, on: Vec::new(), wait_ms: 0 };
                        drop(fabric.apply(Command::ProtectRegion(region, protect)));
                    }
                }
                Step::Stale(pick, node) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        fabric.declare_stale(&region, node);
                    }
                }
                Step::Filled(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        fabric.fill_stale(&region);
                    }
                }
                Step::Copied(node) => fabric.report_copies(node),
                Step::Drain(node, draining) => {
                    let node = fabric.nodes[node].name.clone();
                    drop(fabric.apply(Command::DrainMemoryNode(node, draining)));
                }
                Step::Relocate { pick, from, to } => {
                    if let Some(region) = region_at(&fabric, pick) {
                        let of = |node: usize| fabric.nodes[node].name.clone();
                        let relocate = RelocateRegion { from: of(from), to: to.map(of), wait_ms: 0 };
                        drop(fabric.apply(Command::RelocateRegion(region, relocate)));
                    }
                }
                Step::Seal(pick, force) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::SealRegion(region, SealRegion { force, wait_ms: 0 })));
                    }
                }
                Step::Share { pick, with, end } => {
                    if let Some(region) = region_at(&fabric, pick) {
                        let share = ShareRegion { with: cn(with).into(), end, uid: None, wait_ms: 0 };
                        drop(fabric.apply(Command::ShareRegion(region, share)));
                    }
                }
                Step::Disable(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::DisableRegion(region)));
                    }
                }
                Step::Enable(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::EnableRegion(region)));
                    }
                }
                Step::SyncComputeNode(last) => {
                    if fabric.agents.contains_key(&cn(last)) {
                        fabric.sync_cn(last).unwrap();
                    }
                }
                Step::RestartAgent(last) => fabric.restart_agent(last, 100 + number as u64),
                Step::ForgetComputeNode(last) => {
                    if fabric.apply(Command::ForgetComputeNode(cn(last).into())).is_ok() {
                        fabric.agents.remove(&cn(last));
                    }
                }
                Step::SetLd { node, ld, units } => drop(fabric.set_ld(&format!("mn{node}"), ld, units)),
                Step::Bind { node, ld, owner, switch } => {
                    drop(fabric.bind(&format!("mn{node}"), ld, cn(owner), switch));
                }
                Step::Unbind { node, ld, option, switch } => {
                    drop(fabric.unbind(&format!("mn{node}"), ld, option, switch));
                }
                Step::Abort => drop(fabric.apply(Command::AbortOperation(0)).unwrap()),
                Step::SetQuota(last, extents) => {
                    let quota = extents.map(|extents| extents * EXTENT);
                    fabric.apply(Command::SetQuota(cn(last).into(), quota)).unwrap();
                }
                Step::Hold(last, held) => drop(fabric.apply(Command::Hold(cn(last).into(), held))),
                Step::Forget(node) => {
                    let forget = Command::ForgetMemoryNode { name: fabric.nodes[node].name.clone(), force: true };
                    if fabric.apply(forget).is_ok() {
                        old_syncs.remove(&node);
                        fabric.nodes[node].instance_id += 1;
                        fabric.register(node).unwrap();
                    }
                }
                Step::Destroy(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        fabric.destroy(region.as_str()).unwrap();
                    }
                }
                Step::Reset(pick) => {
                    if let Some(region) = region_at(&fabric, pick) {
                        drop(fabric.apply(Command::ResetRegion(region)));
                    }
                }
                Step::Move { pick, to, force } => {
                    if let Some(region) = region_at(&fabric, pick) {
                        let order = MoveRegion { to: to.map(|to| cn(to).into()), force, wait_ms: 0 };
                        drop(fabric.apply(Command::MoveRegion(region, order)));
                    }
                }
                Step::Sync { node, fail, answer_lost } => {
                    let sync = fabric.nodes[node].sync();
                    if answer_lost {
                        fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync.clone())).unwrap();
                    } else {
                        fabric.sync(node, fail).unwrap();
                    }
                    old_syncs.insert(node, sync);
                }
                Step::Replay { node } => {
                    if let Some(sync) = old_syncs.get(&node).cloned() {
                        let before = fabric.free();
                        drop(fabric.apply(Command::SyncMemoryNode(fabric.nodes[node].name.clone(), sync)));
                        prop_assert_eq!(fabric.free(), before, "a repeated sync freed memory");
                    }
                }
                Step::Restart { node, keep_content } => fabric.restart_node(node, keep_content),
                Step::Silence(ms) => {
                    fabric.now_ms += ms;
                    fabric.apply(Command::Tick).unwrap();
                }
                Step::RestartManager => fabric.restart_manager(),
            }
            let state = fabric.manager.state();
            state.verify().unwrap();
            prop_assert_eq!(&state.free_extents().unwrap(), &fabric.manager.free, "free extents were lost or invented");
            let legs = || state.regions.values().flat_map(|region| region.legs.iter().map(move |leg| (region, leg)));
            for (region, leg) in legs() {
                // A range of addresses must belong to the leg that it was first allocated to.
                let range = (region.owner, leg.cmem_base);
                let first = cmem_given.entry(range).or_insert((region.name.clone(), region.created_ms));
                prop_assert_eq!(&*first, &(region.name.clone(), region.created_ms), "CMem was given again");
            }
            for node in &fabric.nodes {
                let derived = &fabric.manager.free[&node.name];
                let idle = fabric.manager.index.idle(&node.name);
                let to_be = derived.count() * EXTENT + fabric.manager.index.zeroing(&node.name);
                prop_assert!(idle <= to_be, "what is set aside was given away");
                let held: u64 =
                    legs().filter(|(_, leg)| leg.memory_node == node.name).map(|(_, leg)| leg.extents.len()).sum();
                prop_assert_eq!(held + derived.count(), node.extents);
                // While logical devices are free, a compute node with a region on a memory node must be bound
                // there.
                for cn in state.compute_nodes.keys() {
                    let bound = fabric.manager.index.ld_of(*cn, &node.name).is_some();
                    let used = fabric.manager.index.used(&node.name, *cn) > 0;
                    prop_assert!(bound || !used);
                }
                // A memory node must serve the memory that the manager records as mapped, and none that it
                // records as free.
                prop_assert!(derived.extents().iter().all(|extent| !node.mapped.contains_key(&extent)));
                for (region, leg) in legs().filter(|(_, leg)| leg.memory_node == node.name) {
                    if leg.state == LegState::Mapped {
                        let first = leg.extents.iter().next().and_then(|extent| node.mapped.get(&extent));
                        // While the owner changes, a memory node may serve the former owner, the present one,
                        // or neither.
                        let former = leg.former.map(|former| (former.cn, former.cmem_base));
                        let changing = former.is_some() && (first.is_none() || first == former.as_ref());
                        prop_assert!(changing || first == Some(&served_at(region, leg)), "{:?}", leg);
                    }
                }
            }
        }
        // A result may lead to a command for a memory node that has answered before, a few times at most.
        (0..8).for_each(|_| fabric.settle());
        for region in fabric.manager.state().regions.values() {
            let is_given_up = |leg: &Leg| matches!(leg.state, LegState::Lost | LegState::Unmapping);
            let handed_over = region.legs.iter().all(|leg| leg.former.is_none() || is_given_up(leg));
            prop_assert!(handed_over, "a memory node gets no order to serve the owner: {:?}", region);
            let on_loan = |leg: &Leg| leg.is_in_sync() && leg.loan().is_some();
            let kept = region.legs.iter().any(on_loan) && !fabric.manager.is_at_rest(region);
            prop_assert!(!kept, "what a memory node has on loan is not given back: {:?}", region);
            let settles = |leg: &Leg| matches!(leg.state, LegState::Mapping | LegState::Unmapping);
            let moves = region.release.is_some_and(|release| release.done && release.to.is_some());
            prop_assert!(!moves || region.legs.iter().any(settles), "a move never ends: {:?}", region);
        }
        let regions: Vec<Name> = fabric.manager.state().regions.keys().cloned().collect();
        for region in regions {
            drop(fabric.destroy(region.as_str()));
        }
        for node in 0..3 {
            (0..3).for_each(|ld| drop(fabric.set_ld(&format!("mn{node}"), ld, 0)));
            (0..3).for_each(|ld| drop(fabric.unbind(&format!("mn{node}"), ld, UnbindOption::Surprise, None)));
        }
        (0..8).for_each(|_| fabric.settle());
        prop_assert!(fabric.manager.state().regions.is_empty());
        prop_assert!(fabric.manager.state().logical_devices.is_empty());
        let running = fabric.manager.state().operations.values().any(|operation| operation.outcome.is_none());
        prop_assert!(!running, "an operation never ends");
        prop_assert_eq!(fabric.free(), 6 + 9 + 12);
        prop_assert!(fabric.nodes.iter().all(|node| node.mapped.is_empty()));
    }
}
