//! What a run has shown to be wrong.

use std::fmt::Display;

use cxloe_wire::frame::Mac;

use crate::operation::Operation;
use crate::trace::Name;

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Something that must not be was seen.
    #[error("{0}")]
    Rule(String),
    /// Things do not come to rest though nothing is in their way any more.
    #[error("no rest though nothing goes wrong any more: {0}")]
    Unrest(String),
    /// Whoever runs it did not want to wait for the end; nothing is known to be wrong.
    #[error("stopped before the end")]
    Stopped,
    /// The code under test, or the simulation, gave up.
    #[error("panic: {0}")]
    Panic(String),
}

impl Broken {
    /// What an operation of compute node `cn` has shown.
    pub(crate) fn at(cn: Mac, op: &Operation, why: impl Display) -> Broken {
        Broken::Rule(format!("{}, {op}: {why}", Name(cn)))
    }
}
