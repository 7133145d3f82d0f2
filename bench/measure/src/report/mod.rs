//! Results of a run, as tables, JSON, CSV, HTML and histogram log.
//!
//! A measurement records its times in [`Samples`], trial by trial, and its rates as [`Throughput`]. Both are
//! added to a [`Report`], which computes the ratios to the limits measured beside them
//! ([`Report::add_ratio`]). The report is written as JSON ([`Report::to_json`]), CSV ([`Report::csv`]), tables for a
//! terminal ([`Report::tables`]), one HTML page with pictures ([`Report::html`]), and full histograms in an HdrHistogram
//! log ([`write_histogram_log`]).

mod bar_groups;
pub mod chart;
mod conditions;
mod cost;
pub mod csv;
mod curves;
mod error;
mod expression;
mod goal;
pub mod html;
mod json;
mod labels;
mod log;
mod pattern_page;
mod plot;
mod ratio;
mod samples;
pub mod table;
pub mod units;

use serde::{Deserialize, Serialize};

pub use bar_groups::{Bar, BarGroup, bar_groups};
pub use conditions::Conditions;
pub use cost::Cost;
pub use error::ReportError;
pub use goal::FigureGoal;
pub use json::json_text;
pub use labels::PLAIN;
pub use log::write_histogram_log;
pub use plot::{AxisUnit, Curve, Plot, Scale};
pub use ratio::{Class, Ratio, Statistic};
pub use samples::{Latency, LatencyTrial, Samples};
pub use table::comparison;

use crate::machine::{Machine, median};

/// Version of the JSON form of reports; a report of another version is refused.
pub const SCHEMA: u32 = 1;

/// Results of one run over one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the report's JSON form, [`SCHEMA`].
    pub schema: u32,
    pub machine: Machine,
    pub link: Link,
    pub results: Vec<Latency>,
    pub throughput: Vec<Throughput>,
    /// Ratios of results to their limits.
    pub ratios: Vec<Ratio>,
    /// Conditions of the results that belong to sweeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Conditions>,
    /// Plots of sweeps; each shows several results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
    /// Costs of operations in processor cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
    /// Goals of figures of this run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<FigureGoal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Kind of link: `xdp`, `packet`, `pnet`, `sim`.
    pub backend: String,
    /// Names of the interfaces at both ends.
    pub interfaces: Vec<String>,
    /// Maximum payload of a frame, in bytes.
    pub mtu: u32,
    /// Wait style of the compute node: `busy`, `adaptive` or `sleep`.
    pub wait: String,
    /// Protection of the sessions' frames: `sealed` or `insecure`. Empty if there are no sessions, or if the
    /// report is older than the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub frames: String,
}

/// Rate of operations, as the median over trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Name of the measurement, for example `burst_read`.
    pub name: String,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of line data per second; for write-backs, bytes of the frames sent.
    pub bytes_per_s: f64,
    /// Rate of each trial, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<ThroughputTrial>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputTrial {
    /// Duration in nanoseconds of a cache-line round trip between the cores; see
    /// [`crate::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of line data per second; for write-backs, bytes of the frames sent.
    pub bytes_per_s: f64,
}

impl Throughput {
    /// Computes a rate as the median of several trials; `None` without trials.
    pub fn from_trials(name: &str, trials: Vec<ThroughputTrial>) -> Option<Self> {
        let over = |value: fn(&ThroughputTrial) -> f64| median(&trials.iter().map(value).collect::<Vec<_>>());
        let (ops_per_s, bytes_per_s) = (over(|t| t.ops_per_s)?, over(|t| t.bytes_per_s)?);
        Some(Self { name: name.into(), ops_per_s, bytes_per_s, trials })
    }
}

impl Report {
    pub fn new(machine: Machine, link: Link) -> Self {
        Self {
            schema: SCHEMA,
            machine,
            link,
            results: vec![],
            throughput: vec![],
            ratios: vec![],
            conditions: vec![],
            plots: vec![],
            costs: vec![],
            goals: vec![],
        }
    }

    /// Adds the latencies of one measurement. Has no effect without samples, since then there is no minimum.
    pub fn add(&mut self, samples: &Samples) {
        self.results.extend(samples.summary());
    }

    pub fn add_throughput(&mut self, throughput: Throughput) {
        self.throughput.push(throughput);
    }

    /// Returns the latencies of the measurement called `name`; `None` if it was not made.
    pub fn result(&self, name: &str) -> Option<&Latency> {
        self.results.iter().find(|r| r.name == name)
    }

    /// Returns the rate of the measurement called `name`; `None` if it was not made.
    pub fn rate(&self, name: &str) -> Option<&Throughput> {
        self.throughput.iter().find(|t| t.name == name)
    }
}

#[cfg(test)]
mod fixture;
