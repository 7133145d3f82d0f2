//! Reports as CSV: a row for each name of a result.

use std::collections::BTreeMap;

use super::{Conditions, Latency, Report, Throughput};

/// Formats rows as CSV (RFC 4180, but lines end with a line feed), headings included. Cells are quoted where
/// necessary.
///
/// # Panics
/// Panics if a row has another number of cells than the first.
pub fn text<Row>(rows: impl IntoIterator<Item = Row>) -> String
where
    Row: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).expect("every row has a cell for each column");
    }
    let bytes = writer.into_inner().expect("memory takes everything");
    String::from_utf8(bytes).expect("cells are text")
}

/// Headings of the columns. Times are in nanoseconds, shares from 0 to 1. A cell that does not apply is
/// empty.
const COLUMNS: [&str; 27] = [
    "name",
    "pattern",
    "over",
    "working_set",
    "resident",
    "resident_bytes",
    "kernel",
    "mix",
    "order",
    "offered_per_s",
    "not_begun",
    "hot",
    "heat",
    "depth",
    "operations",
    "checked",
    "wrong",
    "count",
    "min_ns",
    "mean_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "ops_per_s",
    "bytes_per_s",
];

impl Report {
    /// Formats the report as CSV. A latency and a rate of the same name are in one row.
    pub fn csv(&self) -> String {
        let names = self.results.iter().map(|r| &r.name).chain(self.throughput.iter().map(|t| &t.name));
        let mut places = BTreeMap::new();
        let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
        for name in names {
            if places.insert(name, rows.len()).is_none() {
                let conditions = self.conditions.iter().find(|c| c.name == *name);
                rows.push(row(name, conditions, self.result(name), self.rate(name)));
            }
        }
        text(rows)
    }
}

fn row(
    name: &str,
    conditions: Option<&Conditions>,
    times: Option<&Latency>,
    rate: Option<&Throughput>,
) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    let none = Conditions::default();
    let c = conditions.unwrap_or(&none);
    let is_known = conditions.is_some();
    let number = |number: u64| if is_known { number.to_string() } else { String::new() };
    cells.extend([c.pattern.clone(), c.over.clone(), number(c.working_set)]);
    cells.push(conditions.map_or_else(String::new, |c| c.resident.to_string()));
    cells.push(number(c.resident_bytes));
    cells.extend([&c.kernel, &c.mix, &c.order].map(|value| value.clone().unwrap_or_default()));
    cells.push(optional(c.offered_per_s));
    cells.push(optional(c.not_begun));
    cells.extend([optional(c.hot), optional(c.heat), optional(c.depth)]);
    cells.extend([c.operations, c.checked, c.wrong].map(number));
    cells.push(optional(times.map(|t| t.count)));
    let quantiles: [fn(&Latency) -> f64; 7] =
        [|t| t.min, |t| t.mean, |t| t.p50, |t| t.p90, |t| t.p99, |t| t.p999, |t| t.max];
    cells.extend(quantiles.map(|quantile| optional(times.map(quantile))));
    cells.extend([optional(rate.map(|r| r.ops_per_s)), optional(rate.map(|r| r.bytes_per_s))]);
    debug_assert_eq!(cells.len(), COLUMNS.len());
    cells
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::*;

    #[test]
    fn a_row_has_what_is_known_under_the_right_heads() {
        let mut report = report();
        report.results = vec![latency("chase", &[(None, 500)]), latency("odd, \"name\"", &[(None, 7)])];
        report.throughput = vec![rate("chase", &[(None, 1e6)]), rate("gups", &[(None, 2e6)])];
        report.conditions = vec![Conditions {
            name: "chase".into(),
            pattern: "chase".into(),
            resident: 0.5,
            checked: 10,
            ..Conditions::default()
        }];
        let csv = report.csv();
        let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        let cell = |row: usize, head: &str| rows[row][COLUMNS.iter().position(|c| *c == head).unwrap()];
        assert_eq!(rows[0], COLUMNS);
        let heads = ["name", "pattern", "resident", "checked", "wrong", "hot", "p50_ns", "ops_per_s"];
        assert_eq!(
            heads.map(|head| cell(1, head)),
            ["chase", "chase", "0.5", "10", "0", "", "500", "1000000"]
        );
        assert!(csv.contains("\n\"odd, \"\"name\"\"\",,"), "{csv}");
        let heads = ["name", "checked", "p50_ns", "ops_per_s"];
        assert_eq!(heads.map(|head| cell(3, head)), ["gups", "", "", "2000000"]);
        assert_eq!(rows.len(), 4, "one row for both results of one name");
        assert_eq!(rows[1].len(), COLUMNS.len());
    }
}
