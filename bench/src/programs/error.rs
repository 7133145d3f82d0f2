//! Why programs could not be measured.

use std::io;

use cxloe_lab::{Interrupted, LabError};

use super::Way;

/// Measuring programs ended early.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// The network, or a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A command that readies or restores something failed.
    #[error("`{command}` ended with {status}: {said}")]
    Command {
        /// The command.
        command: String,
        /// Its status.
        status: String,
        /// The last lines of what it printed.
        said: String,
    },
    /// A program cannot be measured because it does not work in local memory either.
    #[error("{program} does not run to its end in local memory: {reason}")]
    Unfit {
        /// The program.
        program: &'static str,
        /// How it ended.
        reason: String,
    },
    /// A program printed something else than in local memory.
    #[error(
        "wrong data: {program} printed something else with {way} than in local memory; its outputs are in {folder}"
    )]
    Wrong {
        /// The program.
        program: &'static str,
        /// Where its memory was.
        way: Way,
        /// Where the outputs are kept.
        folder: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl ProgramsError {
    /// For `map_err`: names what was tried.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> ProgramsError {
        let what = what.into();
        move |source| ProgramsError::Io { what, source }
    }
}

/// The last lines of a text, in one.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}
