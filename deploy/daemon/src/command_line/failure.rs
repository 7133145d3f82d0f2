//! How a command ends when it does not end well: a message for people and an exit code for scripts.

use std::process::ExitCode;

use crate::to_stderr;
use cxloe_fabric::ClientError;
use cxloe_fabric::api::ErrorCode;

/// What a command exits with when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Failed for a reason without a code of its own.
    Failed = 1,
    /// Wrong arguments.
    Usage = 2,
    /// The manager or node to ask cannot be reached.
    Unreachable = 3,
    /// No such region, node or address.
    NotFound = 4,
    /// Refused for the state things are in, or the data is lost.
    Refused = 5,
}

/// A command that failed.
#[derive(Debug)]
pub struct Failure {
    /// What to tell.
    pub message: String,
    /// What to exit with.
    pub exit: Exit,
}

impl Failure {
    /// Failed for a reason without a code of its own.
    pub fn failed(message: impl ToString) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// The arguments do not work together.
    pub fn usage(message: impl ToString) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Failed for this reason.
    pub fn new(exit: Exit, message: impl ToString) -> Self {
        Self { message: message.to_string(), exit }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::BadUrl { .. } => Exit::Usage,
            ClientError::Unreachable { .. } => Exit::Unreachable,
            ClientError::Protocol { .. } => Exit::Failed,
            ClientError::Refused { body, .. } => match body.code {
                ErrorCode::NotFound => Exit::NotFound,
                ErrorCode::BadRequest => Exit::Usage,
                ErrorCode::NameInUse
                | ErrorCode::WrongState
                | ErrorCode::RegionInUse
                | ErrorCode::OverQuota
                | ErrorCode::StaticFabric
                | ErrorCode::NodeRefused
                | ErrorCode::LimitReached
                | ErrorCode::StaleManager
                | ErrorCode::StoreFull
                | ErrorCode::Unauthenticated
                | ErrorCode::Forbidden
                | ErrorCode::NoSpace => Exit::Refused,
                _ => Exit::Failed,
            },
        };
        Self::new(exit, error)
    }
}

/// What `program` exits with; tells on standard error why it failed, if it did.
pub fn finish(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, exit }) => {
            to_stderr!("{program}: {message}");
            ExitCode::from(exit as u8)
        }
    }
}
