//! Why an evaluation, or a part of it, could not be made.

use cxloe_cn_core::engine::{EngineError, RouteError};
use cxloe_link::LinkError;
use cxloe_mn::control::StaticMapError;
use cxloe_mn::pool::PoolError;
use cxloe_port::port::PortError;

use crate::machine::MachineError;
use crate::measure::MeasureError;
use crate::report::ReportError;
use cxloe_lab::{Interrupted, LabError};

/// A section of the evaluation failed.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// The network.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A link in it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The line port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An operation whose parts were timed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The region's address.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The memory node's pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Who may use it.
    #[error(transparent)]
    Map(#[from] StaticMapError),
    /// A measurement.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A thread's core.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A picture.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A socket or a thread of a measurement.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Operations whose parts are timed do not end.
    #[error(
        "{left} of {of} operations have not ended within {seconds} s; the memory node's thread may have died"
    )]
    Stuck {
        /// How many are missing.
        left: usize,
        /// Of how many.
        of: usize,
        /// How long was waited.
        seconds: u64,
        /// What the compute node knows of its session.
        session: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl PaperError {
    /// For `map_err`: names what was tried.
    pub(super) fn io(what: &'static str) -> impl Fn(std::io::Error) -> PaperError {
        move |source| PaperError::Io { what, source }
    }

    /// Ctrl-C, if that is what it was.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            PaperError::Interrupted(i) | PaperError::Measure(MeasureError::Interrupted(i)) => Some(i),
            _ => None,
        }
    }
}
