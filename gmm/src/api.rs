//! Bodies of the REST interface: what travels besides the nouns of [`crate::model`] themselves. The server parses and
//! writes these, the client writes and parses them; both share the definitions, so they cannot drift apart.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/memory-nodes` | [`RegisterMemoryNode`] | [`MemoryNodeRegistered`] |
//! | `POST /v1/memory-nodes/{name}/sync` | [`MemoryNodeSync`] | [`MemoryNodeSynced`] |
//! | `GET /v1/memory-nodes` | - | array of [`MemoryNodeStatus`] |
//! | `POST /v1/compute-nodes` | [`RegisterComputeNode`] | [`ComputeNodeRegistered`] |
//! | `POST /v1/compute-nodes/{cn_id}/sync` | [`ComputeNodeSync`] | [`ComputeNodeSynced`] |
//! | `GET /v1/compute-nodes` | - | array of [`ComputeNode`](crate::model::ComputeNode) |
//! | `POST /v1/regions` | [`CreateRegion`] | [`Region`]: 201 active, 202 still creating |
//! | `GET /v1/regions`, `GET /v1/regions/{name}` | - | [`Region`]s |
//! | `DELETE /v1/regions/{name}?force=&wait_ms=` | - | 204 gone and zeroed; 202 with the [`Region`], draining |
//! | `POST /v1/regions/{name}/reset?wait_ms=` | - | [`Region`]: 200 active, 202 still creating |
//! | `GET /v1/events?after=&limit=&wait_ms=` | - | [`Events`] |
//! | `GET /v1/events/stream?after=` | - | server-sent events, one [`Event`] each |
//! | `GET /v1/health` | - | [`ManagerHealth`] |
//!
//! A request that fails is answered with an [`ErrorBody`] and the status of its [`ErrorCode`].

use serde::{Deserialize, Serialize};

use crate::model::{
    ByteSize, CnId, CommandResult, Event, Extents, Mac, Mapping, MemoryNode, Name, NodeCommand, Region,
    Watermark,
};

/// A memory node says that it is there and what it lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterMemoryNode {
    /// Its name, which is its identity.
    pub name: Name,
    /// Unicast addresses of its ports, at least one; the first is the one CNs use.
    pub macs: Vec<Mac>,
    /// Bytes of its pool; what is left over after whole extents is not used.
    pub pool_bytes: u64,
    /// Bytes of one extent: a power of two, at least 4 KiB. 2 MiB where nothing speaks for another.
    pub extent_bytes: u64,
    /// Which life of the pool's content this is; another one than last time means the content was lost.
    pub incarnation: u64,
    /// Random, chosen at the daemon's start: tells a restart from a second daemon under the same name.
    pub instance_id: u64,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// The highest term and revision the node has seen and kept on disk; a manager that has not come as far refuses.
    #[serde(default)]
    pub seen: Watermark,
}

/// Answer to [`RegisterMemoryNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNodeRegistered {
    /// Number of this registration, to be given in each sync.
    pub registration: u64,
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the last command whose result the manager has. What comes next is `acked_seq + 1`.
    pub acked_seq: u64,
    /// Everything the node has to serve, its content as it is. The node drops every other mapping it holds.
    pub mappings: Vec<Mapping>,
    /// Extents that no region holds. A node that cannot tell whether they are zero zeroes them before they are mapped.
    pub unowned: Extents,
}

/// A memory node is alive, has done these commands, and waits for more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryNodeSync {
    /// Number of the registration.
    pub registration: u64,
    /// Number of the last command carried out (or failed); commands after it are asked for.
    pub acked_seq: u64,
    /// One result for each command up to `acked_seq` whose result was not yet answered. Only these free memory.
    #[serde(default)]
    pub results: Vec<CommandResult>,
    /// Counters and health as the node sees them, shown as they are in `GET /v1/memory-nodes`.
    #[serde(default)]
    pub stats: serde_json::Value,
    /// How long to wait for commands, in milliseconds; the server waits at most its heartbeat.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Answer to [`MemoryNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNodeSynced {
    /// The manager's term and its store's revision.
    pub watermark: Watermark,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Commands to carry out, in this order.
    pub commands: Vec<NodeCommand>,
}

/// A memory node with what follows from the regions on it and what it said of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryNodeStatus {
    /// The node.
    #[serde(flatten)]
    pub node: MemoryNode,
    /// Bytes no region holds.
    pub free_bytes: u64,
    /// Bytes of regions being taken down, not yet confirmed as zeroed. Of an unreachable node they stay here.
    pub draining_bytes: u64,
    /// Commands issued and not yet answered with a result.
    pub pending_commands: u64,
    /// What the node reported in its last sync.
    #[serde(default)]
    pub stats: serde_json::Value,
}

/// A compute node says that it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterComputeNode {
    /// Its identity: the address it sends frames from.
    pub cn_id: CnId,
    /// Its name, unique among compute nodes.
    pub name: Name,
    /// Random, chosen at the agent's start: tells a restart from a second agent with the same CN id.
    pub instance_id: u64,
}

/// Answer to [`RegisterComputeNode`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeNodeRegistered {
    /// Number of this registration, to be given in each sync.
    pub registration: u64,
    /// The manager's term.
    pub term: u64,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event contained in `regions`; the first sync goes on from it.
    pub after_event: u64,
    /// Every region of this node.
    pub regions: Vec<Region>,
}

