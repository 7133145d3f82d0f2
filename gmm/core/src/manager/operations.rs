//! Background operations of the FM API's switches. An operation's work is an ordinary binding or unbinding; its record
//! holds the result, which follows from the logical device. A switch has one operation at a time, so no operation waits
//! for an event that may never happen: an unbinding ends when the compute node has released its regions, not when their
//! memory is zeroed, because an unreachable memory node would delay that without end. A binding ends when its memory
//! node becomes unreachable. The FM client can abort either operation.

use cxloe_fabric::model::{
    CnId, EventKind, Health, LogicalDevice, Name, NodeAction, Operation, OperationKind, OperationOutcome,
    Region, RegionState,
};

use super::{Change, Manager, ManagerError};

impl Manager {
    /// Returns the latest background operation of a switch, which may have ended.
    pub fn operation(&self, switch: u32) -> Option<&Operation> {
        self.state.operations.get(&switch)
    }

    /// Returns the progress of an operation in percent: 100 only when it has ended.
    pub fn operation_percent(&self, operation: &Operation) -> u8 {
        if operation.outcome.is_some() {
            return 100;
        }
        let place = (operation.memory_node.clone(), operation.ld);
        let ld = self.state.logical_devices.get(&place);
        ld.and_then(|ld| self.unbound_percent(ld)).unwrap_or(0)
    }

    /// Returns the share of a logical device's memory that its compute node has released for an unbinding, in
    /// percent; `None` if the device is not being unbound.
    pub fn unbound_percent(&self, ld: &LogicalDevice) -> Option<u8> {
        let unbinding = ld.binding.as_ref()?.unbinding?;
        Some(percent(unbinding.total.saturating_sub(self.used_by(ld)), unbinding.total).min(99))
    }

    /// Returns the zeroed share of a region that is being destroyed, in percent; `None` for another region.
    pub fn zeroed_percent(&self, region: &Region) -> Option<u8> {
        if region.state != RegionState::Draining {
            return None;
        }
        let left: u64 = region.legs.iter().map(|leg| leg.bytes).sum();
        let zeroed: u64 = region.legs.iter().map(|leg| self.zeroed_on(region, &leg.memory_node)).sum();
        let total = region.bytes();
        Some(percent(total.saturating_sub(left.saturating_sub(zeroed)), total).min(99))
    }

    /// Returns how many bytes of the region's leg on `node` the node has reported as zeroed.
    fn zeroed_on(&self, region: &Region, node: &Name) -> u64 {
        let Some(progress) = self.progress.get(node) else { return 0 };
        let command = self.state.commands.get(&(node.clone(), progress.seq));
        let Some(NodeAction::UnmapCmem(mapping)) = command.map(|command| &command.action) else { return 0 };
        if mapping.region == region.name { progress.done.min(mapping.bytes()) } else { 0 }
    }

    pub(super) fn check_idle(&self, switch: Option<u32>) -> Result<(), ManagerError> {
        let running = |switch: &u32| self.operation(*switch).is_some_and(|op| op.outcome.is_none());
        match switch.filter(running) {
            Some(switch) => Err(ManagerError::OperationRuns { switch }),
            None => Ok(()),
        }
    }

    pub(super) fn begin_operation(
        &mut self,
        switch: Option<u32>,
        kind: OperationKind,
        memory_node: &Name,
        ld: u16,
        compute_node: CnId,
    ) {
        let Some(switch) = switch else { return };
        let memory_node = memory_node.clone();
        self.put(Change::Operation(Operation { switch, kind, memory_node, ld, compute_node, outcome: None }));
    }

    /// Records the outcome of the operations whose work is complete.
    pub(super) fn follow_operations(&mut self) {
        let running = self.state.operations.values().filter(|operation| operation.outcome.is_none());
        let ended: Vec<Operation> = running
            .filter_map(|operation| {
                let outcome = Some(self.outcome_of(operation)?);
                Some(Operation { outcome, ..operation.clone() })
            })
            .collect();
        ended.into_iter().for_each(|operation| self.put(Change::Operation(operation)));
    }

    /// Aborts the background operation of a switch, if one is under way. Its remaining steps are not done;
    /// regions that the compute node has released for an unbinding already stay removed.
    pub(super) fn abort_operation(&mut self, switch: u32) {
        let running = self.operation(switch).filter(|operation| operation.outcome.is_none());
        let Some(operation) = running.cloned() else { return };
        match operation.kind {
            OperationKind::Bind => self.break_off_binding(&operation, "its binding was aborted"),
            OperationKind::Unbind => self.stay_bound(&operation),
        }
        self.put(Change::Operation(Operation { outcome: Some(OperationOutcome::Aborted), ..operation }));
    }

