//! Results of a run, as tables, JSON, CSV, HTML and histogram log.
//!
//! A measurement records its times in [`Samples`], trial by trial, and its rates as [`Throughput`]. Both go into a
//! [`Report`], which computes the ratios to the limits measured beside them ([`Report::add_ratio`]). From there:
//! JSON ([`Report::write_json`], and back with [`Report::read_json`]), CSV ([`Report::csv`]), tables for a terminal
//! ([`Report::tables`]), one HTML page with pictures ([`Report::html`]), and the full histograms as an HdrHistogram log
//! ([`write_histogram_log`]).

pub mod chart;
mod conditions;
mod cost;
pub mod csv;
mod curves;
mod error;
mod expression;
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

pub use conditions::Conditions;
pub use cost::Cost;
pub use error::ReportError;
pub use json::json_text;
pub use log::write_histogram_log;
pub use plot::{AxisUnit, Curve, Plot, Scale};
pub use ratio::{Class, Ratio, Statistic};
pub use samples::{Latency, LatencyTrial, Samples};
pub use table::comparison;

use crate::machine::{Machine, median};

/// Version of the JSON form of a report.
pub const SCHEMA: u32 = 1;

/// Results of one run on one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the report's JSON form; [`SCHEMA`].
    pub schema: u32,
    /// Machine on which the measurements ran.
    pub machine: Machine,
    /// Link over which the measurements ran.
    pub link: Link,
    /// Times of operations, in nanoseconds.
    pub results: Vec<Latency>,
    /// Rates of operations.
    pub throughput: Vec<Throughput>,
    /// Ratios of results to their limits.
    pub ratios: Vec<Ratio>,
    /// Conditions of results that are one of many in a sweep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Conditions>,
    /// Plots of results that are one of many in a sweep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
    /// Costs of operations in processor cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
}

/// Link over which a run measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Kind of link: `xdp`, `packet`, `pnet`, `sim`.
    pub backend: String,
    /// Names of the interfaces at both ends.
    pub interfaces: Vec<String>,
    /// Largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Wait style of the compute node's end: `busy`, `adaptive` or `sleep`.
    pub wait: String,
    /// Protection of the sessions' frames: `sealed` or `insecure`; empty if there are no sessions or the report lacks
    /// the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub frames: String,
}

/// Rate of operations: the median over trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Name of the measurement, for example `burst_read`.
    pub name: String,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of payload per second.
    pub bytes_per_s: f64,
    /// Rate of each trial, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<ThroughputTrial>,
}

/// Rate of operations in one trial, with the conditions of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputTrial {
    /// Cache-line round trip between the cores during the trial; see [`crate::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of payload per second.
    pub bytes_per_s: f64,
}

impl Throughput {
    /// Rate as the median of several trials; `None` without trials.
    pub fn from_trials(name: &str, trials: Vec<ThroughputTrial>) -> Option<Self> {
        let over = |value: fn(&ThroughputTrial) -> f64| median(&trials.iter().map(value).collect::<Vec<_>>());
        let (ops_per_s, bytes_per_s) = (over(|t| t.ops_per_s)?, over(|t| t.bytes_per_s)?);
        Some(Self { name: name.into(), ops_per_s, bytes_per_s, trials })
    }
}

impl Report {
    /// Makes a report without results.
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
        }
    }

    /// Adds the times of one measurement. Without effect if there are no samples, since then there is no minimum.
    pub fn add(&mut self, samples: &Samples) {
        self.results.extend(samples.summary());
    }

    /// Adds the rate of one measurement.
    pub fn add_throughput(&mut self, throughput: Throughput) {
        self.throughput.push(throughput);
    }

    /// Times of the measurement called `name`; `None` if it was not made.
    pub fn result(&self, name: &str) -> Option<&Latency> {
        self.results.iter().find(|r| r.name == name)
    }

    /// Rate of the measurement called `name`; `None` if it was not made.
    pub fn rate(&self, name: &str) -> Option<&Throughput> {
        self.throughput.iter().find(|t| t.name == name)
    }
}

#[cfg(test)]
mod fixture;
