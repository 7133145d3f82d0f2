//! Reasons for which a run fails or is stopped.

use std::fmt::Display;

use cxloe_wire::frame::Mac;

use crate::operation::Operation;
use crate::trace::Name;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvariantViolation {
    /// The system has broken a rule; the text names it.
    #[error("{0}")]
    Rule(String),
    /// The system does not become idle although all faults have ended.
    #[error("no rest though nothing goes wrong any more: {0}")]
    NotIdle(String),
    /// The caller has stopped the run; no violation is known.
    #[error("stopped before the end")]
    Stopped,
    #[error("panic: {0}")]
    Panic(String),
}

impl InvariantViolation {
    /// Returns the violation of a rule by the operation `op` of compute node `cn`.
    pub(crate) fn at(cn: Mac, op: &Operation, why: impl Display) -> InvariantViolation {
        InvariantViolation::Rule(format!("{}, {op}: {why}", Name(cn)))
    }
}
