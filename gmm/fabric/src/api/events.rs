//! Bodies about the event log: which events are wanted, and a part of the log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Owner;
use crate::model::{Event, Name};

/// Query of `GET /v1/events` and `GET /v1/events/stream`: where in the log to begin, and which events are wanted. An event
/// is wanted when it fits all that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Number of the last event the reader has.
    #[serde(default)]
    pub after: u64,
    /// At most this many; the server has a limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// How long to wait for the first, in milliseconds; the server waits at most a minute.
    #[serde(default)]
    pub wait_ms: u64,
    /// Only events from this time on: milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Only events of these kinds, separated by commas: `region_changed,region_destroyed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only events about this node: the name of a memory node, or the name or CN id of a compute node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Owner>,
    /// Only events that this one asked for, as the events say it: `token 1a2b3c4d`, `uid 0`, `memory node mn0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Only events about this region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
}

/// A part of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    /// Number of the oldest event still kept. Above `after + 1`: those in between are gone.
    pub oldest: u64,
    /// Number of the newest event.
    pub newest: u64,
    /// Every event up to this number was looked at: what to ask for next comes after it.
    pub through: u64,
    /// The events asked for, oldest first.
    pub events: Vec<Event>,
}

/// In the stream of events, in place of events that are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsGap {
    /// Number of the first event that is gone.
    pub first: u64,
    /// Number of the last event that is gone.
    pub last: u64,
}
