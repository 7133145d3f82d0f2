//! How a command ends when it does not end well: a message for people and an exit code for scripts.

use std::path::Path;

use cxloe_cn::client::{self, ClientError};
use cxloe_cn::engine::EngineError;
use cxloe_wire::session::OpError;

/// Failed for a reason without a code of its own.
const FAILED: u8 = 1;
/// Wrong arguments.
const USAGE: u8 = 2;
/// The agent or the memory node cannot be reached.
const UNREACHABLE: u8 = 3;
/// No such region or address.
const NOT_FOUND: u8 = 4;
/// Refused, or the data is lost.
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

    /// There is no such region or address.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: NOT_FOUND }
    }

    /// What an operation of the agent at `socket` failed of; asks it for the reason why a memory node refuses
    /// it, if that is so.
    pub fn of_operation(error: ClientError, socket: &Path) -> Self {
        let refusal = match &error {
            ClientError::Engine(EngineError::NotConnected(mac)) => {
                let sessions = client::sessions(socket).unwrap_or_default();
                let peer = mac.to_string();
                sessions.into_iter().find(|session| session.status.peer == peer).and_then(|s| s.refusal)
            }
            _ => None,
        };
        match refusal {
            Some(message) => Self { message, exit_code: REFUSED },
            None => error.into(),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit_code = match &error {
            ClientError::NoAgent { .. } | ClientError::AgentGone(_) | ClientError::Silent { .. } => {
                UNREACHABLE
            }
            ClientError::Refused { .. } => REFUSED,
            ClientError::Protocol { .. } => FAILED,
            ClientError::Engine(error) => match error {
                EngineError::Unmapped(_) => NOT_FOUND,
                EngineError::Unaligned(_) | EngineError::BadBurst(_) => USAGE,
                EngineError::NotConnected(_) => UNREACHABLE,
                EngineError::DataLost(_) => REFUSED,
                EngineError::Busy => FAILED,
                EngineError::Failed { error, .. } => match error {
                    OpError::Fault(_) | OpError::DataLost => REFUSED,
                    OpError::SessionDead | OpError::Closed => UNREACHABLE,
                    OpError::FrameTooLarge => FAILED,
                },
            },
        };
        Self { message: error.to_string(), exit_code }
    }
}
