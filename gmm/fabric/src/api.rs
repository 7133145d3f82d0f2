//! Bodies of the REST interface: what travels besides the nouns of [`crate::model`] themselves. The server parses and
//! writes these, the client writes and parses them; both share the definitions, so they cannot drift apart.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/memory-nodes` | - | array of [`MemoryNodeStatus`] |
//! | `POST /v1/memory-nodes` | [`RegisterMemoryNode`] | [`MemoryNodeRegistered`] |
//! | `DELETE /v1/memory-nodes/{name}?force=` | - | 204 |
//! | `POST /v1/memory-nodes/{name}/sync` | [`MemoryNodeSync`] | [`MemoryNodeSynced`] |
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
//! | `GET /v1/regions/{name}` | - | [`RegionStatus`] |
//! | `POST /v1/regions` | [`CreateRegion`] | [`Region`]: 201 active, 202 still creating |
//! | `POST /v1/regions/{name}/grow` | [`GrowRegion`] | [`Region`]: 200 grown, 202 still growing |
//! | `POST /v1/regions/{name}/disable?wait_ms=` | - | [`Region`]: 200 disabled, 202 its owner has yet to let go |
//! | `POST /v1/regions/{name}/enable` | - | [`Region`] |
//! | `POST /v1/regions/{name}/reset?wait_ms=` | - | [`Region`]: 200 active, 202 still creating |
//! | `DELETE /v1/regions/{name}?force=&wait_ms=` | - | 204 gone and zeroed; 202 with the [`RegionStatus`], draining |
//! | `GET /v1/logical-devices` | - | array of [`LogicalDeviceStatus`] |
//! | `POST /v1/bindings` | [`Bind`] | [`LogicalDeviceStatus`]: 201 its region is active, 202 it is still creating |
//! | `POST /v1/unbind` | [`Unbind`] | 204 free, its memory being zeroed; 202 with the [`LogicalDeviceStatus`] |
//! | `GET /v1/refused` | - | array of [`RefusedNode`] |
//! | `POST /v1/refused` | [`NotFollowed`] | 204 |
//! | `POST /v1/adopt` | [`AdoptFabric`] | 204 |
//! | `GET /v1/sessions` | - | array of [`Session`] |
//! | `GET /v1/events?after=&limit=&wait_ms=&since_ms=&kind=&node=&who=&region=` | - | [`Events`] |
//! | `GET /v1/events/stream?…` | - | server-sent events: each an [`Event`](crate::model::Event), or `gap` with an [`EventsGap`] |
//! | `GET /v1/overview` | - | [`Overview`]: the fabric at a glance |
//! | `GET /v1/overview/regions?text=&state=&owner=&memory_node=&sort=&limit=` | - | [`RegionsPage`] |
//! | `GET /v1/tokens` | - | array of [`TokenStatus`] |
//! | `POST /v1/tokens` | [`CreateToken`] | [`TokenCreated`]: 201 |
//! | `DELETE /v1/tokens/{id}` | - | 204 |
//! | `POST /v1/join` | [`Join`] | [`Joined`] |
//! | `POST /v1/renew` | [`Renew`] | [`Joined`] |
//! | `POST /v1/revoke` | [`Party`] | 204 |
//! | `GET /v1/whoami` | - | [`WhoAmI`] |
//! | `POST /v1/log-in` | - | [`WhoAmI`], with a cookie that stands for the token |
//! | `POST /v1/log-out` | - | [`WhoAmI`], and the cookie is gone |
//! | `GET /v1/backup` | - | all that the store has, as one text |
//! | `POST /v1/restore` | [`RestoreStore`] | [`RestoredStore`] |
//! | `GET /v1/health` | - | [`ManagerHealth`] |
//! | `GET /v1/openapi.json` | - | this interface as an OpenAPI 3.1 document |
//!
//! Where a path names a compute node, it is its CN id or its name. The stream of events goes on after the number in the
//! header `Last-Event-ID`, if there is one.
//!
//! A request that fails is answered with an [`ErrorBody`] and the status of its [`ErrorCode`].

mod access;
mod devices;
mod error;
mod events;
mod lineage;
mod overview;
mod regions;
mod sessions;

use core::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use access::{CreateToken, Join, Joined, Renew, TokenCreated, TokenStatus, WhoAmI};
pub use devices::{Bind, LogicalDeviceStatus, SetLdAllocations, Unbind};
pub use error::{ErrorBody, ErrorCode};
pub use events::{Events, EventsGap, EventsQuery};
pub use lineage::{
    AdoptFabric, Held, NotFollowed, Orphans, Party, RefusedNode, ReleaseOrphans, ReportOrphans, RestoreStore,
    RestoredStore,
};
pub use overview::{
    ComputeNodeOverview, MemoryNodeOverview, Overview, REGIONS_PER_PAGE_DEFAULT, REGIONS_PER_PAGE_MAX,
    RegionOrder, RegionSummary, RegionTotal, RegionsPage, RegionsQuery, Share, Traffic,
};
pub use regions::{
    CreateRegion, DestroyRegion, DisableRegion, GRANULARITY_DEFAULT, GrowRegion, Owner, RegionStatus,
    ResetRegion, SetQuota, WAIT_MS_DEFAULT, WAYS_DEFAULT,
};
pub use sessions::Session;

