//! Values that the paper states, as data: `values.json` contains each value with its place in the paper.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Values that the paper states. Times are in nanoseconds unless a name says otherwise.
#[derive(Debug, Serialize, Deserialize)]
pub struct Values {
    pub title: String,
    /// Identifier of the paper in the archive that has published it.
    pub id: String,
    /// Fig. 7: latency of 64 bytes, of several systems.
    pub fig7: Latencies,
    /// Fig. 9: latency of writes by the parts of their path.
    pub fig9: Breakdown,
    /// Fig. 10: latency of reads by the parts of their path.
    pub fig10: Breakdown,
    /// Share of the network in the latency of a request, in percent.
    pub network_share_percent: f64,
    /// Table II: latencies of the line cache's cases.
    pub table2: Cases,
    /// Fig. 11: stable rates against the threshold.
    pub fig11: Thresholds,
    /// Fig. 12: stable rates against the initial rate.
    pub fig12: Initial,
    /// Table III: cost of the hardware.
    pub table3: Grid,
    /// Table IV: features of several systems.
    pub table4: Grid,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    pub rows: Vec<System>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct System {
    /// Name of the system, as in the paper.
    pub name: String,
    pub ns: f64,
    /// Minimum in nanoseconds, if the paper gives a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Maximum in nanoseconds, if the paper gives a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Statistic and set-up of the value, such as `mean (Table I)`.
    pub of: String,
}

/// Statements of the paper about a breakdown of latency, Fig. 9 or 10.
#[derive(Debug, Serialize, Deserialize)]
pub struct Breakdown {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Number of requests that the paper has measured.
    pub operations: usize,
    /// Number of requests drawn in the figure.
    pub points: usize,
    /// Shortest latency of a request, in nanoseconds.
    pub min_ns: f64,
    /// Mean latency of the requests, in nanoseconds.
    pub mean_ns: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Cases {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Length of a clock cycle of the paper's FPGA, in nanoseconds.
    pub cycle_ns: f64,
    /// Cases of the line cache in the order of the paper.
    pub cases: Vec<Case>,
}

/// Latency of one case of the line cache, in clock cycles.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// Name of the case in this file, such as `read_hit`.
    pub case: String,
    /// Cycles with the memory behind Ethernet.
    pub ethernet: f64,
    /// Cycles with the memory on the same FPGA.
    pub local: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Thresholds {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Average difference between the first and the final rate, in percent.
    pub difference_percent: f64,
    /// Threshold in entries at which no PFC frame is sent.
    pub quiet_from: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Initial {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    pub threshold: u32,
    /// Lowest final rate, in Gbit/s.
    pub low_gbit: f64,
    /// Highest final rate, in Gbit/s.
    pub high_gbit: f64,
}

/// Table of the paper whose cells are text.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grid {
    /// Section, figure or table of the paper, with remarks on its values.
    pub source: String,
    /// Headings of the columns to the right of the row's name.
    pub columns: Vec<String>,
    /// Rows in the order of the paper.
    pub rows: Vec<Row>,
}

/// Row of a table of the paper, for a feature or a kind of cost.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// Key by which this system's cell of the row is found; empty if the row has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Name of the feature or cost.
    pub name: String,
    /// Text for each column.
    pub cells: Vec<String>,
}

/// Returns the values of the paper, which are parsed once.
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
        // These are the ratios that the paper's conclusions state.
        let ns = |name: &str| values.fig7.rows.iter().find(|row| row.name.starts_with(name)).unwrap().ns;
        let saved = 1.0 - ns("CXL over Ethernet, no cache") / ns("One-sided RDMA");
        assert!((saved - 0.37).abs() < 0.01, "37 % below the others: {saved}");
        let case = |name: &str| values.table2.cases.iter().find(|case| case.case == name).unwrap();
        let hit = (case("write_hit").ethernet + case("read_hit").ethernet) / 2.0;
        let miss = (case("write_miss_replace").ethernet + case("read_miss").ethernet) / 2.0;
        assert!((miss / hit - 18.4).abs() < 0.1, "hits are 18.4 times as fast: {}", miss / hit);
    }
}
