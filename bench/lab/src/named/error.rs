//! Errors of commands on a lab, with exit codes.

use crate::LabError;

/// Failure of a command on a lab, with the exit code that the command ends with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct NamedError {
    /// Exit code. 1: failure; 2: wrong arguments; 3: no such lab, or a requirement is missing; 130: ended by a signal.
    pub code: u8,
    /// Cause and remedy, possibly of several lines.
    pub message: String,
}

impl NamedError {
    pub(super) fn failed(message: impl Into<String>) -> NamedError {
        NamedError { code: 1, message: message.into() }
    }

    pub(super) fn usage(message: impl Into<String>) -> NamedError {
        NamedError { code: 2, message: message.into() }
    }

    pub(super) fn missing(message: impl Into<String>) -> NamedError {
        NamedError { code: 3, message: message.into() }
    }
}

impl From<LabError> for NamedError {
    fn from(error: LabError) -> NamedError {
        NamedError::failed(error.to_string())
    }
}
