//! Bodies of the REST interface other than the nouns of [`crate::model`]. Server and client share these definitions, so
//! that they cannot differ.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/memory-nodes` | - | array of [`MemoryNodeStatus`] |
//! | `POST /v1/memory-nodes` | [`RegisterMemoryNode`] | [`MemoryNodeRegistered`] |
//! | `DELETE /v1/memory-nodes/{name}?force=` | - | 204 |
//! | `POST /v1/memory-nodes/{name}/sync` | [`MemoryNodeSync`] | [`MemoryNodeSynced`] |
//! | `POST /v1/memory-nodes/{name}/drain` | - | 204 |
//! | `POST /v1/memory-nodes/{name}/stop-drain` | - | 204 |
//! | `POST /v1/memory-nodes/{name}/orphans` | [`ReportOrphans`] | 204 |
//! | `POST /v1/memory-nodes/{name}/release-orphans?wait_ms=` | - | [`Orphans`]: 200 none is left, 202 still being zeroed |
//! | `PUT /v1/memory-nodes/{name}/logical-devices` | [`SetLdAllocations`] | array of [`LogicalDeviceStatus`]: all of the node |
//! | `GET /v1/compute-nodes` | - | array of [`ComputeNode`](crate::model::ComputeNode) |
//! | `POST /v1/compute-nodes` | [`RegisterComputeNode`] | [`ComputeNodeRegistered`] |
//! | `POST /v1/compute-nodes/{compute_node}/sync` | [`ComputeNodeSync`] | [`ComputeNodeSynced`] |
//! | `DELETE /v1/compute-nodes/{compute_node}` | - | 204 |
//! | `PUT /v1/compute-nodes/{compute_node}/quota` | [`SetQuota`] | [`ComputeNode`](crate::model::ComputeNode) |
//! | `POST /v1/compute-nodes/{compute_node}/hold`, `…/release` | - | [`ComputeNode`](crate::model::ComputeNode) |
//! | `GET /v1/regions` | - | array of [`RegionStatus`] |
//! | `GET /v1/regions/{name}?owner_wait_ms=` | - | [`RegionStatus`] |
//! | `POST /v1/regions` | [`CreateRegion`] | [`Region`]: 201 active, 202 still creating |
//! | `POST /v1/regions/{name}/grow` | [`GrowRegion`] | [`Region`]: 200 grown, 202 still growing |
//! | `POST /v1/regions/{name}/disable?wait_ms=` | - | [`Region`]: 200 disabled, 202 its owner has yet to release it |
//! | `POST /v1/regions/{name}/enable` | - | [`Region`] |
//! | `POST /v1/regions/{name}/reset?wait_ms=` | - | [`Region`]: 200 active, 202 still creating |
//! | `POST /v1/regions/{name}/protect` | [`ProtectRegion`] | [`Region`]: 200 protected, 202 copies are still being made |
//! | `POST /v1/regions/{name}/move` | [`MoveRegion`] | [`Region`]: 200 moved or stopped, 202 waiting for its owner or memory nodes |
//! | `POST /v1/regions/{name}/seal` | [`SealRegion`] | [`Region`]: 200 sealed, 202 waiting for its owner or memory nodes |
//! | `POST /v1/regions/{name}/labels` | [`LabelRegion`] | [`Region`] |
//! | `POST /v1/regions/{name}/share` | [`ShareRegion`] | [`Region`]: 200 shared or not any more, 202 waiting for memory nodes |
//! | `POST /v1/regions/{name}/clone` | [`CloneRegion`] | [`Region`]: 201 the new region is active, 202 waiting for the owner or memory nodes |
//! | `POST /v1/regions/{name}/relocate` | [`RelocateRegion`] | [`Region`]: 200 moved or stopped, 202 still being copied |
//! | `POST /v1/regions/{name}/legs/stale` | [`LegsStale`] | [`Region`] |
//! | `POST /v1/regions/{name}/legs/filled` | [`LegsFilled`] | [`Region`] |
//! | `DELETE /v1/regions/{name}?force=&wait_ms=` | - | 204 removed and zeroed; 202 with the [`RegionStatus`], draining |
//! | `GET /v1/logical-devices` | - | array of [`LogicalDeviceStatus`] |
//! | `POST /v1/bindings` | [`Bind`] | [`LogicalDeviceStatus`]: 201 its region is active, 202 it is still creating |
//! | `POST /v1/unbind` | [`Unbind`] | 204 free, its memory being zeroed; 202 with the [`LogicalDeviceStatus`] |
//! | `GET /v1/refused` | - | array of [`RefusedNode`] |
//! | `POST /v1/refused` | [`NotFollowed`] | 204 |
//! | `POST /v1/adopt` | [`AdoptFabric`] | 204 |
//! | `GET /v1/sessions` | - | array of [`Session`] |
//! | `GET /v1/events?after=&limit=&wait_ms=&since_ms=&kind=&node=&who=&region=` | - | [`Events`] |
//! | `GET /v1/events/stream?…` | - | server-sent events: each an [`Event`](crate::model::Event), or `gap` with an [`EventsGap`] |
//! | `GET /v1/overview` | - | [`Overview`]: a summary of the fabric |
//! | `GET /v1/overview/regions?text=&state=&owner=&memory_node=&sort=&limit=` | - | [`RegionsPage`] |
//! | `GET /v1/tokens` | - | array of [`TokenStatus`] |
//! | `POST /v1/tokens` | [`CreateToken`] | [`TokenCreated`]: 201 |
//! | `DELETE /v1/tokens/{id}` | - | 204 |
//! | `POST /v1/join` | [`Join`] | [`Joined`] |
//! | `POST /v1/renew` | [`Renew`] | [`Joined`] |
//! | `POST /v1/revoke` | [`Party`] | 204 |
//! | `GET /v1/whoami` | - | [`WhoAmI`] |
//! | `POST /v1/log-in` | - | [`WhoAmI`], with a cookie in place of the token |
//! | `POST /v1/log-out` | - | [`WhoAmI`], and removes the cookie |
//! | `GET /v1/backup` | - | a backup of the store, as one text |
//! | `GET /v1/backup/authority` | - | [`BackupAuthority`] |
//! | `POST /v1/restore` | [`RestoreStore`] | [`RestoredStore`] |
//! | `GET /v1/health` | - | [`ManagerHealth`] |
//! | `GET /v1/openapi.json` | - | this interface as an OpenAPI 3.1 document |
//! | `GET /v1/openapi-3.0.json` | - | the same as an OpenAPI 3.0 document |
//!
//! A compute node in a path is given by its CN id or its name. The stream of events continues after the number in the
//! header `Last-Event-ID`, if there is one.
//!
//! A request that fails is answered with an [`ErrorBody`] and the status of its [`ErrorCode`].

