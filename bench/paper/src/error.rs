//! Errors of an evaluation and its parts.

use cxloe_cn_core::engine::{EngineError, RouteError};
use cxloe_link::LinkError;
use cxloe_mn::control::static_map::StaticMapFailure;
use cxloe_mn::pool::PoolError;
use cxloe_port::port::PortError;

use cxloe_lab::{Interrupted, LabError};
use cxloe_measure::MeasureError;
use cxloe_measure::machine::MachineError;
use cxloe_measure::report::ReportError;

/// Failure of a part of the evaluation.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// Error of the network.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Error of a link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Error of the line port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Error of an operation whose parts were timed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The region cannot be routed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Error of the memory node's pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Error of the pool's static map.
    #[error(transparent)]
    Map(#[from] StaticMapFailure),
    /// Error of a measurement.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A thread cannot be pinned.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A picture cannot be drawn.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Error of a socket or a thread of a measurement.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed, for the message.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Operations whose parts are timed did not end.
    #[error(
        "{left} of {of} operations have not ended within {seconds} s; the memory node's thread may have died"
    )]
    Stuck {
        /// Number of operations that did not end.
        left: usize,
        /// Number of operations in total.
        of: usize,
        /// Longest time for the operations, in seconds.
        seconds: u64,
        /// State of the compute node's session at that moment, as text.
        session: String,
    },
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl PaperError {
    /// Function for `map_err` that converts an I/O error of the operation `what`.
    pub(super) fn io(what: &'static str) -> impl Fn(std::io::Error) -> PaperError {
        move |source| PaperError::Io { what, source }
    }
}
