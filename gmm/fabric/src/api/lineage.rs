//! Nodes that do not follow this manager, for it lacks what they have seen; and memory that a memory node holds although
//! no region has it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{CnId, Mapping, Name, Watermark};

/// Who has a certificate of the fabric: a node of either kind, or a client of the FM API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Party {
    /// A memory node, by name.
    MemoryNode(Name),
    /// A compute node, by CN id.
    ComputeNode(CnId),
    /// A client of the FM API, by name.
    FmClient(Name),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryNode(name) => write!(f, "memory node {name}"),
            Self::ComputeNode(cn) => write!(f, "compute node {cn}"),
            Self::FmClient(name) => write!(f, "FM client {name}"),
        }
    }
}

/// Memory that a node holds, as it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Whose it is.
    pub compute_node: CnId,
    /// The region, where the node knows it: compute nodes do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
    /// Creation of that region in milliseconds since the Unix epoch, which tells it from another one of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_ms: Option<u64>,
    /// Bytes.
    pub bytes: u64,
}

/// A node says that it does not follow this manager, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotFollowed {
    /// The node.
    pub node: Party,
    /// How far the manager had come that it followed last.
    pub seen: Watermark,
    /// What it holds.
    #[serde(default)]
    pub holds: Vec<Held>,
}

/// A node that does not follow this manager, since its store lacks what the node has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedNode {
    /// The node.
    pub node: Party,
    /// How far the manager had come that it followed last.
    pub seen: Watermark,
    /// Since when it has been refused: milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it was heard last.
    pub heard_ms: u64,
    /// What it holds and this store does not list: lost, should this store be adopted. Empty also while the node has not
    /// said what it holds.
    pub would_lose: Vec<Held>,
}

/// Has nodes follow this manager although its store lacks what they have seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptFabric {
    /// What the nodes have seen, as [`RefusedNode`]s say it: nobody else follows then.
    pub seen: Vec<Watermark>,
}

/// Has a backup take the place of all that the store has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreStore {
    /// The backup, as `GET /v1/backup` gave it.
    pub backup: String,
    /// Although it is another fabric's.
    #[serde(default)]
    pub other_fabric: bool,
}

/// A backup has taken the place of all that the store had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RestoredStore {
    /// How far the store had come before.
    pub before: Watermark,
    /// How far it had when the backup was taken. Nodes that have seen more refuse it until that is given up.
    pub restored: Watermark,
    /// Where it is now.
    pub now: Watermark,
}

/// A memory node holds memory that no region has; it keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportOrphans {
    /// Number of the node's registration.
    pub registration: u64,
    /// Whose memory it was, and which extents. The names of regions say nothing.
    pub orphans: Vec<Mapping>,
}

/// Query of `POST /v1/memory-nodes/{name}/release-orphans`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseOrphans {
    /// How long to wait for the memory to be zeroed, in milliseconds.
    #[serde(default = "super::regions::wait_ms_default")]
    pub wait_ms: u64,
}

/// Memory of a memory node that no region has, and that is not given away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Orphans {
    /// The memory node.
    pub memory_node: Name,
    /// Whose memory it was, and which extents.
    pub orphans: Vec<Mapping>,
}

impl Orphans {
    /// Bytes of them all.
    pub fn bytes(&self) -> u64 {
        self.orphans.iter().map(Mapping::bytes).sum()
    }
}
