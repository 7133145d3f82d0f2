//! Failure of a command: an error message, and an exit code for scripts.

use std::process::ExitCode;

use crate::to_stderr;
use cxloe_fabric::ClientError;
use cxloe_fabric::api::ErrorCode;

/// Exit codes of commands that fail, the same in every program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Any reason without a code of its own.
    Failed = 1,
    /// Arguments that are invalid or do not work together.
    Usage = 2,
    /// The manager or node to ask cannot be reached.
    Unreachable = 3,
    /// No region, node or address has the name given.
    NotFound = 4,
    /// Refused because of the present state of the fabric or of the node, or because data is lost.
    Refused = 5,
}

#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub exit: Exit,
}

impl Failure {
    pub fn failed(message: impl ToString) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl ToString) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Ends the command with exit code `exit` instead of 1.
    pub fn new(exit: Exit, message: impl ToString) -> Self {
        Self { message: message.to_string(), exit }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::BadUrl { .. } => Exit::Usage,
            ClientError::Unreachable { .. }
            | ClientError::Unanswered { .. }
            | ClientError::Tls { .. }
            | ClientError::Plain { .. } => Exit::Unreachable,
            ClientError::NotPermitted { .. } => Exit::Refused,
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

/// Prints the failure to standard error, if there is one, and returns the exit code of `program`.
pub fn finish(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, exit }) => {
            to_stderr!("{program}: {message}");
            ExitCode::from(exit as u8)
        }
    }
}
