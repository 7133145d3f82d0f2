//! Conditions under which one of many results of a sweep was measured.

use serde::{Deserialize, Serialize};

/// Conditions of the latency and the rate called `name`, and counts of checked data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Name of a latency, of a rate, or of both.
    pub name: String,
    /// The access pattern, for example `gups`.
    pub pattern: String,
    /// Way of access to memory: `port`, `mapped`, `inline`, `local`.
    pub over: String,
    /// Size of the working set in bytes.
    pub working_set: u64,
    /// Share of the working set, 0 to 1, that was requested to be resident.
    pub resident: f64,
    /// Bytes that may be resident in effect.
    pub resident_bytes: u64,
    /// Number of operations that the result counts.
    pub operations: u64,
    /// Number of lines (words in `gups`, elements in `stream`) that were compared with the data written.
    pub checked: u64,
    /// Number of wrong lines, words or elements among those compared.
    pub wrong: u64,
    /// Kernel of STREAM, for example `triad`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Ratio of reads to writes, for example `3:1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<String>,
    /// Order of addresses: `sequential` or `random`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Offered operations per second; absent in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Number of operations that were due but not issued before the measurement ended; absent in a closed
    /// loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_begun: Option<u64>,
    /// Share of hot pages, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<f64>,
    /// Share of the accesses that go to hot pages, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heat: Option<f64>,
    /// Maximum number of operations in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
}
