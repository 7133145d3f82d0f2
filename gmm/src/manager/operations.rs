//! Background operations of the FM API's switches. An operation is what a binding or an unbinding does anyway; what is
//! kept of it is its result, which follows from the logical device.

use crate::model::{
    CnId, LogicalDevice, Name, NodeAction, Operation, OperationKind, OperationOutcome, Region, RegionState,
};

use super::{Change, Manager, ManagerError};

impl Manager {
    /// The latest background operation of a switch.
    pub fn operation(&self, switch: u32) -> Option<&Operation> {
        self.state.operations.get(&switch)
    }

    /// How far an operation has come, in percent: 100 only when it has ended.
    pub fn operation_percent(&self, operation: &Operation) -> u8 {
        if operation.outcome.is_some() {
            return 100;
        }
        let place = (operation.memory_node.clone(), operation.ld);
        let ld = self.state.logical_devices.get(&place);
        ld.and_then(|ld| self.unbound_percent(ld)).unwrap_or(0)
    }

    /// How much of the memory of a logical device that is being unbound is zeroed, in percent; `None` when it is not.
    pub fn unbound_percent(&self, ld: &LogicalDevice) -> Option<u8> {
        let unbinding = ld.binding.as_ref()?.unbinding?;
        let regions = self.regions_of_device(ld);
        let zeroed: u64 = regions.into_iter().map(|region| self.zeroed_on(region, &ld.memory_node)).sum();
        let left = self.used_by(ld).saturating_sub(zeroed);
        Some(percent(unbinding.total.saturating_sub(left), unbinding.total).min(99))
    }

    /// How much of a region that is being taken down is zeroed, in percent; `None` when it is not.
    pub fn zeroed_percent(&self, region: &Region) -> Option<u8> {
        if region.state != RegionState::Draining {
            return None;
        }
        let left: u64 = region.legs.iter().map(|leg| leg.bytes).sum();
        let zeroed: u64 = region.legs.iter().map(|leg| self.zeroed_on(region, &leg.memory_node)).sum();
        let total = region.bytes();
        Some(percent(total.saturating_sub(left.saturating_sub(zeroed)), total).min(99))
    }

    /// Bytes of a region that `node` says it has zeroed, of the leg it is at.
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

    /// Ends the operations that have come to their end.
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
