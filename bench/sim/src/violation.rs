//! Reasons for which a run fails.

use std::fmt::Display;

use cxloe_wire::frame::Mac;

use crate::operation::Operation;
use crate::trace::Name;

/// Reason that a run failed or was stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvariantViolation {
    /// A rule that the system has to keep is violated; the text names it.
    #[error("{0}")]
    Rule(String),
    /// The system does not become idle although all faults have ended.
    #[error("no rest though nothing goes wrong any more: {0}")]
    NotIdle(String),
    /// The caller stopped the run; no violation is known.
    #[error("stopped before the end")]
    Stopped,
    /// The code under test, or the simulation, panicked.
    #[error("panic: {0}")]
    Panic(String),
}

impl InvariantViolation {
    /// A violation by the operation `op` of compute node `cn`.
    pub(crate) fn at(cn: Mac, op: &Operation, why: impl Display) -> InvariantViolation {
        InvariantViolation::Rule(format!("{}, {op}: {why}", Name(cn)))
    }
}
