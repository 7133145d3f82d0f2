//! Reason why parts of a region do not move at present, with the remedy: the owner's agent copies them, or memory nodes
//! do if nobody uses the region.

use std::collections::BTreeSet;

use cxloe_fabric::api::RegionStatus;
use cxloe_fabric::model::CnId;

/// Returns the reason why parts of a region wait, as a sentence that begins with the region's name; `None` if they are
/// copied. `running` lists the compute nodes whose agents run.
pub fn reason(status: &RegionStatus, running: &BTreeSet<CnId>) -> Option<String> {
    let (region, owner) = (&status.region, status.region.owner);
    let name = &region.name;
    if status.at_rest {
        None
    } else if let Some(reader) = region.readers.first() {
        let cn = reader.cn;
        Some(format!(
            "{name} moves once CN {cn} does not read it any more (gmm share-region {name} --with {cn} --stop)"
        ))
    } else if region.sealed {
        Some(format!("{name} is sealed, and moves once it is disabled (gmm disable-region {name})"))
    } else if running.contains(&owner) {
        None
    } else {
        Some(format!(
            "{name} moves once the agent of its owner {owner} runs, or it is disabled (gmm disable-region {name})"
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(fields: serde_json::Value) -> RegionStatus {
        let mut status = json!({
            "name": "r", "owner": "02:00:00:00:00:01", "size": 4096, "ways": 1, "granularity": 4096,
            "state": "active", "decoders": [], "legs": [], "created_ms": 1,
        });
        let all = status.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn regions_wait_for_agents_unless_they_are_at_rest() {
        let running = BTreeSet::from(["02:00:00:00:00:01".parse().unwrap()]);
        let reason = |fields, running| reason(&status(fields), running);
        let absent = BTreeSet::new();
        assert_eq!(reason(json!({}), &running), None);
        assert_eq!(reason(json!({"at_rest": true}), &absent), None);
        assert!(
            reason(json!({}), &absent).unwrap().contains("the agent of its owner 02:00:00:00:00:01 runs")
        );
        assert!(reason(json!({"sealed": true}), &running).unwrap().contains("gmm disable-region r"));
        let reader = json!({"cn": "02:00:00:00:00:02", "legs": []});
        let read = reason(json!({"sealed": true, "readers": [reader]}), &running).unwrap();
        assert!(read.contains("--with 02:00:00:00:00:02 --stop"), "{read}");
    }
}
