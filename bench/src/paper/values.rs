//! What the paper says, as data: `values.json` beside this file, each value with the place it is from.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// The paper's values. Times are in nanoseconds unless a name says otherwise.
#[derive(Debug, Serialize, Deserialize)]
pub struct Values {
    /// The paper's title.
    pub title: String,
    /// Where it is kept.
    pub id: String,
    /// Latency of 64 bytes.
    pub fig7: Latencies,
    /// Writes by part.
    pub fig9: Breakdown,
    /// Reads by part.
    pub fig10: Breakdown,
    /// How much of the latency the network is, in percent.
    pub network_share_percent: f64,
    /// Cases of the cache.
    pub table2: Cases,
    /// Rates over thresholds.
    pub fig11: Thresholds,
    /// Rates over initial rates.
    pub fig12: Initial,
    /// What it costs.
    pub table3: Grid,
    /// Features.
    pub table4: Grid,
}

/// Latencies of systems.
#[derive(Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// Where in the paper.
    pub source: String,
    /// The systems.
    pub rows: Vec<System>,
}

/// One system's latency.
#[derive(Debug, Serialize, Deserialize)]
pub struct System {
    /// Which.
    pub name: String,
    /// Its latency.
    pub ns: f64,
    /// The least, where a range is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// What kind of value it is.
    pub of: String,
}

/// What the text says of a breakdown.
#[derive(Debug, Serialize, Deserialize)]
pub struct Breakdown {
    /// Where in the paper.
    pub source: String,
    /// Requests sent.
    pub operations: usize,
    /// How many of them are drawn.
    pub points: usize,
    /// The shortest.
    pub min_ns: f64,
    /// Their mean.
    pub mean_ns: f64,
}

/// Cases of the cache.
#[derive(Debug, Serialize, Deserialize)]
pub struct Cases {
    /// Where in the paper.
    pub source: String,
    /// Length of a cycle.
    pub cycle_ns: f64,
    /// Each case.
    pub cases: Vec<Case>,
}

/// One case of the cache, in cycles.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// Which.
    pub case: String,
    /// With the memory behind Ethernet.
    pub ethernet: f64,
    /// With the memory on the same FPGA.
    pub local: f64,
}

/// What the text says of Fig. 11.
#[derive(Debug, Serialize, Deserialize)]
pub struct Thresholds {
    /// Where in the paper.
    pub source: String,
    /// Mean difference of first and final rate.
    pub difference_percent: f64,
    /// The threshold in entries at which no PFC frame is sent.
    pub quiet_from: u32,
}

/// What the text says of Fig. 12.
#[derive(Debug, Serialize, Deserialize)]
pub struct Initial {
    /// Where in the paper.
    pub source: String,
    /// The threshold in entries.
    pub threshold: u32,
    /// The least final rate, in Gbit/s.
    pub low_gbit: f64,
    /// The highest.
    pub high_gbit: f64,
}

/// A table of words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grid {
    /// Where in the paper.
    pub source: String,
    /// What the columns are about.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a [`Grid`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// A short name, by which this system's own value is found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// What it is about.
    pub name: String,
    /// A cell for each column.
    pub cells: Vec<String>,
}

/// The paper's values.
pub fn values() -> &'static Values {
    static VALUES: OnceLock<Values> = OnceLock::new();
    VALUES.get_or_init(|| serde_json::from_str(include_str!("values.json")).expect("the file is tested"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_complete() {
        let values = values();
        assert_eq!(values.table2.cases.len(), 5);
        for grid in [&values.table3, &values.table4] {
            assert!(grid.rows.iter().all(|row| row.cells.len() == grid.columns.len()), "{}", grid.source);
        }
        // The figures the paper draws its conclusions from.
        let ns = |name: &str| values.fig7.rows.iter().find(|row| row.name.starts_with(name)).unwrap().ns;
        let saved = 1.0 - ns("CXL over Ethernet, no cache") / ns("One-sided RDMA");
        assert!((saved - 0.37).abs() < 0.01, "37 % below the others: {saved}");
        let case = |name: &str| values.table2.cases.iter().find(|case| case.case == name).unwrap();
        let hit = (case("write_hit").ethernet + case("read_hit").ethernet) / 2.0;
        let miss = (case("write_miss_replace").ethernet + case("read_miss").ethernet) / 2.0;
        assert!((miss / hit - 18.4).abs() < 0.1, "hits are 18.4 times as fast: {}", miss / hit);
    }
}
