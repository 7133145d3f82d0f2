//! Cost of a manager at scale: a fabric of thousands of nodes and a hundred thousand regions, made by the manager's own
//! state machine over its own store, and then served by a real `gmm serve` with every memory node connected.
//!
//! ```text
//!   populate: Manager + redb, in this process   -> time per allocation, size of the store, memory
//!   live:     gmm serve over that store         -> restart time; regions created over HTTP, answered by memory nodes
//! ```

mod live;
mod node;
mod populate;

use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use live::{Live, LiveError, measure};
pub use populate::{PopulateError, Populated, populate};

/// Size of the measured fabric.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Size {
    pub memory_nodes: u32,
    pub compute_nodes: u32,
    /// Number of regions; every fourth is interleaved over four memory nodes, the others lie on one.
    pub regions: u32,
}

/// Paths that a measurement uses.
#[derive(Debug, Clone)]
pub struct FabricFiles {
    /// File of the store, which must not exist.
    pub store: PathBuf,
    /// Path of the program `gmm`, which is started.
    pub gmm: PathBuf,
}

/// Times of one kind of operation, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Times {
    pub count: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

#[derive(Debug)]
struct TimeCollector(Histogram<u64>);

impl TimeCollector {
    fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are possible"))
    }

    fn add(&mut self, took: Duration) {
        // Recording fails only for times of centuries: the histogram resizes itself.
        let _ = self.0.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn times(&self) -> Times {
        let us = |ns: u64| ns as f64 / 1e3;
        Times {
            count: self.0.len(),
            p50_us: us(self.0.value_at_quantile(0.5)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            max_us: us(self.0.max()),
        }
    }
}

/// Resident memory of the process `pid`, in bytes; `None` if it cannot be read.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_microseconds_whatever_their_length() {
        let mut watch = TimeCollector::new();
        [2_000, 3_000, 5_000_000_000].into_iter().for_each(|ns| watch.add(Duration::from_nanos(ns)));
        let times = watch.times();
        assert_eq!((times.count, times.p50_us.round()), (3, 3.0));
        assert!((times.max_us - 5e6).abs() < 1e4, "{times:?}");
    }
}
