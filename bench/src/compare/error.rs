//! Why a peer could not be measured.

use std::io;
use std::time::Duration;

use cxloe_fabric::ClientError;
use cxloe_port::connect::ConnectError;
use cxloe_port::port::PortError;

use crate::machine::MachineError;
use cxloe_lab::{Interrupted, LabError};

/// A trial ended early.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The network, or a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A thread cannot be kept where it belongs.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nothing came.
    #[error("{what} did not happen within {limit:?}; its log: {log}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// The last lines of what the other end printed, if that is known.
        log: String,
    },
    /// An answer that its protocol does not have.
    #[error("the server answered {found:?} where {expected} was expected")]
    Protocol {
        /// What should have come.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// Other bytes than were written.
    #[error("wrong data: {pattern} found {found:#04x} at byte {at}, where {written:#04x} was written")]
    Wrong {
        /// The pattern that found it.
        pattern: &'static str,
        /// Offset in the memory.
        at: usize,
        /// What is there.
        found: u8,
        /// What was written.
        written: u8,
    },
    /// A tool failed.
    #[error("{program} ended with {status}: {said}")]
    Tool {
        /// The tool.
        program: String,
        /// Its status.
        status: String,
        /// The last lines of what it printed.
        said: String,
    },
    /// A tool printed something else than it usually does.
    #[error(
        "the output of {program} has no {missing}; this version of it may print something else. It printed: {said}"
    )]
    Output {
        /// The tool.
        program: &'static str,
        /// What was looked for.
        missing: &'static str,
        /// What it printed.
        said: String,
    },
    /// This system's compute node.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// This system's line port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// This system's manager.
    #[error(transparent)]
    Manager(#[from] ClientError),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl PeerError {
    /// For `map_err`: names what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> PeerError {
        let what = what.into();
        move |source| PeerError::Io { what, source }
    }
}

/// The last lines of a text, in one.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join(" | ")
}
