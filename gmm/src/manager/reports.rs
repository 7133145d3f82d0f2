//! What memory nodes say of themselves, kept as it is for who looks at it, and no more of it than a manager has memory for:
//! a report counts by what it takes in memory, and one that is too large, or for which there is no room beside the others,
//! is not kept.

use std::collections::BTreeMap;

use serde_json::Value;

use cxloe_fabric::model::Name;

/// Most memory for the report of one node, in bytes. One of a memory node with 256 sessions takes a quarter of that.
const NODE_MAX: usize = 2 << 20;
/// Most memory for all reports, in bytes.
const ALL_MAX: usize = 128 << 20;
/// Most of it in one answer, in bytes: who may only look asks as often as it likes.
pub(super) const SHOWN_MAX: usize = 16 << 20;
/// What a value takes, about, and a field besides its name.
const VALUE_BYTES: usize = size_of::<Value>();
const FIELD_BYTES: usize = VALUE_BYTES + 48;

/// What a memory node said of itself last.
#[derive(Debug, Clone)]
pub(super) struct Report {
    /// When it came: milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What it says; nothing if it was too large.
    pub stats: Value,
    bytes: usize,
}

/// The reports of all memory nodes.
#[derive(Debug, Default)]
pub(super) struct Reports {
    all: BTreeMap<Name, Report>,
    bytes: usize,
}

impl Reports {
    /// Takes the place of what the node said before.
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

    /// Drops what a node said.
    pub fn forget(&mut self, node: &Name) {
        if let Some(report) = self.all.remove(node) {
            self.bytes -= report.bytes;
        }
    }

    /// What a node said last.
    pub fn get(&self, node: &Name) -> Option<&Report> {
        self.all.get(node)
    }

    /// What a node said last, if it has room in what is left of an answer, in bytes.
    pub fn within(&self, node: &Name, room: &mut usize) -> Option<&Value> {
        let report = self.all.get(node)?;
        *room = room.checked_sub(report.bytes)?;
        Some(&report.stats)
    }

    /// What all said last.
    pub fn values(&self) -> impl Iterator<Item = &Report> {
        self.all.values()
    }
}

/// What a value takes in memory, about; counted no further than `limit`.
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
    fn what_all_say_is_bounded() {
        let mut reports = Reports::default();
        // As text, these are a mebibyte each.
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