/// A compute node is alive and waits for changes to its regions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeNodeSync {
    /// Number of the registration.
    pub registration: u64,
    /// Number of the latest event contained in the regions the node has.
    pub after_event: u64,
    /// How long to wait for a change, in milliseconds; the server waits at most its heartbeat.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Answer to [`ComputeNodeSync`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeNodeSynced {
    /// The manager's term.
    pub term: u64,
    /// A sync is due at least this often, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the latest event contained here, for the next sync.
    pub after_event: u64,
    /// Every region of this node if one changed after the event asked from; `None`: nothing changed.
    pub regions: Option<Vec<Region>>,
}

/// Who a region is for: a CN id, which need not have registered yet, or the name of a compute node that has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Owner {
    /// By CN id.
    CnId(CnId),
    /// By name.
    Name(Name),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CnId(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl std::str::FromStr for Owner {
    type Err = crate::model::NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::CnId).or_else(|_| text.parse().map(Self::Name))
    }
}

impl From<CnId> for Owner {
    fn from(id: CnId) -> Self {
        Self::CnId(id)
    }
}

/// Interleave ways when none are asked for.
pub const WAYS_DEFAULT: u32 = 1;
/// Interleave granularity in bytes when none is asked for.
pub const GRANULARITY_DEFAULT: u32 = 4096;
/// How long creating, resetting and destroying wait for memory nodes when not told otherwise, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 10_000;

/// Asks for a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRegion {
    /// Its name, unique in the fabric.
    pub name: Name,
    /// Bytes: a multiple of the extent size of the memory nodes.
    pub size: ByteSize,
    /// Who it is for.
    pub owner: Owner,
    /// Interleave ways.
    #[serde(default = "ways_default")]
    pub ways: u32,
    /// Interleave granularity in bytes: a power of two, 256 to 16384.
    #[serde(default = "granularity_default")]
    pub granularity: u32,
    /// How long to wait for its memory nodes to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

impl CreateRegion {
    /// A region of `size` bytes for `owner`, all else by default.
    pub fn new(name: Name, size: u64, owner: impl Into<Owner>) -> Self {
        Self {
            name,
            size: ByteSize(size),
            owner: owner.into(),
            ways: WAYS_DEFAULT,
            granularity: GRANULARITY_DEFAULT,
            wait_ms: WAIT_MS_DEFAULT,
        }
    }
}

fn ways_default() -> u32 {
    WAYS_DEFAULT
}

fn granularity_default() -> u32 {
    GRANULARITY_DEFAULT
}

fn wait_ms_default() -> u64 {
    WAIT_MS_DEFAULT
}

/// Query of `DELETE /v1/regions/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestroyRegion {
    /// Destroy it although its owner's agent is there and may be using it.
    #[serde(default)]
    pub force: bool,
    /// How long to wait for its memory to be zeroed, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Query of `POST /v1/regions/{name}/reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetRegion {
    /// How long to wait for its memory nodes to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Query of `GET /v1/events`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Number of the last event the reader has.
    #[serde(default)]
    pub after: u64,
    /// At most this many; the server has a limit of its own.
    #[serde(default)]
    pub limit: Option<u64>,
    /// How long to wait for the first, in milliseconds; the server waits at most a minute.
    #[serde(default)]
    pub wait_ms: u64,
}

/// A part of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Number of the oldest event still kept. Above `after + 1`: those in between are gone.
    pub oldest: u64,
    /// Number of the newest event.
    pub newest: u64,
    /// The events asked for, oldest first.
    pub events: Vec<Event>,
}

/// Whether the manager is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerHealth {
    /// `"ok"`.
    pub status: String,
    /// Version of the manager.
    pub version: String,
    /// Its term and its store's revision.
    pub watermark: Watermark,
    /// Memory nodes known, and reachable.
    pub memory_nodes: NodeCount,
    /// Compute nodes known, and reachable.
    pub compute_nodes: NodeCount,
    /// Regions of any state.
    pub regions: u64,
}

/// How many nodes there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCount {
    /// Known to the store.
    pub known: u64,
    /// Of these, heard of within the node time-out.
    pub reachable: u64,
}

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was tried, on what, and why it did not work.
    pub error: String,
    /// The same for programs.
    pub code: ErrorCode,
    /// What to do about it.
    pub hint: String,
}

/// Kinds of failure, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed or a value of it is out of range. 400
    BadRequest,
    /// No such path, node or region. 404
    NotFound,
    /// The path exists, the method does not. 405
    MethodNotAllowed,
    /// The request did not arrive in time. 408
    Timeout,
    /// The name or the address belongs to another. 409
    NameInUse,
    /// The registration was superseded by a later one, or the node never registered here. 409
    NotRegistered,
    /// The region's state does not allow it. 409
    WrongState,
    /// The region's owner is there and may be using it. 409
    RegionInUse,
    /// This manager has not come as far as the node has seen: its store is old or another. 409
    StaleManager,
    /// The body is larger than the server takes. 413
    TooLarge,
    /// A limit of the manager is reached. 429
    LimitReached,
    /// A memory node refused a command. 502
    NodeRefused,
    /// The manager has too much to do or is ending. 503
    Unavailable,
    /// The store failed. 500
    StoreFailed,
    /// Not enough free memory on reachable memory nodes. 507
    NoSpace,
    /// A code this version does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The HTTP status that goes with it.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::NameInUse
            | Self::NotRegistered
            | Self::WrongState
            | Self::RegionInUse
            | Self::StaleManager => 409,
            Self::TooLarge => 413,
            Self::LimitReached => 429,
            Self::StoreFailed | Self::Unknown => 500,
            Self::NodeRefused => 502,
            Self::Unavailable => 503,
            Self::NoSpace => 507,
        }
    }
}
