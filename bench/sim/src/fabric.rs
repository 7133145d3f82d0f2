//! The control plane of a run, and whether all of it agrees when nothing happens any more.

use std::collections::BTreeSet;

use cxloe_fabric::model::{CnId, LegState, RegionState};
use cxloe_gmm::manager::State;
use cxloe_mn::pool::MpExtent;
use cxloe_wire::time::Time;

use crate::broken::Broken;
use crate::compute_node::ComputeNode;
use crate::control::manager::ManagerNode;
use crate::control::message::{Caller, Message};
use crate::control::network::ControlNetwork;
use crate::control::operator::Operator;
use crate::memory_node::{self, EXTENT, MemoryNode};
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::Name;

/// The manager, the operator, and the network to them.
pub(crate) struct Fabric {
    pub manager: ManagerNode,
    pub operator: Operator,
}

impl Fabric {
    /// When something happens next.
    pub fn deadline(&self, net: &ControlNetwork, mns: &[MemoryNode]) -> Option<Time> {
        let nodes = mns.iter().filter_map(MemoryNode::follows_at);
        let others = [net.next_arrival(), self.manager.deadline(), self.operator.deadline()];
        nodes.chain(others.into_iter().flatten()).min()
    }

    /// Does what is due; whether anything was said.
    ///
    /// # Errors
    /// What has come to light on the way.
    pub fn work(
        &mut self,
        net: &mut ControlNetwork,
        mns: &mut [MemoryNode],
        cns: &mut [ComputeNode],
        now: Time,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        let mut busy = false;
        while let Some(message) = net.take(now) {
            busy = true;
            let Message::Answer { caller, call, answer } = message else {
                self.manager.hear(message, now, net);
                continue;
            };
            let paused = match caller {
                Caller::Mn(at) => mns[at].paused_until,
                Caller::Cn(at) => cns[at].paused_until,
                Caller::Operator => Time::ZERO,
            };
            if now < paused {
                // It waits in the node's socket.
                net.put_off(paused, Message::Answer { caller, call, answer });
                continue;
            }
            match caller {
                Caller::Mn(at) => mns[at].hear(call, answer, now, net),
                Caller::Cn(at) => cns[at].hear(call, answer, now, net),
                Caller::Operator => self.operator.hear(call, answer, &mut tally.figures)?,
            }
        }
        self.manager.work(now, net);
        mns.iter_mut().for_each(|mn| mn.follow(now, net));
        cns.iter_mut().for_each(|cn| cn.follow(now, net));
        let idle = cns.iter().find(|cn| cn.has_nothing()).and_then(|cn| CnId::new(cn.mac).ok());
        self.operator.work(self.manager.state(), idle, now, net);
        Ok(busy)
    }

    /// What keeps the control plane from coming to rest, if anything does.
    pub fn unrest(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Option<String> {
        let state = self.manager.state();
        let around = Surroundings { mns, state: Some(state) };
        if !self.manager.is_up() {
            return Some("the manager is away".into());
        }
        if !self.operator.is_done() {
            return Some("the operator waits for an answer".into());
        }
        if let Some(((node, seq), _)) = state.commands.iter().next() {
            return Some(format!("command {seq} of {node} is not carried out"));
        }
        let passing = |state| {
            matches!(
                state,
                RegionState::Creating
                    | RegionState::Releasing
                    | RegionState::Draining
                    | RegionState::Degraded
            )
        };
        if let Some(region) = state.regions.values().find(|region| passing(region.state)) {
            return Some(format!("region {} is {}", region.name, region.state));
        }
        if let Some(mn) = mns.iter().find(|mn| !mn.is_quiet()) {
            return Some(format!("{} has something to do for the manager", Name(mn.mac)));
        }
        let cn = cns.iter().find(|cn| !cn.is_quiet(around));
        cn.map(|cn| format!("{} has something to do for the manager", Name(cn.mac)))
    }

    /// The manager, the memory nodes and the compute nodes agree about who has what, and what nobody has is zero.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Result<(), Broken> {
        let state = self.manager.state();
        let broken = |why: String| Err(Broken::Rule(why));
        if let Err(contradiction) = state.verify() {
            return broken(contradiction.to_string());
        }
        self.operator.check(state)?;
        for (index, mn) in mns.iter().enumerate() {
            let wanted = mapped(state, index, mn);
            let held: BTreeSet<_> = mn.mappings().map(|t| (t.cn, t.cmem_extent, t.mp_extent.0)).collect();
            if let Some((cn, cmem, extent)) = wanted.difference(&held).next() {
                return broken(format!(
                    "{} does not serve extent {extent}, which the manager has given to CN {cn:#x} as its CMem extent {cmem}",
                    Name(mn.mac)
                ));
            }
            if let Some((cn, cmem, extent)) = held.difference(&wanted).next() {
                return broken(format!(
                    "{} serves extent {extent} to CN {cn:#x} as its CMem extent {cmem}, which the manager does not know",
                    Name(mn.mac)
                ));
            }
            let owned = owned(state, index);
            let free = (0..mn.extents()).filter(|extent| !owned.contains(&u64::from(*extent)));
            if let Some(extent) = free.into_iter().find(|extent| !mn.is_zero(MpExtent(*extent))) {
                return broken(format!("extent {extent} of {} is nobody's and not zero", Name(mn.mac)));
            }
        }
        let around = Surroundings { mns, state: Some(state) };
        cns.iter().try_for_each(|cn| cn.check_regions(around))
    }

    /// Nothing is left of any region.
    ///
    /// # Errors
    /// Something is.
    pub fn check_gone(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Result<(), Broken> {
        let state = self.manager.state();
        let broken = |why: String| Err(Broken::Rule(why));
        if let Some(name) = state.regions.keys().next() {
            return broken(format!("region {name} is still there"));
        }
        if let Some((node, id)) = state.logical_devices.keys().next() {
            return broken(format!("LD {id} of {node} is still bound"));
        }
        if let Some(node) = state.orphans.keys().next() {
            return broken(format!("{node} keeps memory that no region has"));
        }
        self.check(mns, cns)
    }
}

/// What the manager has a memory node serve: compute node, extent of its CMem, extent of the pool.
fn mapped(state: &State, index: usize, mn: &MemoryNode) -> BTreeSet<(u64, u64, u32)> {
    let name = memory_node::name(index);
    let mut mapped = BTreeSet::new();
    for region in state.regions.values() {
        let legs = region.legs.iter().filter(|leg| leg.memory_node == name && leg.state == LegState::Mapped);
        for leg in legs.filter(|leg| leg.incarnation == Some(mn.config.incarnation)) {
            let cn = region.owner.mac().to_u64();
            let cmem = leg.cmem_base / EXTENT..;
            mapped.extend(cmem.zip(leg.extents.iter()).map(|(cmem, extent)| (cn, cmem, extent as u32)));
        }
    }
    mapped
}

/// Extents of a memory node that are somebody's.
fn owned(state: &State, index: usize) -> BTreeSet<u64> {
    let name = memory_node::name(index);
    let legs = state.regions.values().flat_map(|region| &region.legs).filter(|leg| leg.memory_node == name);
    let orphans = state.orphans.get(&name).into_iter().flat_map(|orphans| &orphans.orphans);
    let orphans = orphans.flat_map(|orphan| orphan.extents.iter());
    legs.flat_map(|leg| leg.extents.iter()).chain(orphans).collect()
}