mod access;
mod backup;
mod devices;
mod error;
mod events;
mod lineage;
mod overview;
mod regions;
mod sessions;

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use access::{CreateToken, Join, Joined, Renew, TokenCreated, TokenStatus, WhoAmI};
pub use backup::{AuthorityPem, BackupAuthority, RestoreStore, RestoredStore};
pub use devices::{Bind, LogicalDeviceStatus, SetLdAllocations, Unbind};
pub use error::{ErrorBody, ErrorCode};
pub use events::{Events, EventsGap, EventsQuery};
pub use lineage::{
    AdoptFabric, Held, NotFollowed, Orphans, Party, RefusedNode, ReleaseOrphans, ReportOrphans,
};
pub use overview::{
    ComputeNodeOverview, MemoryNodeOverview, Overview, REGIONS_PER_PAGE_DEFAULT, REGIONS_PER_PAGE_MAX,
    RegionOrder, RegionSummary, RegionTotal, RegionsPage, RegionsQuery, Share, Traffic,
};
pub use regions::{
    CloneRegion, CopyProgress, CreateRegion, DestroyRegion, DisableRegion, GRANULARITY_DEFAULT, GrowRegion,
    LabelRegion, LegsFilled, LegsStale, ListRegions, MoveRegion, Owner, ProtectRegion, RegionStatus,
    RelocateRegion, ResetRegion, SealRegion, SetQuota, ShareRegion, ShowRegion, WAIT_MS_DEFAULT,
    WAYS_DEFAULT,
};
pub use sessions::Session;

