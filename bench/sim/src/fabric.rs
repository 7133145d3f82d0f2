//! The control plane of a run, and checks that manager, memory nodes and compute nodes agree when they are idle.

use std::collections::BTreeSet;

use cxloe_fabric::model::{CnId, LegState, RegionState};
use cxloe_gmm_core::manager::FabricState;
use cxloe_mn_core::pool::MpExtent;
use cxloe_wire::time::Time;

use crate::compute_node::ComputeNode;
use crate::control::manager::ManagerNode;
use crate::control::message::{Caller, ControlMessage};
use crate::control::network::ControlNetwork;
use crate::control::operator::Operator;
use crate::memory_node::{self, EXTENT, MemoryNode};
use crate::node_context::NodeContext;
use crate::tally::Tally;
use crate::trace::Name;
use crate::violation::InvariantViolation;

pub(crate) struct Fabric {
    pub manager: ManagerNode,
    pub operator: Operator,
}

impl Fabric {
    /// Returns the time of the next action of the control plane.
    pub fn deadline(&self, net: &ControlNetwork, mns: &[MemoryNode]) -> Option<Time> {
        let nodes = mns.iter().filter_map(MemoryNode::follows_at);
        let others = [net.next_arrival(), self.manager.deadline(), self.operator.deadline()];
        nodes.chain(others.into_iter().flatten()).min()
    }

    /// Performs the actions that are due; returns true if a message was handled.
    ///
    /// # Errors
    /// Returns a violation found in an answer.
    pub fn work(
        &mut self,
        net: &mut ControlNetwork,
        mns: &mut [MemoryNode],
        cns: &mut [ComputeNode],
        now: Time,
        tally: &mut Tally,
    ) -> Result<bool, InvariantViolation> {
        let mut busy = false;
        while let Some(message) = net.take(now) {
            busy = true;
            let ControlMessage::Answer { caller, call, answer } = message else {
                self.manager.handle(message, now, net);
                continue;
            };
            let paused = match caller {
                Caller::Mn(at) => mns[at].paused_until,
                Caller::Cn(at) => cns[at].paused_until,
                Caller::Operator => Time::ZERO,
            };
            if now < paused {
                // A paused node reads no answers, so this answer is delivered after the pause.
                net.put_off(paused, ControlMessage::Answer { caller, call, answer });
                continue;
            }
            match caller {
                Caller::Mn(at) => mns[at].handle(call, answer, now, net),
                Caller::Cn(at) => cns[at].handle(call, answer, now, net),
                Caller::Operator => self.operator.handle(call, answer, &mut tally.figures)?,
            }
        }
        self.manager.work(now, net);
        mns.iter_mut().for_each(|mn| mn.follow(now, net));
        cns.iter_mut().for_each(|cn| cn.follow(now, net));
        let idle = cns.iter().find(|cn| cn.has_nothing()).and_then(|cn| CnId::new(cn.mac).ok());
        self.operator.work(self.manager.state(), idle, now, net);
        Ok(busy)
    }

    /// Returns the reason why the control plane is not idle; `None` if it is idle.
    pub fn activity(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Option<String> {
        let state = self.manager.state();
        let around = NodeContext { mns, state: Some(state) };
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

    /// Checks that manager, memory nodes and compute nodes agree about all mappings, and that unmapped memory is zero.
    ///
    /// # Errors
    /// Returns the disagreement.
    pub fn check(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Result<(), InvariantViolation> {
        let state = self.manager.state();
        let broken = |why: String| Err(InvariantViolation::Rule(why));
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
        let around = NodeContext { mns, state: Some(state) };
        cns.iter().try_for_each(|cn| cn.check_regions(around))
    }

    /// Checks that no region, binding or orphan (memory that no region has) is left after the operator has destroyed
    /// all regions.
    ///
    /// # Errors
    /// Returns a violation that names what is left.
    pub fn check_gone(&self, mns: &[MemoryNode], cns: &[ComputeNode]) -> Result<(), InvariantViolation> {
        let state = self.manager.state();
        let broken = |why: String| Err(InvariantViolation::Rule(why));
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

/// Returns the mappings that the manager has assigned to a memory node, each as compute node, extent number in CMem,
/// and extent number in the pool.
fn mapped(state: &FabricState, index: usize, mn: &MemoryNode) -> BTreeSet<(u64, u64, u32)> {
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

/// Returns the extents of a memory node that the manager has assigned to regions, or lists as orphans (memory that no
/// region has).
fn owned(state: &FabricState, index: usize) -> BTreeSet<u64> {
    let name = memory_node::name(index);
    let legs = state.regions.values().flat_map(|region| &region.legs).filter(|leg| leg.memory_node == name);
    let orphans = state.orphans.get(&name).into_iter().flat_map(|orphans| &orphans.orphans);
    let orphans = orphans.flat_map(|orphan| orphan.extents.iter());
    legs.flat_map(|leg| leg.extents.iter()).chain(orphans).collect()
}
