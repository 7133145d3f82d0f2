//! Errors in measuring programs.

use std::io;

use cxloe_lab::{Interrupted, LabError};

use super::MemoryBacking;

/// Failure to measure a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// Error of the network, or of a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed, for the message.
        what: String,
        source: io::Error,
    },
    /// A command that prepares or restores something failed.
    #[error("`{command}` ended with {status}: {said}")]
    Command {
        command: String,
        status: String,
        /// Last lines of the command's output.
        said: String,
    },
    /// A program cannot be measured because it fails in local memory as well.
    #[error("{program} does not run to its end in local memory: {reason}")]
    Unfit {
        program: &'static str,
        /// Text of the program's failure.
        reason: String,
    },
    /// A program's output differs from that in local memory.
    #[error(
        "wrong data: {program} printed something else with {way} than in local memory; its outputs are in {folder}"
    )]
    Wrong {
        program: &'static str,
        /// Way of holding memory in that run.
        way: MemoryBacking,
        /// Path of the folder with the differing outputs.
        folder: String,
    },
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl ProgramsError {
    /// Function for `map_err` that converts an I/O error of the operation `what`.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> ProgramsError {
        let what = what.into();
        move |source| ProgramsError::Io { what, source }
    }
}

/// Last lines of a text, joined into one line.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}
