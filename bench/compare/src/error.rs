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
    /// Error of the network, or of a process in it.
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
        /// Error of the operating system.
        source: io::Error,
    },
    /// An answer did not arrive in time.
    #[error("{what} did not happen within {limit:?}; its log: {log}")]
    Timeout {
        /// Answer that did not arrive.
        what: String,
        /// Longest wait for the answer.
        limit: Duration,
        /// Last lines of the far end's output; empty if there is none.
        log: String,
    },
    /// An answer violates the peer's protocol.
    #[error("the server answered {found:?} where {expected} was expected")]
    Protocol {
        /// Description of the expected answer.
        expected: &'static str,
        /// Text of the answer received.
        found: String,
    },
    /// Data read differ from data written.
    #[error("wrong data: {pattern} found {found:#04x} at byte {at}, where {written:#04x} was written")]
    Wrong {
        /// Name of the pattern that found the difference.
        pattern: &'static str,
        /// Offset of the byte in the memory.
        at: usize,
        /// Byte that was read.
        found: u8,
        /// Byte that was written.
        written: u8,
    },
    /// A tool failed.
    #[error("{program} ended with {status}: {said}")]
    Tool {
        /// Name of the tool that failed.
        program: String,
        /// Exit status of the tool, as text.
        status: String,
        /// Last lines of the tool's output.
        said: String,
    },
    /// A tool's output has another format than expected.
    #[error(
        "the output of {program} has no {missing}; this version of it may print something else. It printed: {said}"
    )]
    Output {
        /// Name of the tool whose output was parsed.
        program: &'static str,
        /// Part of the output that is missing.
        missing: &'static str,
        /// Whole output of the tool.
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
