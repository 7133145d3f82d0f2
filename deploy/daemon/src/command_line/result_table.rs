//! Results as tables for a terminal. JSON has more fields than a terminal has room for: a table shows the most
//! important ones, `--json` shows all.

use comfy_table::ContentArrangement;
use serde_json::{Map, Value};

use super::humanize::for_people;
use crate::table::{Table, new_table};

/// Kind of result: the field by which it is recognised, and the columns of its table (field and heading). A field of a
/// nested object is written as `object.field`.
struct ResultKind {
    known_by: &'static str,
    columns: &'static [(&'static str, &'static str)],
    /// True if a last column lists all fields without a column of their own.
    rest: bool,
}

const fn kind(known_by: &'static str, columns: &'static [(&'static str, &'static str)]) -> ResultKind {
    ResultKind { known_by, columns, rest: false }
}

/// All kinds, in order of precedence: a result is of the first kind whose field it has.
const KINDS: [ResultKind; 11] = [
    ResultKind { known_by: "event", columns: &[("time_ms", "time"), ("event", "event")], rest: true },
    kind(
        "attachment",
        &[
            ("region", "region"),
            ("hpa", "HPA"),
            ("size", "size"),
            ("state", "state"),
            ("attachment", "here"),
            ("served_by", "served by"),
            ("worker", "worker"),
            ("memory_nodes", "memory nodes"),
            ("note", "note"),
        ],
    ),
    kind(
        "made_by",
        &[
            ("id", "id"),
            ("role", "role"),
            ("created_ms", "created"),
            ("expires_ms", "valid until"),
            ("made_by", "made by"),
            ("compute_nodes", "compute nodes"),
            ("quota", "quota"),
            ("used", "used"),
        ],
    ),
    kind(
        "taking_over",
        &[
            ("region", "region"),
            ("space", "space"),
            ("kind", "kind"),
            ("bytes", "size"),
            ("limit", "limit"),
            ("resident", "resident"),
            ("members", "processes"),
            ("owner", "user"),
            ("counters.faults", "faults"),
            ("counters.fetched", "fetched"),
            ("counters.written_back", "written back"),
        ],
    ),
    kind(
        "decoder",
        &[
            ("decoder", "decoder"),
            ("region", "region"),
            ("size", "size"),
            ("interleave_ways", "ways"),
            ("interleave_granularity", "granularity"),
            ("state", "state"),
            ("targets", "memory nodes"),
        ],
    ),
    kind(
        "link",
        &[
            ("port", "port"),
            ("switch", "switch"),
            ("type", "type"),
            ("memdev", "memory node"),
            ("compute_node", "compute node"),
            ("link", "link"),
            ("nr_lds", "LDs"),
            ("nr_bound", "bound"),
        ],
    ),
    kind(
        "streams",
        &[
            ("memdev", "memory node"),
            ("memory_node", "memory node"),
            ("compute_node_name", "compute node"),
            ("cn", "CN id"),
            ("streams", "streams"),
        ],
    ),
    kind(
        "ld",
        &[
            ("memdev", "memory node"),
            ("memory_node", "memory node"),
            ("ld", "LD"),
            ("switch", "switch"),
            ("port", "port"),
            ("state", "state"),
            ("size", "size"),
            ("reserved", "reserved"),
            ("used_bytes", "used"),
            ("compute_node", "compute node"),
            ("vppb", "vPPB"),
            ("region", "region"),
            ("regions", "regions"),
            ("unbinding", "unbinding"),
            ("unbound_percent", "released %"),
            ("zeroed_percent", "zeroed %"),
        ],
    ),
    kind(
        "mappings",
        &[
            ("region", "region"),
            ("size", "size"),
            ("owner_name", "owner"),
            ("owner", "CN id"),
            ("state", "state"),
            ("ways", "ways"),
            ("mappings", "memory nodes"),
            ("growing", "growing by"),
            ("zeroed_percent", "zeroed %"),
            ("labels", "labels"),
        ],
    ),
    kind(
        "memdev",
        &[
            ("memdev", "memory node"),
            ("switch", "switch"),
            ("port", "port"),
            ("health", "health"),
            ("state", "state"),
            ("kind", "kind"),
            ("ram_size", "size"),
            ("free_bytes", "free"),
            ("reserved_bytes", "reserved"),
            ("draining_bytes", "being zeroed"),
            ("host", "address"),
        ],
    ),
    kind(
        "cn_id",
        &[
            ("name", "compute node"),
            ("cn_id", "CN id"),
            ("switch", "switch"),
            ("vcs", "VCS"),
            ("health", "health"),
            ("size", "regions' size"),
            ("nr_regions", "regions"),
            ("quota", "quota"),
            ("held", "suspended"),
        ],
    ),
];

/// Fields that can name an item of a list, by precedence.
const NAMES: [&str; 6] = ["memdev", "target", "memory_node", "region", "name", "pid"];

