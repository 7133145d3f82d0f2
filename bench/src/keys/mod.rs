//! Cost of keys under attack and in daily use: handshakes during a flood of forged ones, rekeying under load, and
//! revocation.
//!
//! ```text
//!   flooder: forged Hellos at a rate --+
//!   a session that reads lines      ---+--- cable --- mn-server with a key
//!   a node that connects            ---+
//! ```
//!
//! The cost of a flood's frames alone is no cost of the handshake: every measurement alternates with the same flood to
//! an unused address.

pub mod connect;
pub mod flood;
pub mod rekey;
pub mod replacement;
pub mod revocation;
pub mod site;

use cxloe_lab::{Interrupted, LabError};
use cxloe_link::LinkError;
use cxloe_port::port::PortError;
use serde::Serialize;

/// Failure of a measurement of keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Error of the network, or of a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Port(#[from] PortError),
    /// Error of a file, or of a thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Key(#[from] cxloe_link::keys::KeyFileError),
    #[error("a forged Hello could not be made")]
    NoHello,
    #[error("a thread of the measurement panicked")]
    Thread,
    #[error(transparent)]
    Route(#[from] cxloe_cn_core::engine::RouteError),
    #[error("mn-server has not come up: {0}")]
    NotServing(String),
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Count and percentiles of times, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    pub count: usize,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Times {
    /// Summarises `ns`, which may be in any order; all fields are 0 if it is empty.
    pub fn of(mut ns: Vec<u64>) -> Times {
        ns.sort_unstable();
        let at = |share: f64| {
            let index = ((ns.len() as f64 * share) as usize).min(ns.len().saturating_sub(1));
            ns.get(index).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        Times { count: ns.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_a_sorted_list() {
        let times = Times::of((1..=1000).rev().map(|us| us * 1000).collect());
        assert_eq!((times.count, times.p50_us, times.p99_us, times.max_us), (1000, 501.0, 991.0, 1000.0));
        assert_eq!(Times::of(Vec::new()), Times::default());
    }
}