use crate::model::{
    CnId, CommandResult, ComputeNodeKey, DeviceKind, Extents, LeaderTerm, LogicalDevice, Mac, Mapping,
    MemoryNode, Name, NodeCommand, PublicKey, Region, UdpPeer, Watermark,
};

/// A memory node says that it is there and what it lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegisterMemoryNode {
    /// Its name, which is its identity.
    pub name: Name,
    /// Whether it is given away in slices or whole.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Unicast addresses of its ports, at least one; the first is the one CNs use.
    pub macs: Vec<Mac>,
    /// Where frames for these go over the `udp` link, if it uses it: one address of its own and a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Its public key, if it has one. A key that was registered once is the node's until it joins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Bytes of its pool; what is left over after whole extents is not used.
    pub pool_bytes: u64,
    /// Bytes of one extent: a power of two, at least 4 KiB. 2 MiB where nothing speaks for another.
    pub extent_bytes: u64,
    /// Which life of the pool's content this is; another one than last time means the content was lost.
    pub incarnation: u64,
    /// Random, chosen at the daemon's start: tells a restart from a second daemon under the same name.
    pub instance_id: u64,
    /// When the daemon started, milliseconds since the Unix epoch by its own clock; 0 if it does not say. Tells which of two
    /// processes is the later one.
    #[serde(default)]
    pub started_ms: u64,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// How far the manager had come that the node followed last, kept on disk; a manager whose store does not contain that
    /// refuses.
    #[serde(default)]
    pub seen: Watermark,
}

/// Answer to [`RegisterMemoryNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNodeRegistered {
    /// Number of this registration, to be given in each sync.
    pub registration: u64,
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// What shows that the store contains what the node has seen.
    #[serde(default)]
    pub lineage: Vec<LeaderTerm>,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the last command whose result the manager has. What comes next is `acked_seq + 1`.
    pub acked_seq: u64,
    /// Everything the node has to serve, its content as it is. The node serves nothing else, and keeps what else it holds.
    pub mappings: Vec<Mapping>,
    /// Extents that are free. Those of which the node has served some until now are its orphans: it keeps and reports them.
    /// A node that cannot tell whether the others are zero zeroes them before they are mapped.
    pub unowned: Extents,
    /// Where the compute nodes are whose memory lies on it, as far as they use the `udp` link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_peers: Vec<UdpPeer>,
    /// The keys of the compute nodes whose memory lies on it: nobody else may speak for these. A key of zeros is nobody's: the
    /// compute node has none, and one that had a key before has had it taken back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cn_keys: Vec<ComputeNodeKey>,
}

/// A memory node is alive, has done these commands, and waits for more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNodeSync {
    /// Number of the registration.
    pub registration: u64,
    /// Number of the last command carried out (or failed); commands after it are asked for.
    pub acked_seq: u64,
    /// One result for each command up to `acked_seq` whose result was not yet answered. Only these free memory.
    #[serde(default)]
    pub results: Vec<CommandResult>,
    /// How far the command after `acked_seq` has come, if it takes long.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// Counters and health as the node sees them, shown as they are in `GET /v1/memory-nodes`.
    #[serde(default)]
    pub stats: serde_json::Value,
    /// How long to wait for commands, in milliseconds; the server waits at most its heartbeat.
    #[serde(default)]
    pub wait_ms: u64,
}

/// How far a memory node has come with a command that takes long: zeroing is what does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Number of the command.
    pub seq: u64,
    /// Bytes done.
    pub done: u64,
}

/// Answer to [`MemoryNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNodeSynced {
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Commands to carry out, in this order.
    pub commands: Vec<NodeCommand>,
    /// As in [`MemoryNodeRegistered`]: all of them as they are now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_peers: Vec<UdpPeer>,
    /// As in [`MemoryNodeRegistered`]: all of them as they are now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cn_keys: Vec<ComputeNodeKey>,
}

/// A memory node with what follows from the regions on it and what it said of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNodeStatus {
    /// The node.
    #[serde(flatten)]
    pub node: MemoryNode,
    /// Bytes no region holds.
    pub free_bytes: u64,
    /// Of these, bytes set aside for logical devices.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Bytes of regions being taken down, not yet confirmed as zeroed. Of an unreachable node they stay here.
    pub draining_bytes: u64,
    /// Bytes that it holds although no region has them: kept, and not given away, until they are released.
    #[serde(default)]
    pub orphan_bytes: u64,
    /// Commands issued and not yet answered with a result.
    pub pending_commands: u64,
    /// What the node reported in its last sync.
    #[serde(default)]
    pub stats: serde_json::Value,
}

