//! What an agent's errors mean to who runs a command: what to tell, and what to exit with.

use std::path::Path;

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::Refused;
use cxloe_cn_core::engine::EngineError;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::api::ErrorCode;
use cxloe_wire::session::OpError;

/// What an operation of the agent at `socket` failed of; asks it for the reason why a memory node refuses it, if that
/// is so.
pub fn of_operation(error: ClientError, socket: &Path) -> Failure {
    of_operation_by("--socket", error, socket)
}

/// As [`of_operation`], for commands that name the agent's socket with `option`.
pub fn of_operation_by(option: &str, error: ClientError, socket: &Path) -> Failure {
    match refusal(&error, socket) {
        Some(message) => Failure::new(Exit::Refused, message),
        None => of_agent_by(option, error),
    }
}

/// Why the memory node that an operation failed of refuses this compute node, if it does.
fn refusal(error: &ClientError, socket: &Path) -> Option<String> {
    let ClientError::Engine(EngineError::NotConnected(mac)) = error else { return None };
    let sessions = client::sessions(socket).unwrap_or_default();
    let peer = mac.to_string();
    sessions.into_iter().find(|session| session.status.peer == peer).and_then(|session| session.refusal)
}

/// Whether an operation on a region that is attached fails of what may be there in a moment.
pub fn may_pass(error: &ClientError, socket: &Path) -> bool {
    let early = matches!(error, ClientError::Engine(EngineError::Unmapped(_) | EngineError::NotConnected(_)));
    early && refusal(error, socket).is_none()
}

/// What asking the agent failed of, for commands that name its socket with `--socket`.
pub fn of_agent(error: ClientError) -> Failure {
    of_agent_by("--socket", error)
}

/// What asking the agent failed of, for commands that name its socket with `option`.
pub fn of_agent_by(option: &str, error: ClientError) -> Failure {
    let exit = match &error {
        ClientError::NoAgent { .. } | ClientError::AgentGone(_) | ClientError::Silent { .. } => {
            Exit::Unreachable
        }
        ClientError::Refused { reason: Refused::Manager { code, .. }, .. } => match code {
            None => Exit::Unreachable,
            Some(ErrorCode::BadRequest) => Exit::Usage,
            Some(_) => Exit::Refused,
        },
        ClientError::Refused { .. } => Exit::Refused,
        ClientError::Protocol { .. } => Exit::Failed,
        ClientError::Engine(error) => match error {
            EngineError::Unmapped(_) | EngineError::Poisoned(_) => Exit::NotFound,
            EngineError::Unaligned(_) | EngineError::BadBurst(_) => Exit::Usage,
            EngineError::NotConnected(_) | EngineError::DeviceGone(_) => Exit::Unreachable,
            EngineError::DataLost(_)
            | EngineError::Draining(_)
            | EngineError::InReset(_)
            | EngineError::Mapped(_) => Exit::Refused,
            EngineError::Busy => Exit::Failed,
            EngineError::Failed { error, .. } => match error {
                OpError::Fault(_) | OpError::DataLost => Exit::Refused,
                OpError::SessionDead | OpError::Closed => Exit::Unreachable,
                OpError::FrameTooLarge => Exit::Failed,
            },
        },
    };
    match error {
        ClientError::NoAgent { .. } => Failure::new(exit, format!("{error} with {option}")),
        error => Failure::new(exit, error),
    }
}
