//! Errors of the evaluation, each with its remedy where the failed part has not given one.

use cxloe_cn_core::engine::{EngineError, RouteError};
use cxloe_link::LinkError;
use cxloe_mn::control::static_map::StaticMapFailure;
use cxloe_mn::pool::PoolError;
use cxloe_port::port::PortError;

use cxloe_lab::{Interrupted, LabError};
use cxloe_measure::MeasureError;
use cxloe_measure::machine::MachineError;
use cxloe_measure::report::ReportError;

#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Port(#[from] PortError),
    /// Error of the engine in an operation whose parts were timed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Map(#[from] StaticMapFailure),
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A socket or a thread of a measurement failed.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    /// Operations whose parts were timed did not end within the time limit.
    #[error(
        "{left} of {of} operations have not ended within {seconds} s; the memory node's thread may have died"
    )]
    Stuck {
        left: usize,
        of: usize,
        /// Time limit for the operations, in seconds.
        seconds: u64,
        /// State of the compute node's session when the limit passed, as text.
        session: String,
    },
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl PaperError {
    /// Returns a function for `map_err` that adds the name of the operation, `what`, to an I/O error.
    pub(super) fn io(what: &'static str) -> impl Fn(std::io::Error) -> PaperError {
        move |source| PaperError::Io { what, source }
    }
}