/// A compute node says that it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegisterComputeNode {
    /// Its identity: the address it sends frames from.
    pub cn_id: CnId,
    /// Its name, unique among compute nodes.
    pub name: Name,
    /// Where its frames come from over the `udp` link, if it uses it: one address of its own and a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Its public key, if it has one. A key that was registered once is the node's until it joins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// The key was made for this run and is to take the place of another one. An administrator may ask for that, as by the
    /// Unix socket, for a node that has not joined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_key: bool,
    /// Random, chosen at the agent's start: tells a restart from a second agent with the same CN id.
    pub instance_id: u64,
    /// How far the manager had come that the node followed last, if it holds regions; a manager whose store does not
    /// contain that refuses.
    #[serde(default)]
    pub seen: Watermark,
}

/// Answer to [`RegisterComputeNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNodeRegistered {
    /// Number of this registration, to be given in each sync.
    pub registration: u64,
    /// The manager's term.
    pub term: u64,
    /// The manager's term and its store's revision.
    #[serde(default)]
    pub watermark: Watermark,
    /// What shows that the store contains what the node has seen.
    #[serde(default)]
    pub lineage: Vec<LeaderTerm>,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event contained in `regions`; the first sync goes on from it.
    pub after_event: u64,
    /// Every region of this node.
    pub regions: Vec<Region>,
    /// The logical devices bound to this node.
    #[serde(default)]
    pub devices: Vec<LogicalDevice>,
    /// Held in reset: nothing of this is to be attached, or to stay attached, until it is released.
    #[serde(default)]
    pub held: bool,
}

/// A compute node is alive and waits for changes to its regions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNodeSync {
    /// Number of the registration.
    pub registration: u64,
    /// Number of the latest event contained in the regions the node has.
    pub after_event: u64,
    /// Regions this node was asked to let go of and has: what was modified is written back, nothing is attached.
    #[serde(default)]
    pub released: Vec<ReleasedRegion>,
    /// No request is on its way any more that this node made before it had heard of this event, and so none for regions that
    /// were gone by then; 0 while it cannot say.
    #[serde(default)]
    pub quiet: u64,
    /// How long to wait for a change, in milliseconds; the server waits at most its heartbeat.
    #[serde(default)]
    pub wait_ms: u64,
}

/// A region that its owner has let go of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleasedRegion {
    /// Its name.
    pub name: Name,
    /// Its creation, which tells it from another one of that name.
    pub created_ms: u64,
}

/// Answer to [`ComputeNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNodeSynced {
    /// The manager's term.
    pub term: u64,
    /// The manager's term and its store's revision.
    #[serde(default)]
    pub watermark: Watermark,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event contained here, for the next sync.
    pub after_event: u64,
    /// Every region of this node if one changed after the event asked from; `None`: nothing changed.
    pub regions: Option<Vec<Region>>,
    /// The logical devices bound to this node, when `regions` is there.
    #[serde(default)]
    pub devices: Vec<LogicalDevice>,
    /// Held in reset: nothing of this is to be attached, or to stay attached, until it is released.
    #[serde(default)]
    pub held: bool,
    /// Errors that were generated at its vPPBs after the event asked from (Generate AER Event, 5203h).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<VppbError>,
}

/// An error at a vPPB of a compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VppbError {
    /// The vPPB.
    pub vppb: u8,
    /// The error, as PCIe's Advanced Error Reporting encodes it.
    pub aer: u32,
}

/// Query of `DELETE /v1/memory-nodes/{name}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetMemoryNode {
    /// Although regions lie on it: they are destroyed.
    #[serde(default)]
    pub force: bool,
}

/// Whether the manager is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManagerHealth {
    /// `"ok"`.
    pub status: String,
    /// Version of the manager.
    pub version: String,
    /// URL of this manager, which leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Its term and its store's revision.
    pub watermark: Watermark,
    /// Memory nodes known, and reachable.
    pub memory_nodes: NodeCount,
    /// Compute nodes known, and reachable.
    pub compute_nodes: NodeCount,
    /// Regions of any state.
    pub regions: u64,
    /// The number of the fabric, in hexadecimal: chosen when its store was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// Nodes that do not follow this manager, since they have seen what its store does not have.
    #[serde(default)]
    pub refused: Vec<Party>,
    /// Bytes that memory nodes hold although no region has them.
    #[serde(default)]
    pub orphan_bytes: u64,
    /// Why nothing can be changed at present, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// It was started with `--insecure`: whoever reaches it over TCP may do everything.
    #[serde(default)]
    pub insecure: bool,
}

/// How many nodes there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCount {
    /// Known to the store.
    pub known: u64,
    /// Of these, heard of within the node time-out.
    pub reachable: u64,
}
