//! Values of the paper as data: `values.json` contains each value with its place in the paper.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Values of the paper. Times are in nanoseconds unless a name says otherwise.
#[derive(Debug, Serialize, Deserialize)]
pub struct Values {
    /// Title of the paper.
    pub title: String,
    /// Identifier of the paper in its archive.
    pub id: String,
    /// Latency of 64 bytes, of several systems.
    pub fig7: Latencies,
    /// Fig. 9: latency of writes by parts.
    pub fig9: Breakdown,
    /// Fig. 10: latency of reads by parts.
    pub fig10: Breakdown,
    /// Share of the network in the latency, in percent.
    pub network_share_percent: f64,
    /// Table II: times of the line cache's cases.
    pub table2: Cases,
    /// Fig. 11: stable rates by threshold.
    pub fig11: Thresholds,
    /// Fig. 12: stable rates by initial rate.
    pub fig12: Initial,
    /// Table III: cost of the hardware.
    pub table3: Grid,
    /// Table IV: features of several systems.
    pub table4: Grid,
}

/// Latencies of several systems.
#[derive(Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Latency of each system.
    pub rows: Vec<System>,
}

/// Latency of one system.
#[derive(Debug, Serialize, Deserialize)]
pub struct System {
    /// Name of the system, as in the paper.
    pub name: String,
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Minimum in nanoseconds, if the paper gives a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Maximum in nanoseconds, if the paper gives a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Statistic and setup of the value, such as `mean (Table I)`.
    pub of: String,
}

/// Statements of the paper about a breakdown.
#[derive(Debug, Serialize, Deserialize)]
pub struct Breakdown {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Number of requests sent.
    pub operations: usize,
    /// Number of requests drawn in the figure.
    pub points: usize,
    /// Shortest latency of a request, in nanoseconds.
    pub min_ns: f64,
    /// Mean latency of the requests, in nanoseconds.
    pub mean_ns: f64,
}

/// Times of the line cache's cases.
#[derive(Debug, Serialize, Deserialize)]
pub struct Cases {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Length of a clock cycle, in nanoseconds.
    pub cycle_ns: f64,
    /// Cases in the order of the paper.
    pub cases: Vec<Case>,
}

/// Case of the line cache, in clock cycles.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// Name of the case.
    pub case: String,
    /// Cycles with the memory behind Ethernet.
    pub ethernet: f64,
    /// Cycles with the memory on the same FPGA.
    pub local: f64,
}

/// Statements of the paper about Fig. 11.
#[derive(Debug, Serialize, Deserialize)]
pub struct Thresholds {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Mean difference of the first and the final rate, in percent.
    pub difference_percent: f64,
    /// Threshold at which no PFC frame is sent, in entries.
    pub quiet_from: u32,
}

/// Statements of the paper about Fig. 12.
#[derive(Debug, Serialize, Deserialize)]
pub struct Initial {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Threshold of the FIFO, in entries.
    pub threshold: u32,
    /// Lowest final rate, in Gbit/s.
    pub low_gbit: f64,
    /// Highest final rate, in Gbit/s.
    pub high_gbit: f64,
}

/// Table of text cells.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grid {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Headings of the columns after the row's name.
    pub columns: Vec<String>,
    /// Rows in the order of the paper.
    pub rows: Vec<Row>,
}

/// Row of a table: a feature or a kind of cost.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// Key of the row, by which this system's cell is found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Name of the feature or cost.
    pub name: String,
    /// Text for each column.
    pub cells: Vec<String>,
}

/// Values of the paper, parsed once.
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
        // The ratios that the paper's conclusions state.
        let ns = |name: &str| values.fig7.rows.iter().find(|row| row.name.starts_with(name)).unwrap().ns;
        let saved = 1.0 - ns("CXL over Ethernet, no cache") / ns("One-sided RDMA");
        assert!((saved - 0.37).abs() < 0.01, "37 % below the others: {saved}");
        let case = |name: &str| values.table2.cases.iter().find(|case| case.case == name).unwrap();
        let hit = (case("write_hit").ethernet + case("read_hit").ethernet) / 2.0;
        let miss = (case("write_miss_replace").ethernet + case("read_miss").ethernet) / 2.0;
        assert!((miss / hit - 18.4).abs() < 0.1, "hits are 18.4 times as fast: {}", miss / hit);
    }
}
