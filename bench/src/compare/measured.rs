//! What one trial of one peer brings, before trials are put together.

use std::time::Duration;

use super::pattern::Pattern;

/// A pattern and what it took.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The pattern.
    pub pattern: Pattern,
    /// What it took.
    pub value: Value,
}

/// The forms in which peers give figures.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Each operation's time, in nanoseconds.
    Times(Vec<u64>),
    /// What a tool says of its operations, in nanoseconds: some give percentiles, some a mean only.
    Said {
        /// Median.
        p50_ns: Option<f64>,
        /// 99 % took no longer.
        p99_ns: Option<f64>,
        /// Mean.
        mean_ns: f64,
        /// Operations.
        count: u64,
    },
    /// A rate.
    Rate {
        /// Operations per second.
        ops_per_s: f64,
        /// Bytes per second.
        bytes_per_s: f64,
    },
}

impl Measured {
    /// Times of single operations.
    pub fn times(pattern: Pattern, times_ns: Vec<u64>) -> Measured {
        Measured { pattern, value: Value::Times(times_ns) }
    }

    /// A rate, from bytes moved in operations of the pattern's size, and the time they took.
    pub fn rate(pattern: Pattern, bytes: u64, took: Duration) -> Measured {
        let bytes_per_s = bytes as f64 / took.as_secs_f64().max(1e-9);
        Measured::rate_said(pattern, bytes_per_s)
    }

    /// A rate that a tool gave in bytes per second.
    pub fn rate_said(pattern: Pattern, bytes_per_s: f64) -> Measured {
        let ops_per_s = bytes_per_s / pattern.bytes() as f64;
        Measured { pattern, value: Value::Rate { ops_per_s, bytes_per_s } }
    }
}