    fn stay_bound(&mut self, operation: &Operation) {
        let Some(mut ld) = self.device_of(operation) else { return };
        let regions: Vec<Name> =
            self.regions_of_device(&ld).into_iter().map(|region| region.name.clone()).collect();
        let (memory_node, id, compute_node) = (ld.memory_node.clone(), ld.id, operation.compute_node);
        let Some(binding) = ld.binding.as_mut() else { return };
        binding.unbinding = None;
        let vppb = binding.vppb;
        self.put(Change::LogicalDevice(ld));
        self.keep_regions(&regions, "its unbinding was aborted");
        self.region_event(compute_node, EventKind::LdBound { memory_node, ld: id, compute_node, vppb });
    }

    /// Ends bindings on an unreachable memory node, because their switches can start no other operation
    /// meanwhile.
    pub(super) fn give_up_binding(&mut self, node: &Name) {
        let waits = |operation: &&Operation| {
            let runs = operation.kind == OperationKind::Bind && operation.outcome.is_none();
            runs && operation.memory_node == *node
        };
        let waiting: Vec<Operation> = self.state.operations.values().filter(waits).cloned().collect();
        for operation in waiting {
            self.break_off_binding(&operation, &format!("memory node {node} went away before it mapped it"));
        }
    }

    /// Destroys the region that a binding is creating, and ends the binding.
    fn break_off_binding(&mut self, operation: &Operation, reason: &str) {
        let binding = self.device_of(operation).and_then(|ld| ld.binding);
        let made = binding.and_then(|binding| binding.region);
        let region = made.and_then(|name| self.state.regions.get(&name)).cloned();
        let Some(mut region) = region.filter(|region| region.state == RegionState::Creating) else { return };
        region.failure = Some(reason.to_owned());
        self.binding_failed(&region);
        self.drain(region, Some(reason.to_owned()));
    }

    /// Returns the device of an operation; `None` once it is no longer bound to the operation's compute node.
    fn device_of(&self, operation: &Operation) -> Option<LogicalDevice> {
        let place = (operation.memory_node.clone(), operation.ld);
        let ld = self.state.logical_devices.get(&place)?;
        let bound = ld.binding.as_ref().is_some_and(|b| b.compute_node == operation.compute_node);
        bound.then(|| ld.clone())
    }

    /// After a restart, ends the operations whose end condition already holds or may never hold.
    pub(super) fn end_waiting_operations(&mut self) {
        let held: Vec<CnId> =
            self.state.compute_nodes.values().filter(|node| node.held).map(|node| node.cn_id).collect();
        held.into_iter().for_each(|cn| self.link_down(cn));
        let bound = self.state.logical_devices.values().filter_map(|ld| {
            let binding = ld.binding.as_ref()?;
            Some((ld.memory_node.clone(), binding.compute_node))
        });
        let bound: Vec<(Name, CnId)> = bound.collect();
        bound.into_iter().for_each(|(node, cn)| self.device_emptied(&node, cn));
        let gone = self.state.memory_nodes.values().filter(|node| node.health != Health::Reachable);
        let gone: Vec<Name> = gone.map(|node| node.name.clone()).collect();
        gone.iter().for_each(|node| self.give_up_binding(node));
        self.follow_operations();
    }

    fn outcome_of(&self, operation: &Operation) -> Option<OperationOutcome> {
        let place = (operation.memory_node.clone(), operation.ld);
        let ld: Option<&LogicalDevice> = self.state.logical_devices.get(&place);
        let binding = ld.and_then(|ld| ld.binding.as_ref());
        let binding = binding.filter(|binding| binding.compute_node == operation.compute_node);
        match (operation.kind, binding) {
            (OperationKind::Unbind, None) => Some(OperationOutcome::Done),
            (OperationKind::Unbind, Some(_)) => None,
            (OperationKind::Bind, None) => Some(OperationOutcome::Failed),
            (OperationKind::Bind, Some(binding)) if binding.unbinding.is_some() => {
                Some(OperationOutcome::Failed)
            }
            (OperationKind::Bind, Some(binding)) => {
                let region = binding.region.as_ref().and_then(|region| self.state.regions.get(region));
                let busy = region.is_some_and(|region| region.state == RegionState::Creating);
                (!busy).then_some(OperationOutcome::Done)
            }
        }
    }
}

fn percent(part: u64, of: u64) -> u8 {
    if of == 0 { 100 } else { (u128::from(part) * 100 / u128::from(of)).min(100) as u8 }
}
