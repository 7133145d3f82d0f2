//! Messages and exit codes for an agent's errors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{AttachedRegion, RefusalReason};
use cxloe_cn_core::engine::EngineError;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_fabric::api::ErrorCode;
use cxloe_wire::session::OpError;
use nix::unistd::geteuid;

/// Converts the error of a read, write or flush at the agent's `socket` to a message and an exit code. If a
/// memory node refused this compute node, the message is the reason that the agent has recorded.
pub fn of_operation(error: ClientError, socket: &Path) -> Failure {
    of_operation_by("--socket", error, socket)
}

/// Like [`of_operation`], but for commands that name the agent's socket with `option`.
pub fn of_operation_by(option: &str, error: ClientError, socket: &Path) -> Failure {
    match refusal(&error, socket) {
        Some(message) => Failure::new(Exit::Refused, message),
        None => of_agent_by(option, error),
    }
}

/// Reason for which this user or this compute node is denied the memory of a failed operation; `None` if the
/// operation failed for another reason.
fn refusal(error: &ClientError, socket: &Path) -> Option<String> {
    let mac = match error {
        ClientError::Engine(EngineError::NotConnected(mac)) => mac,
        // For a region of another user, the agent returns the same error as for an address without a region. But it
        // lists the region, so the reason can be found here.
        ClientError::Engine(EngineError::Unmapped(hpa)) => {
            let regions = client::regions(socket).unwrap_or_default();
            return not_yours(*hpa, &regions, limited_user(socket)?).map(|refused| refused.to_string());
        }
        _ => return None,
    };
    let sessions = client::sessions(socket).unwrap_or_default();
    let peer = mac.to_string();
    sessions.into_iter().find(|session| session.status.peer == peer).and_then(|session| session.refusal)
}

/// User id of this process, unless it is root or the user of the agent at `socket`, who may use all memory.
fn limited_user(socket: &Path) -> Option<u32> {
    let (own, agent) = (geteuid().as_raw(), fs::metadata(socket).ok()?.uid());
    (own != 0 && own != agent).then_some(own)
}

/// Returns the refusal for an access of the user `own` to `hpa`, if the region at `hpa` belongs to another user.
fn not_yours(hpa: u64, regions: &[AttachedRegion], own: u32) -> Option<RefusalReason> {
    let holds =
        |region: &&AttachedRegion| hpa.checked_sub(region.hpa).is_some_and(|at| at < region.addressable());
    let region = regions.iter().find(holds)?;
    let foreign = region.uid.is_some_and(|owner| owner != own);
    foreign.then(|| RefusalReason::NotYours { region: region.region.clone(), uid: own })
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
        ClientError::Refused { .. } | ClientError::NotPermitted { .. } => Exit::Refused,
        ClientError::Protocol { .. } => Exit::Failed,
        ClientError::Engine(error) => match error {
            EngineError::Unmapped(_) | EngineError::Poisoned(_) => Exit::NotFound,
            EngineError::Unaligned(_) | EngineError::BadBurst(_) => Exit::Usage,
            EngineError::NotConnected(_) | EngineError::DeviceGone(_) => Exit::Unreachable,
            EngineError::DataLost(_)
            | EngineError::Draining(_)
            | EngineError::InReset(_)
            | EngineError::Mapped(_)
            | EngineError::Sealed(_) => Exit::Refused,
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

#[cfg(test)]
mod tests {
    use super::super::target::tests::attached;
    use super::*;

    #[test]
    fn a_region_of_another_user_is_named() {
        let of = |name: &str, hpa: u64, uid| AttachedRegion { hpa, uid, ..attached(name) };
        let regions = [of("mine", 0, Some(7)), of("all", 4096, None), of("theirs", 8192, Some(8))];
        let refused = |hpa| not_yours(hpa, &regions, 7).map(|refused| refused.to_string());
        assert_eq!([0, 4095, 4096, 8191, 12_288].map(refused), [const { None }; 5]);
        for hpa in [8192, 12_287] {
            let refused = refused(hpa).unwrap();
            assert!(refused.contains("`theirs` belongs to another user than 7"), "{refused}");
        }
    }
}
