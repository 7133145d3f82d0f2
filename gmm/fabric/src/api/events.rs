//! Bodies of requests for the event log: filters, and a part of the log.

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::model::{Event, Name};

/// Query of `GET /v1/events` and `GET /v1/events/stream`: the position in the log, and filters. An event is selected if
/// it passes every given filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Number of the last event that the reader has received; 0: none.
    #[serde(default)]
    pub after: u64,
    /// Maximum number of events to return; the server has a limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Maximum wait for the first event, in milliseconds; the server waits at most a minute.
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
    /// Only events caused by this caller, as named in events: `token 1a2b3c4d`, `uid 0`, `memory node mn0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Only events about this region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
}

/// Answer to [`EventsQuery`]: selected events, and the extent of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Events {
    /// Number of the oldest event still kept. If above `after + 1`, the events between were removed.
    pub oldest: u64,
    /// Number of the newest event in the log; 0 before the first.
    pub newest: u64,
    /// Number of the last examined event: the next request continues after it.
    pub through: u64,
    /// The selected events, oldest first.
    pub events: Vec<Event>,
}

/// Placeholder in the stream of events for events that are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventsGap {
    /// Number of the first event that was removed.
    pub first: u64,
    /// Number of the last removed event.
    pub last: u64,
}
