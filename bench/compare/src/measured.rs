//! Results of one trial of one peer, before trials are combined.

use std::time::Duration;

use super::pattern::Pattern;

/// Result of one pattern in a trial.
#[derive(Debug, Clone)]
pub struct Measured {
    pub pattern: Pattern,
    /// Times or rate of the pattern.
    pub value: Value,
}

/// Result in one of several forms.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Time of each operation, in nanoseconds.
    Times(Vec<u64>),
    /// Times of a load, from the moments at which reads were due, and its rates.
    Load {
        times_ns: Vec<u64>,
        /// Rate at which reads became due.
        offered_per_s: f64,
        /// Rate at which they ended.
        per_s: f64,
    },
    /// Statistics that a tool printed, in nanoseconds: some tools print percentiles, some only a mean.
    Said {
        /// Median time, if printed.
        p50_ns: Option<f64>,
        /// 99th percentile, if printed.
        p99_ns: Option<f64>,
        /// Mean time, which every tool prints.
        mean_ns: f64,
        count: u64,
    },
    /// Rate over the whole pattern.
    Rate {
        ops_per_s: f64,
        /// Payload bytes per second.
        bytes_per_s: f64,
    },
}

impl Measured {
    /// Result with the time of each operation.
    pub fn times(pattern: Pattern, times_ns: Vec<u64>) -> Measured {
        Measured { pattern, value: Value::Times(times_ns) }
    }

    /// Result of a load.
    pub(crate) fn load(pattern: Pattern, times_ns: Vec<u64>, offered_per_s: f64, per_s: f64) -> Measured {
        Measured { pattern, value: Value::Load { times_ns, offered_per_s, per_s } }
    }

    /// Result as a rate: `bytes` moved in operations of the pattern's size, in the time `took`.
    pub fn rate(pattern: Pattern, bytes: u64, took: Duration) -> Measured {
        let bytes_per_s = bytes as f64 / took.as_secs_f64().max(1e-9);
        Measured::rate_said(pattern, bytes_per_s)
    }

    /// Result as a rate that a tool printed in bytes per second.
    pub(crate) fn rate_said(pattern: Pattern, bytes_per_s: f64) -> Measured {
        let ops_per_s = bytes_per_s / pattern.bytes() as f64;
        Measured { pattern, value: Value::Rate { ops_per_s, bytes_per_s } }
    }
}
