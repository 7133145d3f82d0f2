//! What a run found out, in the forms people and programs read.
//!
//! A measurement records its times in [`Samples`], trial by trial, and its rates as [`Throughput`]. Both go into a
//! [`Report`], which computes the ratios to the limits measured beside them ([`Report::add_ratio`]). From there:
//! JSON ([`Report::write_json`], and back with [`Report::read_json`]), CSV ([`Report::csv`]), tables for a terminal
//! ([`Report::tables`]), one HTML page with pictures ([`Report::html`]), and the full histograms as an HdrHistogram log
//! ([`write_histogram_log`]).

pub(crate) mod chart;
mod conditions;
mod cost;
pub(crate) mod csv;
mod curves;
mod error;
mod expression;
pub(crate) mod html;
mod json;
mod labels;
mod log;
mod pattern_page;
mod plot;
mod ratio;
mod samples;
pub(crate) mod simulation;
pub(crate) mod table;
pub(crate) mod units;

use serde::{Deserialize, Serialize};

pub use conditions::Conditions;
pub use cost::Cost;
pub use error::ReportError;
pub(crate) use json::json_text;
pub use log::write_histogram_log;
pub use plot::{Curve, Plot, Scale, Unit};
pub use ratio::{Class, Ratio, Statistic};
pub use samples::{Latency, LatencyTrial, Samples};
pub use table::comparison;

use crate::machine::{Machine, median};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// The results of one run on one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form; [`SCHEMA`].
    pub schema: u32,
    /// Where it ran.
    pub machine: Machine,
    /// What the frames went over.
    pub link: Link,
    /// Times, in nanoseconds.
    pub results: Vec<Latency>,
    /// Rates.
    pub throughput: Vec<Throughput>,
    /// Results over the limits they are held against.
    pub ratios: Vec<Ratio>,
    /// Of results that are one of many in a sweep: under which conditions each was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Conditions>,
    /// Curves through such results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
    /// What operations cost in processor cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
}

/// The link of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// How frames enter and leave the machine: `xdp`, `packet`, `pnet`, `sim`.
    pub backend: String,
    /// The interfaces at its ends.
    pub interfaces: Vec<String>,
    /// Largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Waiting style: `busy`, `adaptive` or `sleep`.
    pub wait: String,
    /// How frames of the sessions measured were protected: `sealed` or `insecure`; empty where there were none, and in
    /// reports of earlier releases.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub frames: String,
}

/// A rate: the median of its trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// What was done, for example `burst_read`.
    pub name: String,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of payload per second.
    pub bytes_per_s: f64,
    /// The single trials, when there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<ThroughputTrial>,
}

/// One trial of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThroughputTrial {
    /// How far apart the cores were just then; see [`crate::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
    /// Operations (or frames) per second.
    pub ops_per_s: f64,
    /// Bytes of payload per second.
    pub bytes_per_s: f64,
}

impl Throughput {
    /// A rate from its trials; `None` when there are none.
    pub fn from_trials(name: &str, trials: Vec<ThroughputTrial>) -> Option<Self> {
        let over = |value: fn(&ThroughputTrial) -> f64| median(&trials.iter().map(value).collect::<Vec<_>>());
        let (ops_per_s, bytes_per_s) = (over(|t| t.ops_per_s)?, over(|t| t.bytes_per_s)?);
        Some(Self { name: name.into(), ops_per_s, bytes_per_s, trials })
    }
}

impl Report {
    /// A report without results.
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

    /// Adds the times of one measurement. A measurement without a single sample adds nothing: it has no minimum.
    pub fn add(&mut self, samples: &Samples) {
        self.results.extend(samples.summary());
    }

    /// Adds a rate.
    pub fn add_throughput(&mut self, throughput: Throughput) {
        self.throughput.push(throughput);
    }

    /// The times of the measurement called `name`.
    pub fn result(&self, name: &str) -> Option<&Latency> {
        self.results.iter().find(|r| r.name == name)
    }

    /// The rate called `name`.
    pub fn rate(&self, name: &str) -> Option<&Throughput> {
        self.throughput.iter().find(|t| t.name == name)
    }
}

#[cfg(test)]
mod fixture;
