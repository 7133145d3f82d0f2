//! Compute nodes, with their regions and logical devices.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::model::{Health, SWITCH_NODES};
use serde_json::{Value, json};

use super::object;
use super::scope::{FilteredObject, Scope};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    for node in snapshot.compute_nodes.values() {
        let own = |owner| owner == node.cn_id;
        let regions: Vec<_> = snapshot.regions.iter().filter(|region| own(region.region.owner)).collect();
        let bound = snapshot
            .devices
            .iter()
            .filter(|ld| ld.device.binding.as_ref().is_some_and(|binding| own(binding.compute_node)));
        let bound: Vec<_> = bound.map(|ld| &ld.device.memory_node).collect();
        let legs = regions.iter().flat_map(|region| &region.region.legs).map(|leg| &leg.memory_node);
        let thing = FilteredObject {
            memdevs: legs.chain(bound.iter().copied()).collect(),
            compute_nodes: vec![node.cn_id],
            regions: regions.iter().map(|region| &region.region.name).collect(),
            idle: node.health != Health::Reachable,
            ..FilteredObject::default()
        };
        if scope.has(&thing) {
            found.push(object(
                node,
                json!({
                    "host": node.cn_id,
                    "switch": node.index / SWITCH_NODES,
                    "vcs": node.index % SWITCH_NODES,
                    "size": regions.iter().map(|region| region.region.bytes()).sum::<u64>(),
                    "nr_regions": regions.len(),
                    "nr_bindings": bound.len(),
                    "state": thing.idle.then_some("disabled"),
                }),
            )?);
        }
    }
    Ok(found)
}
