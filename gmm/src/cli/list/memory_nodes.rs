//! Memory nodes, listed as the memdevs of `cxl list`.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::model::{Health, SWITCH_NODES};
use serde_json::{Value, json};

use super::object;
use super::scope::{FilteredObject, Scope};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    for status in &snapshot.memory_nodes {
        let node = &status.node;
        let regions: Vec<_> =
            snapshot.regions.iter().filter(|region| region.region.lies_on(&node.name)).collect();
        let devices = snapshot.devices.iter().filter(|ld| ld.device.memory_node == node.name);
        let bound = devices.filter_map(|ld| ld.device.binding.as_ref()).map(|binding| binding.compute_node);
        let thing = FilteredObject {
            memdevs: vec![&node.name],
            compute_nodes: regions.iter().map(|region| region.region.owner).chain(bound).collect(),
            regions: regions.iter().map(|region| &region.region.name).collect(),
            idle: node.health != Health::Reachable,
            ..FilteredObject::default()
        };
        if !scope.has(&thing) {
            continue;
        }
        // Compute nodes use the first port, whose address identifies the node on the wire.
        let port = node.macs.first();
        let serial =
            port.map(|mac| mac.octets().iter().fold(0, |serial, octet| serial << 8 | u64::from(*octet)));
        let mut value = object(
            status,
            json!({
                "memdev": node.name,
                "switch": node.index / SWITCH_NODES,
                "port": node.index % SWITCH_NODES,
                "ram_size": node.pool_bytes,
                "serial": serial,
                "host": port,
                "state": thing.idle.then_some("disabled"),
            }),
        )?;
        // Reports of nodes are long, so they are shown only with -vvv.
        if !scope.reports
            && let Some(fields) = value.as_object_mut()
        {
            fields.remove("stats");
        }
        found.push(value);
    }
    Ok(found)
}
