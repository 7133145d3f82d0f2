//! Messages and exit codes for an agent's errors.

use std::path::Path;

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::RefusalReason;
use cxloe_cn_core::engine::EngineError;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::api::ErrorCode;
use cxloe_wire::session::OpError;

/// Converts the error of an operation of the agent at `socket`. If a memory node refuses this compute node, requests
/// the reason from the agent.
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

/// Reason why the memory node of a failed operation refuses this compute node; `None` if it does not refuse.
fn refusal(error: &ClientError, socket: &Path) -> Option<String> {
    let ClientError::Engine(EngineError::NotConnected(mac)) = error else { return None };
    let sessions = client::sessions(socket).unwrap_or_default();
    let peer = mac.to_string();
    sessions.into_iter().find(|session| session.status.peer == peer).and_then(|session| session.refusal)
}

/// Whether an operation on an attached region failed with an error that may be temporary.
pub fn is_transient(error: &ClientError, socket: &Path) -> bool {
    let early = matches!(error, ClientError::Engine(EngineError::Unmapped(_) | EngineError::NotConnected(_)));
    early && refusal(error, socket).is_none()
}

/// Converts the error of a request to the agent, for commands that name its socket with `--socket`.
pub fn of_agent(error: ClientError) -> Failure {
    of_agent_by("--socket", error)
}

/// Converts the error of a request to the agent, for commands that name its socket with `option`.
pub fn of_agent_by(option: &str, error: ClientError) -> Failure {
    let exit = match &error {
        ClientError::NoAgent { .. } | ClientError::AgentGone(_) | ClientError::Silent { .. } => {
            Exit::Unreachable
        }
        ClientError::Refused { reason: RefusalReason::Manager { code, .. }, .. } => match code {
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
