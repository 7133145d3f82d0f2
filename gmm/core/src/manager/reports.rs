//! Latest reports of memory nodes, kept as the JSON values that arrived. Their memory is limited: a report is not kept
//! if it is too large, or exceeds the limit for all reports.

use std::collections::BTreeMap;

use serde_json::Value;

use cxloe_fabric::model::Name;

/// Maximum memory for one node's report, in bytes: four times what a memory node with 256 sessions needs.
const NODE_MAX: usize = 2 << 20;
/// Maximum memory for the reports of all nodes, in bytes.
const ALL_MAX: usize = 128 << 20;
/// Maximum memory of the reports in one answer, in bytes: any viewer may request answers at any rate.
pub(super) const SHOWN_MAX: usize = 16 << 20;
/// Approximate memory of a JSON value, in bytes. A value in a field of an object counts as `FIELD_BYTES`
/// instead, plus the length of the field's name.
const VALUE_BYTES: usize = size_of::<Value>();
const FIELD_BYTES: usize = VALUE_BYTES + 48;

#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Time of arrival, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Content of the report; null if the report was too large.
    pub stats: Value,
    bytes: usize,
}

/// The reports of all memory nodes, and their total size in memory.
#[derive(Debug, Default)]
pub(super) struct Reports {
    all: BTreeMap<Name, Report>,
    bytes: usize,
}

impl Reports {
    pub fn keep(&mut self, node: &Name, at_ms: u64, stats: Value) {
        self.forget(node);
        let bytes = bytes_of(&stats, NODE_MAX);
        let fits = bytes <= NODE_MAX && self.bytes + bytes <= ALL_MAX;
        if !fits {
            tracing::debug!(%node, bytes, "a report is not kept: it is too large");
        }
        let (stats, bytes) = if fits { (stats, bytes) } else { (Value::Null, VALUE_BYTES) };
        self.bytes += bytes;
        self.all.insert(node.clone(), Report { at_ms, stats, bytes });
    }

    pub fn forget(&mut self, node: &Name) {
        if let Some(report) = self.all.remove(node) {
            self.bytes -= report.bytes;
        }
    }

    pub fn get(&self, node: &Name) -> Option<&Report> {
        self.all.get(node)
    }

    /// Returns the latest report of a node, and subtracts its size from `room`, the bytes left in an answer;
    /// `None` if it does not fit.
    pub fn within(&self, node: &Name, room: &mut usize) -> Option<&Value> {
        let report = self.all.get(node)?;
        *room = room.checked_sub(report.bytes)?;
        Some(&report.stats)
    }

    pub fn values(&self) -> impl Iterator<Item = &Report> {
        self.all.values()
    }
}

/// Returns the approximate memory of a value in bytes; counting stops at `limit`.
fn bytes_of(value: &Value, limit: usize) -> usize {
    let mut bytes = 0;
    let mut left = vec![value];
    while let Some(value) = left.pop().filter(|_| bytes <= limit) {
        bytes += VALUE_BYTES;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                bytes += fields.keys().map(|name| name.len() + FIELD_BYTES).sum::<usize>();
                left.extend(fields.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(index: usize) -> Name {
        Name::new(format!("mn{index}")).unwrap()
    }

    #[test]
    fn the_log_of_all_call_sites_is_bounded() {
        let mut reports = Reports::default();
        // As JSON text, each of the two values is one mebibyte long.
        let wide = json!({"workers": vec![json!({}); 340_000]});
        let long = json!({"text": "x".repeat(1 << 20)});
        for index in 0..400 {
            reports.keep(&node(index), 1, long.clone());
            reports.keep(&node(index + 400), 1, wide.clone());
        }
        let held: usize = reports.values().map(|report| bytes_of(&report.stats, usize::MAX)).sum();
        assert!(held <= ALL_MAX && reports.bytes <= ALL_MAX, "{held} bytes are held");
        assert_eq!(reports.get(&node(400)).unwrap().stats, Value::Null, "too large by itself");
        assert_eq!(reports.get(&node(0)).unwrap().stats, long);
        assert_eq!(
            (reports.get(&node(399)).unwrap().at_ms, &reports.get(&node(399)).unwrap().stats),
            (1, &Value::Null)
        );
        for index in 0..400 {
            reports.keep(&node(index), 2, json!([{"sessions": []}]));
        }
        reports.keep(&node(399), 3, long.clone());
        assert_eq!(reports.get(&node(399)).unwrap().stats, long, "there is room again");
        let mut room = SHOWN_MAX;
        let shown = (0..400).filter(|index| reports.within(&node(*index), &mut room).is_some()).count();
        assert!(shown > 100 && room < SHOWN_MAX, "{shown}");
        let mut little = 100;
        assert_eq!(reports.within(&node(399), &mut little), None, "not in an answer that is full");
        assert_eq!(little, 100, "and others may still be");
        (0..800).for_each(|index| reports.forget(&node(index)));
        assert_eq!(reports.bytes, 0);
    }
}
