//! What keys cost where somebody means harm, and in daily use: handshakes in a flood of forged ones, new keys under load,
//! and a key that is taken back.
//!
//! ```text
//!   flooder: forged Hellos at a rate --+
//!   a session that reads lines      ---+--- cable --- mn-server with a key
//!   a node that connects            ---+
//! ```
//!
//! What a flood does by its mere frames is not the handshake's doing: every measurement takes turns with the same flood to
//! an address that nobody has.

pub mod connect;
pub mod flood;
pub mod rekey;
pub mod revocation;
pub mod site;

use cxloe_lab::{Interrupted, LabError};
use cxloe_link::LinkError;
use cxloe_port::port::PortError;
use serde::Serialize;

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The network, or a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An operation failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A file, or a thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A key cannot be made.
    #[error(transparent)]
    Key(#[from] cxloe_link::keys::KeyFileError),
    /// A forged Hello could not be made.
    #[error("a forged Hello could not be made")]
    NoHello,
    /// A thread of the measurement panicked.
    #[error("a thread of the measurement panicked")]
    Thread,
    /// A route of the region.
    #[error(transparent)]
    Route(#[from] cxloe_cn_core::engine::RouteError),
    /// The memory node has not come up.
    #[error("mn-server has not come up: {0}")]
    NotServing(String),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Times in microseconds: how many, and how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many were taken.
    pub count: usize,
    /// The median.
    pub p50_us: f64,
    /// 99 of 100 are shorter.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Times {
    /// Of these, in nanoseconds.
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
