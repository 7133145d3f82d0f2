//! Logical devices, and their bindings to vPPBs.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::api::LogicalDeviceStatus;
use cxloe_fabric::model::SWITCH_NODES;
use serde_json::{Value, json};

use super::object;
use super::scope::{FilteredObject, Scope};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Result<Vec<Value>, Failure> {
    let found = snapshot.devices.iter().filter(|status| scope.has(&thing(status)));
    found.map(shown).collect()
}

/// A logical device as printed by `gmm list -L` and the commands about logical devices.
///
/// # Errors
/// If the status has no JSON form.
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
            "switch": index.map(|index| index / SWITCH_NODES),
            "vcs": index.map(|index| index % SWITCH_NODES),
            "vppb": binding.vppb,
            "port": status.port,
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

fn thing(status: &LogicalDeviceStatus) -> FilteredObject<'_> {
    let binding = status.device.binding.as_ref();
    FilteredObject {
        memdevs: vec![&status.device.memory_node],
        compute_nodes: binding.map(|binding| binding.compute_node).into_iter().collect(),
        regions: status.regions.iter().collect(),
        idle: binding.is_none(),
        ..FilteredObject::default()
    }
}
