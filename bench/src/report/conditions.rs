//! Under which conditions a result was measured, for those that are one of many in a sweep.

use serde::{Deserialize, Serialize};

/// The conditions of the time and the rate called `name`, and what was checked meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Name of a time, of a rate, or of both.
    pub name: String,
    /// The access pattern, for example `gups`.
    pub pattern: String,
    /// How memory was reached: `port`, `mapped`, `inline`, `local`.
    pub over: String,
    /// Bytes that were gone through.
    pub working_set: u64,
    /// Share of them, 0 to 1, that was to be resident.
    pub resident: f64,
    /// Bytes that might be.
    pub resident_bytes: u64,
    /// Operations that were counted.
    pub operations: u64,
    /// Lines (words in `gups`, elements in `stream`) compared with what had been written.
    pub checked: u64,
    /// Of these, wrong ones.
    pub wrong: u64,
    /// What was done: a kernel of STREAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Reads to writes, for example `3:1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<String>,
    /// `sequential` or `random`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Operations per second that were asked for; absent where the next one waited for one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Operations asked for and not begun before the measurement ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_begun: Option<u64>,
    /// Share of the pages that were hot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<f64>,
    /// Share of the accesses that went to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heat: Option<f64>,
    /// Operations under way at once, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
}