/// Table of a result; `None` if no table can show it.
pub fn table(value: Value) -> Option<Table> {
    match for_people(value) {
        Value::Array(items) => {
            let items: Option<Vec<Map<String, Value>>> = items.into_iter().map(fields).collect();
            let items = items.filter(|items| !items.is_empty())?;
            let mut shown = TableColumns::of(&items);
            // A column that is empty in all rows is left out.
            shown.columns.retain(|(field, _)| items.iter().any(|item| cell(field_of(item, field)).is_some()));
            Some(shown.rows(&items))
        }
        Value::Object(item) => TableColumns::of(std::slice::from_ref(&item)).fields(&item),
        _ => None,
    }
}

fn fields(item: Value) -> Option<Map<String, Value>> {
    match item {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

fn field_of<'a>(item: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    match field.split_once('.') {
        Some((object, field)) => item.get(object)?.get(field),
        None => item.get(field),
    }
}

/// Columns of a table; a last one may list the remaining fields.
struct TableColumns<'a> {
    columns: Vec<(&'a str, String)>,
    rest: bool,
}

impl<'a> TableColumns<'a> {
    fn of(items: &'a [Map<String, Value>]) -> Self {
        let known = |kind: &&ResultKind| items.iter().all(|item| item.contains_key(kind.known_by));
        if let Some(kind) = KINDS.iter().find(known) {
            let columns = kind.columns.iter().map(|(field, heading)| (*field, (*heading).to_owned()));
            return Self { columns: columns.collect(), rest: kind.rest };
        }
        let mut columns: Vec<(&str, String)> = Vec::new();
        for field in items.iter().flat_map(Map::keys) {
            if columns.iter().all(|(known, _)| known != field) {
                columns.push((field, field.replace('_', " ")));
            }
        }
        Self { columns, rest: false }
    }

    fn rows(&self, items: &[Map<String, Value>]) -> Table {
        let rest = self.rest.then(|| "about".to_owned());
        let mut table = new_table(self.columns.iter().map(|(_, heading)| heading.clone()).chain(rest));
        fit(&mut table);
        for item in items {
            let cells = self.columns.iter().map(|(field, _)| cell(field_of(item, field)).unwrap_or_default());
            table.add_row(cells.chain(self.rest.then(|| self.rest_of(item))));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        table
    }

    /// Table of a single result: a row for each field.
    fn fields(&self, item: &Map<String, Value>) -> Option<Table> {
        let nested = |value: &Value| match value {
            // An object of texts, as the labels of a region are, has room in a cell.
            Value::Object(fields) => !fields.values().all(Value::is_string),
            Value::Array(items) => items.iter().any(|item| item.is_array() || name_of(item).is_none()),
            _ => false,
        };
        if self.columns.iter().any(|(field, _)| field_of(item, field).is_some_and(nested)) {
            return None;
        }
        let mut table = Table::of_fields();
        fit(&mut table);
        for (field, heading) in &self.columns {
            if let Some(cell) = cell(field_of(item, field)) {
                table.add_row([heading.clone(), cell]);
            }
        }
        Some(table)
    }

    /// Text of the fields without a column, except the number `seq` of the item.
    fn rest_of(&self, item: &Map<String, Value>) -> String {
        let others = item.iter().filter(|(field, _)| {
            field.as_str() != "seq" && self.columns.iter().all(|(column, _)| column != field)
        });
        let told = others
            .filter_map(|(field, value)| Some(format!("{} {}", field.replace('_', " "), cell(Some(value))?)));
        told.collect::<Vec<_>>().join(", ")
    }
}

fn fit(table: &mut Table) {
    if let Some((terminal_size::Width(width), _)) = terminal_size::terminal_size() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
}

/// Text of a value in a cell; `None` if the value is empty.
fn cell(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::Null => None,
        Value::Bool(is) => Some(if *is { "yes" } else { "no" }.to_owned()),
        // Of a size written in both kinds of units, the cell shows the first.
        Value::String(text) => {
            let text =
                text.split_once(" (").filter(|_| text.ends_with("B)")).map_or(text.as_str(), |size| size.0);
            (!text.is_empty()).then(|| text.to_owned())
        }
        Value::Array(items) => {
            let mut names: Vec<String> = items.iter().filter_map(name_of).collect();
            names.dedup();
            (!names.is_empty()).then(|| names.join(", "))
        }
        Value::Object(fields) => {
            let texts: Option<Vec<String>> =
                fields.iter().map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
            texts.filter(|texts| !texts.is_empty()).map(|texts| texts.join(", "))
        }
        other => Some(other.to_string()),
    }
}

