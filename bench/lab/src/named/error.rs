//! What went wrong with a lab, in words, and the exit code for it.

use crate::LabError;

/// Why a command on a lab failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct NamedError {
    /// 1: it failed; 2: wrong arguments; 3: no such lab, or something it needs is missing; 130: ended by a signal.
    pub code: u8,
    /// What went wrong, and what to do; may have several lines.
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
