//! How a command ends when it does not end well: a message for people and an exit code for scripts.

use cxloe_gmm::ClientError;
use cxloe_gmm::api::ErrorCode;

/// Failed for a reason without a code of its own.
const FAILED: u8 = 1;
/// Wrong arguments.
const USAGE: u8 = 2;
/// The manager cannot be reached.
const UNREACHABLE: u8 = 3;
/// No such region or node.
const NOT_FOUND: u8 = 4;
/// The manager refused for the state things are in.
const REFUSED: u8 = 5;

/// A command that failed.
#[derive(Debug)]
pub struct Failure {
    /// What to tell.
    pub message: String,
    /// What to exit with.
    pub exit_code: u8,
}

impl Failure {
    /// Failed for a reason without a code of its own.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: FAILED }
    }

    /// The arguments do not work together.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: USAGE }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit_code = match &error {
            ClientError::BadUrl { .. } => USAGE,
            ClientError::Unreachable { .. } => UNREACHABLE,
            ClientError::Protocol { .. } => FAILED,
            ClientError::Refused { body, .. } => match body.code {
                ErrorCode::NotFound => NOT_FOUND,
                ErrorCode::BadRequest => USAGE,
                ErrorCode::NameInUse
                | ErrorCode::WrongState
                | ErrorCode::RegionInUse
                | ErrorCode::LimitReached
                | ErrorCode::NoSpace => REFUSED,
                _ => FAILED,
            },
        };
        Self { message: error.to_string(), exit_code }
    }
}
