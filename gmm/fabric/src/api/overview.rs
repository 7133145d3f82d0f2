//! Bodies of the overview: a summary of the fabric for display, small enough to be requested every second,
//! and a page of the regions. The manager searches and sorts the regions, because there may be a hundred
//! thousand.

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::hdm::{Granularity, Ways};
use crate::model::{CnId, DeviceKind, Health, LabelSelector, Labels, Mac, Name, RegionState};

/// Default number of regions in one [`RegionsPage`].
pub const REGIONS_PER_PAGE_DEFAULT: u64 = 100;
/// Maximum number of regions in one [`RegionsPage`], whatever the limit in the query.
pub const REGIONS_PER_PAGE_MAX: u64 = 1000;

/// Summary of the fabric for display: all nodes, and totals of the regions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Overview {
    /// Present time by the manager's clock, in milliseconds since the Unix epoch; ages are computed from it.
    pub time_ms: u64,
    /// Version of the manager, as `gmm --version` prints it.
    pub version: String,
    /// URL of the leading manager, which has made this summary.
    pub leader: String,
    /// Term of the manager, which grows with each takeover.
    pub term: u64,
    /// Interval of the nodes' messages, in milliseconds; counters are at most about twice as old as this
    /// interval.
    pub heartbeat_ms: u64,
    /// Number of the newest event in the log; 0 before the first.
    pub newest_event: u64,
    /// Every memory node, ordered by name.
    pub memory_nodes: Vec<MemoryNodeOverview>,
    /// Every compute node, ordered by CN id.
    pub compute_nodes: Vec<ComputeNodeOverview>,
    /// Number of regions per state; states without regions are left out.
    pub regions: Vec<RegionTotal>,
}

/// Capacity, health and traffic of a memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNodeOverview {
    /// Name of the memory node, which is its identity.
    pub name: Name,
    /// Number of the memory node, which determines its port in the FM API.
    pub index: u32,
    /// Allocation of the node: in slices to many compute nodes, or whole to one.
    pub kind: DeviceKind,
    /// Ethernet addresses of the node's ports; compute nodes use the first.
    pub macs: Vec<Mac>,
    /// MTU of the node's ports, in bytes.
    pub mtu: u32,
    /// Reachable if the node has sent a message within the node time-out.
    pub health: Health,
    /// Bytes of the whole extents of the node's pool.
    pub pool_bytes: u64,
    /// Size of an extent, the unit of allocation, in bytes.
    pub extent_bytes: u64,
    /// Bytes of the pool that belong to no region.
    pub free_bytes: u64,
    /// The part of `free_bytes` that is reserved for logical devices.
    pub reserved_bytes: u64,
    /// Bytes of regions that are being destroyed and not yet confirmed as zeroed.
    pub draining_bytes: u64,
    /// Number of commands to the node that have no result yet.
    pub pending_commands: u64,
    /// Number of regions with a part on the node.
    pub regions: u64,
    /// Bytes of the node per compute node, ordered by CN id; includes bytes that are being zeroed.
    pub owners: Vec<Share>,
    /// The reason why compute nodes cannot reach the node although it reports: its interface is missing, down or
    /// replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<String>,
    /// Arrival time of the node's latest report, in milliseconds since the Unix epoch; none if no report has arrived
    /// since this manager began to lead.
    pub reported_ms: Option<u64>,
    /// Counters from the node's latest report; none if it contains no counters.
    pub traffic: Option<Traffic>,
}

/// Part of a memory node that belongs to one compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    /// CN id of the compute node that owns the regions.
    pub compute_node: CnId,
    /// Bytes of the memory node in regions of the compute node.
    pub bytes: u64,
}

/// Counters of a memory node, sums over its workers, since its daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Bytes of frames received.
    pub rx_bytes: u64,
    /// Bytes of frames sent, headers included.
    pub tx_bytes: u64,
    /// Number of requests carried out.
    pub requests: u64,
    /// Number of requests answered with a fault.
    pub faults: u64,
    /// Number of requests received again after they had been answered.
    pub repeats: u64,
    /// Number of frames dropped for any reason: damaged, without a session, or for lack of buffers.
    pub dropped: u64,
    /// Number of open sessions with compute nodes.
    pub sessions: u64,
    /// True if the receive queue of a worker exceeds its limit.
    pub congested: bool,
}

/// Regions, health and traffic of a compute node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNodeOverview {
    /// CN id of the compute node: the source address of its frames.
    pub cn_id: CnId,
    /// Name of the compute node; none until it registers with one.
    pub name: Option<Name>,
    /// Reachable if the node has sent a message within the node time-out.
    pub health: Health,
    /// True while the node is held in reset: it attaches nothing until it is released.
    pub held: bool,
    /// Quota of the node: maximum total size of its regions, in bytes; none if it has no quota.
    pub quota: Option<u64>,
    /// Total size of the node's regions that are not being destroyed, in bytes.
    pub bytes: u64,
    /// Number of the node's regions, in any state.
    pub regions: u64,
    /// Number of the node's requests that memory nodes have carried out in its present sessions; none without a
    /// session.
    pub requests: Option<u64>,
}

/// Totals of the regions in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionTotal {
    /// State that these regions are in.
    pub state: RegionState,
    /// Number of regions in this state.
    pub regions: u64,
    /// Total size of these regions' decoders, in bytes.
    pub bytes: u64,
}

/// Query of `GET /v1/overview/regions`: regions that pass every given filter are selected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegionsQuery {
    /// Only regions with this text in their name, their labels, their owner's name or CN id, or the name of one of their
    /// memory nodes; case is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only regions in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RegionState>,
    /// Only regions whose labels meet these conditions: `key=value`, `key!=value`, `key` or `!key`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub labels: Option<LabelSelector>,
    /// Only regions of this compute node: its name or CN id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Only regions with a part on this memory node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<Name>,
    /// Order in which the selected regions are returned.
    #[serde(default)]
    pub sort: RegionOrder,
    /// Maximum number of regions to return: 100 by default, at most 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Sort order of the regions on a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RegionOrder {
    /// Ascending names.
    #[default]
    Name,
    /// Descending size.
    Size,
    /// Descending creation time.
    Newest,
}

/// The first of the selected regions, and totals of all selected ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionsPage {
    /// Number of selected regions, including those not returned.
    pub matching: u64,
    /// Total size of the selected regions' decoders, in bytes.
    pub bytes: u64,
    /// The first selected regions, in the requested order.
    pub regions: Vec<RegionSummary>,
}

/// Summary of a region; `GET /v1/regions/{name}` also gives its decoders and legs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionSummary {
    /// Name of the region, unique in the fabric.
    pub name: Name,
    /// CN id of the only compute node that may use the region.
    pub owner: CnId,
    /// Name of the owner, if it has registered with one.
    pub owner_name: Option<Name>,
    /// Usable bytes.
    pub size: u64,
    /// Bytes that are being added and not yet usable.
    pub growing: u64,
    /// Present state of the region, as in its record.
    pub state: RegionState,
    /// Interleave ways that the user has requested.
    pub ways: Ways,
    /// Interleave granularity that the user has requested.
    pub granularity: Granularity,
    /// Number of the region's HDM decoders.
    pub decoders: u64,
    /// Names of the memory nodes that the region lies on, ascending.
    pub memory_nodes: Vec<Name>,
    /// The reason why the region is being destroyed, if a memory node refused to map it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Labels that people have given to the region.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// While the region is draining: percentage of its memory that is zeroed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeroed_percent: Option<u8>,
    /// Creation time, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}