fn name_of(item: &Value) -> Option<String> {
    match item {
        Value::Object(fields) => NAMES.iter().find_map(|name| cell(fields.get(*name))),
        Value::Array(_) => None,
        scalar => cell(Some(scalar)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(value: Value) -> Vec<String> {
        table(value).unwrap().to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_list_is_a_table_of_what_its_kind_has() {
        let region = json!({
            "region": "scratch", "size": 16 << 20, "owner": "02:00:00:00:01:00", "state": "active", "ways": 2,
            "resource": 0, "mappings": [{"memdev": "mn0", "position": 0}, {"memdev": "mn1", "position": 1}],
        });
        let shown = lines(json!([region]));
        // On a terminal, a table has frames, each in a line of its own.
        let line = |with: &str| shown.iter().find(|line| line.contains(with)).unwrap();
        let (header, row) = (line("CN id"), line("scratch"));
        assert!(header.contains("region") && header.contains("memory nodes"), "{shown:?}");
        assert!(!header.contains("resource") && !header.contains("zeroed"), "{shown:?}");
        assert!(row.contains("16.00 MiB ") && !row.contains('('), "{shown:?}");
        assert!(row.contains("mn0, mn1"), "{shown:?}");
    }

    #[test]
    fn mapped_regions_show_how_paging_goes() {
        let view = json!({
            "space": 7, "region": "scratch", "kind": "private", "bytes": 16 << 20, "limit": 4 << 20, "resident": 4096,
            "taking_over": false, "owner": 1000, "members": [{"pid": 4711, "view": 0, "bytes": 4096}],
            "counters": {"faults": 12, "fetched": 3},
        });
        let shown = lines(json!([view]));
        let line = |with: &str| shown.iter().find(|line| line.contains(with)).unwrap();
        let (header, row) = (line("resident"), line("scratch"));
        assert!(
            header.contains("processes") && header.contains("faults") && !header.contains("CN id"),
            "{shown:?}"
        );
        assert!(row.contains("4.00 MiB") && row.contains("4711") && row.contains(" 12 "), "{shown:?}");
    }

    #[test]
    fn what_an_order_for_a_region_has_done_is_shown() {
        let moved =
            json!({"region": "vm", "outcome": "moved", "target": "cn1", "stopped_ms": 45.2, "reason": null});
        let shown = table(moved).unwrap().to_string();
        assert!(["outcome", "moved", "stopped", "cn1"].iter().all(|word| shown.contains(word)), "{shown}");
        assert!(!shown.contains("reason"), "{shown}");
        let sealed =
            json!({"region": "set", "owner": "02:00:00:00:01:00", "result": "sealed", "readers": ["cn1"]});
        let shown = table(sealed).unwrap().to_string();
        assert!(shown.contains("sealed") && shown.contains("cn1"), "{shown}");
    }

    #[test]
    fn attached_regions_show_their_worker_if_they_name_one() {
        let region = |worker: Option<u64>| {
            let mut region = json!({"region": "scratch", "attachment": "attached", "served_by": "ethernet"});
            if let Some(worker) = worker {
                region["worker"] = worker.into();
            }
            region
        };
        assert!(!table(json!([region(None)])).unwrap().to_string().contains("worker"));
        let shown = lines(json!([region(Some(0)), region(Some(3))]));
        assert!(shown.iter().any(|line| line.contains("served by") && line.contains("worker")), "{shown:?}");
        assert!(shown.iter().any(|line| line.contains("ethernet") && line.contains('3')), "{shown:?}");
    }

    #[test]
    fn tokens_show_dates() {
        let token = json!({"id": "1a2b", "role": "mn", "created_ms": 0, "expires_ms": 3_600_000, "made_by": "uid 0",
                           "used": false});
        let shown = lines(json!([token]));
        let row = shown.iter().find(|line| line.contains("1a2b"));
        assert!(
            row.is_some_and(|row| row.contains("1970-01-01T01:00:00.000Z") && row.contains("no")),
            "{shown:?}"
        );
    }

    #[test]
    fn one_thing_is_a_row_for_each_field() {
        let shown =
            lines(json!({"memdev": "mn0", "ld": 3, "port": 1, "state": "unbound", "zeroed_percent": null}));
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert!(shown[0].contains("memory node") && shown[0].contains("mn0"), "{shown:?}");
        let other = lines(json!({"status": "ok", "free_bytes": 4096, "leader": null}));
        assert!(
            other.iter().any(|line| line.contains("free bytes") && line.contains("4.00 KiB")),
            "{other:?}"
        );
    }

    #[test]
    fn an_event_names_its_subject() {
        let event =
            json!({"seq": 9, "time_ms": 0, "event": "region_changed", "region": "r", "state": "active"});
        let shown = lines(json!([event]));
        let row = shown.iter().find(|line| line.contains("1970-01-01T00:00:00.000Z"));
        assert!(row.is_some_and(|row| row.contains("region r, state active")), "{shown:?}");
    }

    #[test]
    fn what_no_table_shows_is_left_to_json() {
        assert!(table(json!([1, 2])).is_none() && table(json!([])).is_none());
        assert!(table(json!({"cache": {"hits": 1}})).is_none());
    }
}
