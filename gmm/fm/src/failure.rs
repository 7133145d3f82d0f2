//! What `gmm fm` exits with when an endpoint cannot be asked or refuses, as the other commands do for the same reasons.

use super::client::FmClientError;
use super::header::ReturnCode;
use crate::command_line::{Exit, Failure};

impl From<FmClientError> for Failure {
    fn from(error: FmClientError) -> Self {
        let exit = match &error {
            FmClientError::Unreachable { .. } => Exit::Unreachable,
            FmClientError::Broken { .. } | FmClientError::Protocol { .. } => Exit::Failed,
            FmClientError::Refused { code, .. } => match code {
                ReturnCode::Busy | ReturnCode::RetryRequired | ReturnCode::InvalidInput => Exit::Refused,
                ReturnCode::InvalidPayloadLength => Exit::Usage,
                _ => Exit::Failed,
            },
        };
        Self::new(exit, error)
    }
}
