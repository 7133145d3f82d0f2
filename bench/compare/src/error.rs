//! Errors in a trial of a peer.

use std::io;
use std::time::Duration;

use cxloe_fabric::ClientError;
use cxloe_port::connect::ConnectError;
use cxloe_port::port::PortError;

use cxloe_lab::{Interrupted, LabError};
use cxloe_measure::machine::MachineError;

/// Failure of a trial.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Error of the test network (lab), or of a process started in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A thread cannot be pinned to its core.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed, for the message.
        what: String,
        source: io::Error,
    },
    #[error("{what} did not happen within {limit:?}; its log: {log}")]
    Timeout {
        /// Answer that did not arrive.
        what: String,
        /// Maximum wait for the answer.
        limit: Duration,
        /// Last lines of the far end's output; empty if there is none.
        log: String,
    },
    /// An answer violates the peer's protocol.
    #[error("the server answered {found:?} where {expected} was expected")]
    Protocol { expected: &'static str, found: String },
    #[error("wrong data: {pattern} found {found:#04x} at byte {at}, where {written:#04x} was written")]
    Wrong {
        /// Name of the pattern that found the difference.
        pattern: &'static str,
        /// Offset of the byte in the memory.
        at: usize,
        found: u8,
        written: u8,
    },
    #[error("{program} ended with {status}: {said}")]
    Tool {
        program: String,
        status: String,
        /// Last lines of the tool's output.
        said: String,
    },
    #[error(
        "the output of {program} has no {missing}; this version of it may print something else. It printed: {said}"
    )]
    Output {
        program: &'static str,
        /// Part of the output that is missing.
        missing: &'static str,
        said: String,
    },
    /// Error of this system's compute node.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Error of this system's line port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Error of this system's manager.
    #[error(transparent)]
    Manager(#[from] ClientError),
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl PeerError {
    /// Function for `map_err` that converts an I/O error of the operation `what`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> PeerError {
        let what = what.into();
        move |source| PeerError::Io { what, source }
    }
}

/// Last lines of a text, joined into one line.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join(" | ")
}