use crate::model::{
    CnId, CommandResult, ComputeNodeKey, DeviceKind, Extents, FillCmem, FillProgress, LeaderTerm,
    LogicalDevice, Mac, Mapping, MemoryNode, Name, NodeCommand, PublicKey, Region, UdpPeer, Watermark,
};

/// Registration of a memory node, with its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisterMemoryNode {
    /// Name of the memory node, which is its identity.
    pub name: Name,
    /// Allocation of the node: in slices to many compute nodes, or whole to one.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Unicast addresses of the node's ports, at least one; compute nodes use the first.
    pub macs: Vec<Mac>,
    /// Address of the node's ports over the `udp` link: a unicast address and a port; none if the node does not use
    /// that link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Public key of the node, if it has one. The key of the first registration stays valid until the node joins again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Label of the rack that the node is in; none if it has no label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<Name>,
    /// Size of the node's pool in bytes; a remainder after whole extents is not used.
    pub pool_bytes: u64,
    /// Size of an extent in bytes: a power of two, at least 4 KiB, usually 2 MiB.
    pub extent_bytes: u64,
    /// Number that identifies the content of the pool; another number than at the last registration means that the
    /// content was lost.
    pub incarnation: u64,
    /// Random number chosen at the daemon's start: it distinguishes a restart from a second daemon under the same name.
    pub instance_id: u64,
    /// Start time of the daemon by its own clock, in milliseconds since the Unix epoch; 0 if unknown. It determines
    /// which of two processes is the later one.
    #[serde(default)]
    pub started_ms: u64,
    /// MTU of the node's ports, in bytes.
    pub mtu: u32,
    /// The latest watermark (term and revision of a manager's store) that the node has seen, kept on its disk. A
    /// manager whose store does not contain this watermark refuses the registration.
    #[serde(default)]
    pub seen: Watermark,
}

/// Answer to [`RegisterMemoryNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNodeRegistered {
    /// Number of this registration, which each sync has to contain.
    pub registration: u64,
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// The part of the store's lineage (its managers by term) from which the node determines that the store contains
    /// the changes it has seen.
    #[serde(default)]
    pub lineage: Vec<LeaderTerm>,
    /// Maximum interval between syncs, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the last command whose result the manager has received. The next command is `acked_seq + 1`.
    pub acked_seq: u64,
    /// All mappings of the node; their content is kept. The node serves no other memory, and keeps the content of its
    /// other extents.
    pub mappings: Vec<Mapping>,
    /// All sealed mappings that further compute nodes may read, each with its reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<crate::model::Share>,
    /// Free extents. Those in which the node has been serving a mapping are its orphans, which it keeps and reports.
    /// The others are zeroed before they are mapped, unless the node has recorded that they are zero.
    pub unowned: Extents,
    /// UDP addresses of the compute nodes that use the `udp` link and have memory on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_peers: Vec<UdpPeer>,
    /// Keys of the compute nodes that have memory on this node, required when they open sessions. For a compute node
    /// without a key, or with a revoked one, the entry is a key of zeros, which opens no session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cn_keys: Vec<ComputeNodeKey>,
}

