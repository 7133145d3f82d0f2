//! Stored events in the process's log: one line for each event, in which each of its values occurs once.

use cxloe_fabric::model::Event;
use serde_json::{Map, Value};

/// Values of an event: each is a separate field of the log, or part of the text in `details`.
#[derive(Debug, Default, PartialEq, Eq)]
struct LoggedEvent {
    region: Option<String>,
    memory_node: Option<String>,
    /// The compute node that the event is about; for an event about a region, its owner.
    compute_node: Option<String>,
    state: Option<String>,
    cause: Option<String>,
    /// The values without a separate field, as `name=value`; none if there are no such values.
    details: Option<String>,
}

impl LoggedEvent {
    fn new(values: Map<String, Value>) -> LoggedEvent {
        let mut logged = LoggedEvent::default();
        let mut details = Vec::new();
        for (name, value) in values {
            let value = shown(value);
            match name.as_str() {
                // The kind of the event is the message of the line.
                "event" => {}
                "region" => logged.region = Some(value),
                "memory_node" => logged.memory_node = Some(value),
                "compute_node" | "owner" => logged.compute_node = Some(value),
                "state" => logged.state = Some(value),
                "reason" => logged.cause = Some(value),
                _ => details.push(format!("{name}={value}")),
            }
        }
        logged.details = (!details.is_empty()).then(|| details.join(" "));
        logged
    }
}

/// A value as text: a string without quotes.
fn shown(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Logs a stored event at level `info`.
pub fn log(event: &Event) {
    let values = match serde_json::to_value(&event.kind) {
        Ok(Value::Object(values)) => values,
        Ok(_) => Map::new(),
        Err(error) => return tracing::warn!(seq = event.seq, %error, "event cannot be shown"),
    };
    let LoggedEvent { region, memory_node, compute_node, state, cause, details } = LoggedEvent::new(values);
    tracing::info!(
        seq = event.seq,
        region,
        memory_node,
        compute_node,
        state,
        cause,
        details,
        who = event.who.as_deref(),
        "{}",
        event.kind.label()
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn logged(values: Value) -> LoggedEvent {
        let Value::Object(values) = values else { panic!("an event is an object") };
        LoggedEvent::new(values)
    }

    #[test]
    fn each_value_is_in_one_field() {
        let changed = logged(json!({
            "event": "region_changed", "region": "r", "owner": "02:00:00:00:00:01", "state": "degraded",
            "reason": "memory node mn0 is unreachable",
        }));
        let expected = LoggedEvent {
            region: Some("r".to_owned()),
            compute_node: Some("02:00:00:00:00:01".to_owned()),
            state: Some("degraded".to_owned()),
            cause: Some("memory node mn0 is unreachable".to_owned()),
            ..LoggedEvent::default()
        };
        assert_eq!(changed, expected);
        let bound = logged(json!({
            "event": "ld_bound", "memory_node": "mn0", "ld": 3, "compute_node": "02:00:00:00:00:01", "vppb": 0,
        }));
        let expected = LoggedEvent {
            memory_node: Some("mn0".to_owned()),
            compute_node: Some("02:00:00:00:00:01".to_owned()),
            details: Some("ld=3 vppb=0".to_owned()),
            ..LoggedEvent::default()
        };
        assert_eq!(bound, expected);
    }
}
