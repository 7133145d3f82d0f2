//! Ports of the switches of the FM API: a memory node is behind a downstream port, a compute node is the upstream port
//! of its virtual switch.

use cxloe_fabric::model::{Health, SWITCH_NODES};
use serde_json::{Value, json};

use super::scope::{FilteredObject, Scope};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Vec<Value> {
    let mut found = Vec::new();
    for status in &snapshot.memory_nodes {
        let node = &status.node;
        let devices = || snapshot.devices.iter().filter(|ld| ld.device.memory_node == node.name);
        let bound: Vec<_> =
            devices().filter_map(|ld| ld.device.binding.as_ref()).map(|b| b.compute_node).collect();
        let thing = FilteredObject {
            memdevs: vec![&node.name],
            compute_nodes: bound.clone(),
            idle: node.health != Health::Reachable,
            ..FilteredObject::default()
        };
        if scope.has(&thing) {
            found.push(json!({
                "port": node.index % SWITCH_NODES,
                "switch": node.index / SWITCH_NODES,
                "type": "downstream",
                "device": node.kind,
                "memdev": node.name,
                "host": node.macs.first(),
                "link": link(node.health),
                "nr_lds": devices().count(),
                "nr_bound": bound.len(),
            }));
        }
    }
    for node in snapshot.compute_nodes.values() {
        let own = snapshot.devices.iter().filter(|ld| {
            ld.device.binding.as_ref().is_some_and(|binding| binding.compute_node == node.cn_id)
        });
        let memdevs: Vec<_> = own.map(|ld| &ld.device.memory_node).collect();
        let bound = memdevs.len();
        let thing = FilteredObject {
            memdevs,
            compute_nodes: vec![node.cn_id],
            idle: node.health != Health::Reachable,
            ..FilteredObject::default()
        };
        if scope.has(&thing) {
            found.push(json!({
                "port": SWITCH_NODES + node.index % SWITCH_NODES,
                "switch": node.index / SWITCH_NODES,
                "type": "upstream",
                "vcs": node.index % SWITCH_NODES,
                "compute_node": snapshot.called(node.cn_id),
                "host": node.cn_id,
                "link": link(node.health),
                "held": node.held,
                "nr_bound": bound,
            }));
        }
    }
    found
}

fn link(health: Health) -> &'static str {
    if health == Health::Reachable { "up" } else { "down" }
}
