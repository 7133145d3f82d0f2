//! Bodies of the overview: what a person wants to see of a fabric at a glance, small enough to be asked for every second,
//! and a part of its regions, searched and sorted by the manager, because there may be a hundred thousand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Owner;
use crate::hdm::{Granularity, Ways};
use crate::model::{CnId, DeviceKind, Health, Mac, Name, RegionState};

/// Regions in one [`RegionsPage`] when the query does not say.
pub const REGIONS_PER_PAGE_DEFAULT: u64 = 100;
/// Most regions in one [`RegionsPage`].
pub const REGIONS_PER_PAGE_MAX: u64 = 1000;

/// The fabric at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// The manager's clock: milliseconds since the Unix epoch. Ages of what is in here count from it.
    pub time_ms: u64,
    /// Version of the manager.
    pub version: String,
    /// URL of the manager, which leads.
    pub leader: String,
    /// Its term.
    pub term: u64,
    /// How often a node speaks, in milliseconds: counters are never older than about two of these.
    pub heartbeat_ms: u64,
    /// Number of the newest event.
    pub newest_event: u64,
    /// Every memory node, by name.
    pub memory_nodes: Vec<MemoryNodeOverview>,
    /// Every compute node, by CN id.
    pub compute_nodes: Vec<ComputeNodeOverview>,
    /// How many regions there are in each state that a region is in.
    pub regions: Vec<RegionTotal>,
}

/// A memory node at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNodeOverview {
    /// Its name.
    pub name: Name,
    /// Its number among memory nodes: its place in the FM API.
    pub index: u32,
    /// Whether it is given away in slices or whole.
    pub kind: DeviceKind,
    /// Addresses of its ports.
    pub macs: Vec<Mac>,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// Whether it is heard of.
    pub health: Health,
    /// Bytes of the whole extents of its pool: what can be given away.
    pub pool_bytes: u64,
    /// Bytes of one extent.
    pub extent_bytes: u64,
    /// Bytes no region holds.
    pub free_bytes: u64,
    /// Of these, bytes set aside for logical devices.
    pub reserved_bytes: u64,
    /// Bytes of regions being taken down, not yet confirmed as zeroed.
    pub draining_bytes: u64,
    /// Commands issued and not yet answered with a result.
    pub pending_commands: u64,
    /// Regions with a part on it.
    pub regions: u64,
    /// Who has how much of it, by CN id; what is draining included.
    pub owners: Vec<Share>,
    /// Why compute nodes cannot reach it though it reports: its interface is gone, down or another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<String>,
    /// When its last report came: milliseconds since the Unix epoch. None since this manager has led.
    pub reported_ms: Option<u64>,
    /// What that report counts; none from a node that reports nothing.
    pub traffic: Option<Traffic>,
}

/// What one compute node has of a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// The compute node.
    pub compute_node: CnId,
    /// Bytes.
    pub bytes: u64,
}

/// Counters of a memory node, all its workers together, since its daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Bytes of frames received.
    pub rx_bytes: u64,
    /// Bytes of frames sent.
    pub tx_bytes: u64,
    /// Requests executed.
    pub requests: u64,
    /// Requests answered with a fault.
    pub faults: u64,
    /// Requests that came again though they had been answered.
    pub repeats: u64,
    /// Frames dropped, whatever for: damaged, of no session, or no room.
    pub dropped: u64,
    /// Sessions with compute nodes.
    pub sessions: u64,
    /// Whether a worker's receive queue is longer than it may be.
    pub congested: bool,
}

/// A compute node at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNodeOverview {
    /// Its identity.
    pub cn_id: CnId,
    /// Its name; none until it registers with one.
    pub name: Option<Name>,
    /// Whether it is heard of.
    pub health: Health,
    /// Held in reset: it attaches nothing until it is released.
    pub held: bool,
    /// Most bytes of regions it may have; none: no limit of its own.
    pub quota: Option<u64>,
    /// Bytes of all its regions that are not being taken down.
    pub bytes: u64,
    /// Its regions.
    pub regions: u64,
    /// Requests of its that memory nodes have executed, in the sessions it has now; none without a session.
    pub requests: Option<u64>,
}

/// The regions in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionTotal {
    /// The state.
    pub state: RegionState,
    /// How many regions are in it.
    pub regions: u64,
    /// Bytes of their decoders together.
    pub bytes: u64,
}

/// Query of `GET /v1/overview/regions`: which regions are wanted. A region is wanted when it fits all that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionsQuery {
    /// Only regions with this text in their name, their owner's name or CN id, or the name of one of their memory nodes;
    /// capitals and small letters are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only regions in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RegionState>,
    /// Only regions of this compute node: its name or CN id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Only regions with a part on this memory node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<Name>,
    /// In which order.
    #[serde(default)]
    pub sort: RegionOrder,
    /// At most this many: 100 unless said, 1000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// In which order regions come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RegionOrder {
    /// By name.
    #[default]
    Name,
    /// The largest first.
    Size,
    /// The newest first.
    Newest,
}

/// Regions that are wanted: the first of them, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionsPage {
    /// How many regions are wanted.
    pub matching: u64,
    /// Bytes of their decoders together.
    pub bytes: u64,
    /// The first of them.
    pub regions: Vec<RegionSummary>,
}

/// A region in a line. `GET /v1/regions/{name}` has its decoders and legs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionSummary {
    /// Its name.
    pub name: Name,
    /// The one CN that may use it.
    pub owner: CnId,
    /// That CN's name, where the manager knows it.
    pub owner_name: Option<Name>,
    /// Bytes that may be used.
    pub size: u64,
    /// Bytes that are being added.
    pub growing: u64,
    /// Where it stands.
    pub state: RegionState,
    /// Interleave ways asked for.
    pub ways: Ways,
    /// Interleave granularity asked for.
    pub granularity: Granularity,
    /// HDM decoders that spread it.
    pub decoders: u64,
    /// The memory nodes it lies on, by name.
    pub memory_nodes: Vec<Name>,
    /// Why it is being taken down, when a memory node refused to map it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// While it is draining: percent of its memory that is zeroed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeroed_percent: Option<u8>,
    /// When it was created: milliseconds since the Unix epoch.
    pub created_ms: u64,
}