/// Sync of a memory node: its regular message, with results of commands. The answer waits for new commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNodeSync {
    /// Number of the registration, from the answer to the registration.
    pub registration: u64,
    /// Number of the last command carried out or failed; the node requests the commands after it.
    pub acked_seq: u64,
    /// One result for each command up to `acked_seq` whose result is not yet acknowledged. Memory is freed only by
    /// these results.
    #[serde(default)]
    pub results: Vec<CommandResult>,
    /// Progress of the command after `acked_seq`, if it takes long.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// Progress with each order to fill extents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<FillProgress>,
    /// Counters and health of the node, shown unchanged in `GET /v1/memory-nodes`.
    #[serde(default)]
    pub stats: serde_json::Value,
    /// Maximum wait for commands, in milliseconds; the server waits at most its heartbeat interval.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Progress of a memory node with a command that takes long because it zeroes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Number of the command, as in [`NodeCommand::seq`](crate::model::NodeCommand::seq).
    pub seq: u64,
    /// Bytes zeroed until now.
    pub done: u64,
}

/// Answer to [`MemoryNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNodeSynced {
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// Maximum interval between syncs, in milliseconds.
    pub heartbeat_ms: u64,
    /// Commands to carry out in this order; all that have no result yet.
    pub commands: Vec<NodeCommand>,
    /// All UDP addresses at present, as in [`MemoryNodeRegistered`]: they replace the earlier list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_peers: Vec<UdpPeer>,
    /// All keys at present, as in [`MemoryNodeRegistered`]: they replace the earlier list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cn_keys: Vec<ComputeNodeKey>,
    /// All orders to fill extents from other memory nodes at present: they replace the earlier list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<FillCmem>,
}

/// A memory node with figures derived from the regions on the node, and the node's latest report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNodeStatus {
    /// The stored record of the node.
    #[serde(flatten)]
    pub node: MemoryNode,
    /// Bytes of the pool that belong to no region.
    pub free_bytes: u64,
    /// The part of `free_bytes` that is reserved for logical devices.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Bytes of regions that are being destroyed and not yet confirmed as zeroed. They stay in this number while the
    /// node is unreachable.
    pub draining_bytes: u64,
    /// Bytes that the node holds although they belong to no region: kept, and not allocated, until a user releases
    /// them.
    #[serde(default)]
    pub orphan_bytes: u64,
    /// Number of commands to the node that have no result yet.
    pub pending_commands: u64,
    /// Report from the node's last sync; null without one.
    #[serde(default)]
    pub stats: serde_json::Value,
}

/// Registration of a compute node, which its agent sends at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisterComputeNode {
    /// CN id of the compute node: the source address of its frames.
    pub cn_id: CnId,
    /// Name of the compute node, unique among compute nodes.
    pub name: Name,
    /// Source address of the node's frames over the `udp` link: a unicast address and a port; none if the node does not
    /// use that link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Public key of the node, if it has one. The key of the first registration stays valid until the node joins again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// True if the key was made for this run and replaces the recorded one. Only an administrator may do this, for
    /// example over the Unix socket, for a node that has not joined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_key: bool,
    /// Random number chosen at the agent's start: it distinguishes a restart from a second agent with the same CN id.
    pub instance_id: u64,
    /// The latest watermark (term and revision of a manager's store) that the node has seen, if it holds regions. A
    /// manager whose store does not contain this watermark refuses the registration.
    #[serde(default)]
    pub seen: Watermark,
}

/// Answer to [`RegisterComputeNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNodeRegistered {
    /// Number of this registration, which each sync has to contain.
    pub registration: u64,
    /// Term of the manager, as in `watermark`.
    pub term: u64,
    /// The manager's term and its store's revision.
    #[serde(default)]
    pub watermark: Watermark,
    /// The part of the store's lineage (its managers by term) from which the node determines that the store contains
    /// the changes it has seen.
    #[serde(default)]
    pub lineage: Vec<LeaderTerm>,
    /// Maximum interval between syncs, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event that `regions` takes into account; the first sync continues after it.
    pub after_event: u64,
    /// Every region that the node owns, in any state.
    pub regions: Vec<Region>,
    /// The logical devices bound to the node.
    #[serde(default)]
    pub devices: Vec<LogicalDevice>,
    /// True while the node is held in reset: it must not attach any of these regions, and must detach attached ones.
    #[serde(default)]
    pub held: bool,
}

