//! Logical devices, and their bindings to vPPBs.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::api::LogicalDeviceStatus;
use serde_json::{Value, json};

use super::object;
use super::scope::{Scope, Thing};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Result<Vec<Value>, Failure> {
    let found = snapshot.devices.iter().filter(|status| scope.has(&thing(status)));
    found.map(shown).collect()
}

/// A logical device as `gmm list -L` and the commands about logical devices show it.
///
/// # Errors
/// When it has no form in JSON.
pub fn shown(status: &LogicalDeviceStatus) -> Result<Value, Failure> {
    let binding = status.device.binding.as_ref();
    let state = match binding {
        None => "unbound",
        Some(binding) if binding.unbinding.is_some() => "unbinding",
        Some(_) => "bound",
    };
    object(
        status,
        json!({ "memdev": status.device.memory_node, "ld": status.device.id, "size": status.capacity, "state": state }),
    )
}

pub fn bindings(snapshot: &Snapshot, scope: &mut Scope) -> Vec<Value> {
    let mut found = Vec::new();
    for status in &snapshot.devices {
        let Some(binding) = &status.device.binding else { continue };
        if !scope.has(&thing(status)) {
            continue;
        }
        let cn = binding.compute_node;
        let index = snapshot.compute_nodes.get(&cn).map(|node| node.index);
        found.push(json!({
            "compute_node": snapshot.called(cn),
            "cn_id": cn,
            "switch": index.map(|index| index / cxloe_fabric::model::SWITCH_NODES),
            "vcs": index.map(|index| index % cxloe_fabric::model::SWITCH_NODES),
            "vppb": binding.vppb,
            "memdev": status.device.memory_node,
            "ld": status.device.id,
            "size": status.capacity,
            "regions": status.regions,
            "state": if binding.unbinding.is_some() { "unbinding" } else { "bound" },
            "option": binding.unbinding.map(|unbinding| unbinding.option),
            "unbound_percent": status.unbound_percent,
        }));
    }
    found
}

fn thing(status: &LogicalDeviceStatus) -> Thing<'_> {
    let binding = status.device.binding.as_ref();
    Thing {
        memdevs: vec![&status.device.memory_node],
        compute_nodes: binding.map(|binding| binding.compute_node).into_iter().collect(),
        regions: status.regions.iter().collect(),
        idle: binding.is_none(),
        ..Thing::default()
    }
}
