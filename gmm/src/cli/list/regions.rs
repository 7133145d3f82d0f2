//! Regions and their HDM decoders. A decoder is named `REGION.N`: the N-th of its region, from 0.

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::model::{HdmDecoder, Leg, LegState, Region, RegionState};
use serde_json::{Value, json};

use super::object;
use super::scope::{FilteredObject, Scope};
use super::snapshot::Snapshot;

pub fn list(snapshot: &Snapshot, scope: &mut Scope) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    for status in &snapshot.regions {
        let idle = status.region.state == RegionState::Disabled;
        if scope.has(&FilteredObject { idle, ..thing(&status.region) }) {
            let mut value = shown(status, &status.region)?;
            if let (Value::Object(fields), Some(name)) = (&mut value, snapshot.name_of(status.region.owner)) {
                fields.insert("owner_name".to_owned(), json!(name));
            }
            found.push(value);
        }
    }
    Ok(found)
}

/// A region as printed by `gmm list -R` and the commands about regions; `item` is the region, or its status.
///
/// # Errors
/// If `item` has no JSON form.
pub fn shown(item: impl serde::Serialize, region: &Region) -> Result<Value, Failure> {
    let committed = region.size > 0 && region.state != RegionState::Draining;
    let mapping = |leg: &Leg| {
        json!({
            "position": leg.position, "memdev": leg.memory_node, "decoder": decoder_name(region, leg.decoder),
            "copy": leg.copy, "state": leg.state,
        })
    };
    object(
        item,
        json!({
            "region": region.name,
            "resource": region.legs.iter().map(|leg| leg.cmem_base).min(),
            "type": "ram",
            "interleave_ways": region.ways,
            "interleave_granularity": region.granularity,
            "decode_state": if committed { "commit" } else { "reset" },
            "mappings": region.legs.iter().map(mapping).collect::<Vec<_>>(),
            "stale_bytes": stale_bytes(region),
            "growing": (region.size > 0 && region.growing() > 0).then(|| region.growing()),
        }),
    )
}

/// Bytes of the region's stale copies, which lack content that the other copy has; none if no copy is stale.
fn stale_bytes(region: &Region) -> Option<u64> {
    let stale = region.legs.iter().filter(|leg| leg.state == LegState::Stale);
    Some(stale.map(|leg| leg.bytes).sum()).filter(|bytes| *bytes > 0)
}

pub fn decoders(snapshot: &Snapshot, scope: &mut Scope) -> Vec<Value> {
    let mut found = Vec::new();
    for region in snapshot.regions.iter().map(|status| &status.region) {
        for (decoder, n) in region.decoders.iter().zip(0..) {
            let name = decoder_name(region, n);
            let legs: Vec<&Leg> = region.legs_of(n).collect();
            let thing = FilteredObject {
                memdevs: legs.iter().map(|leg| &leg.memory_node).collect(),
                decoder: Some(&name),
                idle: !decoder.committed || region.state == RegionState::Disabled,
                ..thing(region)
            };
            if scope.has(&thing) {
                found.push(decoder_shown(region, decoder, &name, &legs));
            }
        }
    }
    found
}

fn decoder_shown(region: &Region, decoder: &HdmDecoder, name: &str, legs: &[&Leg]) -> Value {
    let target = |leg: &&Leg| {
        json!({
            "target": leg.memory_node,
            "alias": leg.mac(),
            "position": leg.position,
            "copy": leg.copy,
            "cmem_base": leg.cmem_base,
            "size": leg.bytes,
            "state": leg.state,
        })
    };
    json!({
        "decoder": name,
        "resource": legs.iter().map(|leg| leg.cmem_base).min(),
        "size": decoder.size,
        "interleave_ways": decoder.ways,
        "interleave_granularity": decoder.granularity,
        "region": region.name,
        "offset": decoder.offset,
        "owner": region.owner,
        "committed": decoder.committed,
        "state": if decoder.committed { "enabled" } else { "disabled" },
        "volatile_capable": true,
        "nr_targets": legs.len(),
        "targets": legs.iter().map(target).collect::<Vec<_>>(),
    })
}

fn decoder_name(region: &Region, n: u32) -> String {
    format!("{}.{n}", region.name)
}

fn thing(region: &Region) -> FilteredObject<'_> {
    FilteredObject {
        memdevs: region.legs.iter().map(|leg| &leg.memory_node).collect(),
        compute_nodes: vec![region.owner],
        regions: vec![&region.name],
        labels: Some(&region.labels),
        ..FilteredObject::default()
    }
}