/// Sync of a compute node: its regular message. The answer waits for changes to the node's regions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNodeSync {
    /// Number of the registration, from the answer to the registration.
    pub registration: u64,
    /// Number of the latest event that the node's present list of regions takes into account.
    pub after_event: u64,
    /// Regions that the node has released on request: modified data is written back, and nothing is attached.
    #[serde(default)]
    pub released: Vec<ReleasedRegion>,
    /// Number of an event, the latest one for which this holds: every request that the node made before it received the
    /// event has ended. No request is then left for a region that was destroyed before that event. 0 while unknown.
    #[serde(default)]
    pub quiet: u64,
    /// True if the agent is shutting down, and every write that it made is complete on all copies. It writes nothing
    /// after this sync.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// Maximum wait for a change, in milliseconds; the server waits at most its heartbeat interval.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Report that the owner of a region has released the region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReleasedRegion {
    /// Name of the released region.
    pub name: Name,
    /// Creation time of the region in milliseconds since the Unix epoch, which distinguishes it from a later region of
    /// the same name.
    pub created_ms: u64,
}

/// Answer to [`ComputeNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNodeSynced {
    /// Term of the manager, as in `watermark`.
    pub term: u64,
    /// The manager's term and its store's revision.
    #[serde(default)]
    pub watermark: Watermark,
    /// Maximum interval between syncs, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event that this answer takes into account, for the next sync.
    pub after_event: u64,
    /// Every region of the node if one has changed after the event in the request; `None`: no change.
    pub regions: Option<Vec<Region>>,
    /// The logical devices bound to the node; meaningful only if `regions` is present.
    #[serde(default)]
    pub devices: Vec<LogicalDevice>,
    /// True while the node is held in reset: it must not attach any of these regions, and must detach attached ones.
    #[serde(default)]
    pub held: bool,
    /// Errors generated at the node's vPPBs after the event in the request (Generate AER Event, 5203h).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<VppbError>,
}

/// An error at a vPPB of a compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VppbError {
    /// Number of the vPPB: 0 to 126.
    pub vppb: u8,
    /// The error, as PCIe's Advanced Error Reporting encodes it.
    pub aer: u32,
}

/// Query of `DELETE /v1/memory-nodes/{name}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForgetMemoryNode {
    /// Forget the node even if regions lie on it, which are then destroyed.
    #[serde(default)]
    pub force: bool,
}

/// Health of the manager, and totals of its fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManagerHealth {
    /// Always `"ok"`: other states are HTTP errors.
    pub status: String,
    /// Version of the manager, as `gmm --version` prints it.
    pub version: String,
    /// URL of this manager, which leads; none if it has no URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Term of the manager and revision of its store.
    pub watermark: Watermark,
    /// Number of registered memory nodes, and of reachable ones.
    pub memory_nodes: NodeCount,
    /// Number of recorded compute nodes, and of reachable ones.
    pub compute_nodes: NodeCount,
    /// Number of regions, in any state.
    pub regions: u64,
    /// Number that identifies the fabric, in hexadecimal: chosen when the fabric was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// Nodes that do not accept this manager, because they have seen changes that its store does not contain.
    #[serde(default)]
    pub refused: Vec<Party>,
    /// Total bytes that memory nodes hold although they belong to no region.
    #[serde(default)]
    pub orphan_bytes: u64,
    /// The reason why changes are refused at present; none if they are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// True if the manager was started with `--insecure`: every client over TCP has all rights.
    #[serde(default)]
    pub insecure: bool,
}

/// Number of nodes of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeCount {
    /// Number of nodes with a record in the store.
    pub known: u64,
    /// Number of nodes that have sent a message within the node time-out.
    pub reachable: u64,
}
