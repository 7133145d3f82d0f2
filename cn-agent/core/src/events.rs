//! Log messages for the engine's events, with reason and remedy for a session that is refused.

use alloc::format;
use alloc::string::String;
use cxloe_wire::frame::{HelloStatus, PROTOCOL_VERSION};
use cxloe_wire::session::SessionEvent;

use crate::engine::EngineEvent;

/// Bytes of a frame that an MTU does not count: two addresses and the EtherType.
const ETHERNET_HEADER: usize = 14;

/// Text for `event` if it reports that a memory node refuses the session: the reason and the remedy.
pub fn refusal(event: &EngineEvent) -> Option<String> {
    if let EngineEvent::Session { mac, event: SessionEvent::Barred } = event {
        return Some(format!(
            "the manager has revoked the key of memory node {mac}: no session with it until it has joined again"
        ));
    }
    let EngineEvent::Session { mac, event: SessionEvent::Refused { status, version_min, version_max } } =
        event
    else {
        return None;
    };
    Some(match status {
        HelloStatus::VersionMismatch if (*version_min..=*version_max).contains(&PROTOCOL_VERSION) => format!(
            "memory node {mac} uses no key, although one is registered for it: no session is opened without it; remove --insecure there, or upgrade it"
        ),
        HelloStatus::VersionMismatch => format!(
            "memory node {mac} supports protocol versions {version_min} to {version_max}, this program {PROTOCOL_VERSION}; upgrade the older of the two"
        ),
        HelloStatus::InstanceConflict => format!(
            "memory node {mac} already serves another running agent with our CN id (MAC address); end that agent, or give one of the two interfaces another MAC address"
        ),
        HelloStatus::NotAllowed => {
            format!(
                "memory node {mac} has no memory for this CN, or has another key for it; create a region for it with `gmm \
                 create-region`, or join again"
            )
        }
        HelloStatus::NoResources => {
            format!("memory node {mac} has no room for another session; raise --max-sessions there")
        }
        HelloStatus::Integrity => format!(
            "memory node {mac} protects frames in another way; give both ends the same key file, or neither one"
        ),
        HelloStatus::Shard => format!(
            "memory node {mac} takes no sessions of several queues; upgrade it, or leave --queues out"
        ),
        HelloStatus::KeyNeeded => format!(
            "memory node {mac} has a key for this CN and refuses sessions without it; start this node with --node-key, and \
             without --insecure"
        ),
        HelloStatus::KeyWithdrawn => format!(
            "memory node {mac} takes the key of this CN no more: it was revoked; join again with a new token"
        ),
        HelloStatus::Draining => format!("memory node {mac} is about to stop and takes no new session"),
        HelloStatus::Ok | HelloStatus::Cookie | HelloStatus::Unknown(_) => {
            format!(
                "memory node {mac} refuses the session with status {status:?}; upgrade the older of the two"
            )
        }
    })
}

/// Whether a refusal may pass by itself. A memory node that stops in an orderly way announces the stop, and soon either
/// returns or ends the session. The manager sends this node's key and grants of memory to both nodes at about the same
/// time, so the memory node may still lack them.
pub fn may_pass(event: &SessionEvent) -> bool {
    let SessionEvent::Refused { status, .. } = event else { return false };
    matches!(status, HelloStatus::Draining | HelloStatus::NotAllowed)
}

/// Text for a path that carries frames of `used` bytes but loses frames of `lost` bytes, although the links at both
/// ends carry frames of `lost` bytes.
pub fn narrow_path(lost: usize, used: usize) -> String {
    format!(
        "the path loses frames of {lost} bytes, which both ends send: a switch or bridge between them has an MTU below {}. \
         Frames of {used} bytes are used until it carries longer ones",
        lost.saturating_sub(ETHERNET_HEADER)
    )
}

/// Logs a refusal as an error, once it has lasted too long to pass by itself.
pub fn log_lasting(event: &EngineEvent) {
    if let (EngineEvent::Session { mac, .. }, Some(why)) = (event, refusal(event)) {
        tracing::error!(peer = %mac, "{why}");
    }
}

/// Logs `event` at the level of its severity.
pub fn log(event: &EngineEvent) {
    match event {
        EngineEvent::Session { mac, event: session } => match session {
            SessionEvent::Opened { incarnation, resumed } => {
                tracing::info!(peer = %mac, incarnation = format_args!("{incarnation:#x}"), resumed, "session open");
            }
            SessionEvent::DataLost { before, now } => tracing::error!(
                peer = %mac, before = format_args!("{before:#x}"), now = format_args!("{now:#x}"),
                "the memory node has lost its content: data of the regions on it is gone; `gmm reset-region NAME` gives a \
                 region back, with zeros there"
            ),
            SessionEvent::Suspect => {
                tracing::warn!(peer = %mac, "memory node silent; offering it a new session");
            }
            SessionEvent::Dead => {
                tracing::error!(peer = %mac, "memory node has not answered within the limit; operations on it fail until it is back");
            }
            SessionEvent::PeerLeft => tracing::warn!(peer = %mac, "memory node is stopping"),
            SessionEvent::Barred => {
                if let Some(why) = refusal(event) {
                    tracing::error!(peer = %mac, "{why}");
                }
            }
            SessionEvent::Refused { status, .. } => {
                if let Some(why) = refusal(event) {
                    if may_pass(session) {
                        tracing::warn!(peer = %mac, cause = ?status, "{why}");
                        return;
                    }
                    tracing::error!(peer = %mac, cause = ?status, "{why}");
                }
            }
            SessionEvent::Closed => tracing::info!(peer = %mac, "session closed"),
            SessionEvent::PathNarrow { lost, used } => {
                tracing::warn!(peer = %mac, "{}", narrow_path(*lost, *used))
            }
            SessionEvent::PathWide => {
                tracing::info!(peer = %mac, "the path carries the frames that it lost before: using them again");
            }
        },
        // Not an error: the event is repeated until the manager has decided, and that decision is logged.
        EngineEvent::LegSilent { mac, epoch, .. } => {
            tracing::debug!(peer = %mac, epoch, "a leg of a mirrored region is silent: asking the manager");
        }
        EngineEvent::LegFilled { mac, epoch, .. } => {
            tracing::debug!(peer = %mac, epoch, "a leg of a mirrored region is filled: reporting it");
        }
        EngineEvent::WriteBackRefused { hpa, error } => {
            tracing::error!(hpa = format_args!("{hpa:#x}"), %error, "a modified line could not be written back");
        }
    }
}
