//! Bodies of requests about nodes that do not accept this manager because its store lacks changes they have seen, and
//! about memory that a memory node holds although it belongs to no region.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{CnId, Mapping, Name, Watermark};

/// Subject of a certificate of the fabric: a node of either kind, or a client of the FM API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Party {
    /// A memory node, by its name.
    MemoryNode(Name),
    /// A compute node, by its CN id.
    ComputeNode(CnId),
    /// A client of the FM API, by the name it joined with.
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

/// Memory that a node holds for a compute node, as reported by the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The compute node for which the memory is mapped.
    pub compute_node: CnId,
    /// Name of the region, if the node records it, as compute nodes do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
    /// Creation time of the region in milliseconds since the Unix epoch, which distinguishes it from a later region of
    /// the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_ms: Option<u64>,
    /// Size of the memory in bytes.
    pub bytes: u64,
}

/// Report of a node that does not accept this manager, with the memory that the node holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NotFollowed {
    /// The memory node, compute node or FM client that does not accept this manager.
    pub node: Party,
    /// The watermark (term and revision) of the manager that the node accepted last.
    pub seen: Watermark,
    /// The memory that the node holds.
    #[serde(default)]
    pub holds: Vec<Held>,
}

/// A node that does not accept this manager, because the store lacks changes that the node has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RefusedNode {
    /// The memory node, compute node or FM client that does not accept this manager.
    pub node: Party,
    /// The watermark (term and revision) of the manager that the node accepted last.
    pub seen: Watermark,
    /// Time of the first refusal, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Time of the node's latest message, in milliseconds since the Unix epoch.
    pub heard_ms: u64,
    /// Memory that the node holds and this store does not contain: it is lost if this store is adopted. Also empty
    /// until the node has reported its memory.
    pub would_lose: Vec<Held>,
}

/// Request to have nodes accept this manager although its store lacks changes that they have seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AdoptFabric {
    /// The watermarks that the nodes have seen, from [`RefusedNode`]s: nodes with other watermarks still do not accept
    /// this manager.
    pub seen: Vec<Watermark>,
}

/// Report of a memory node about memory that belongs to no region; the node keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportOrphans {
    /// Number of the node's latest registration.
    pub registration: u64,
    /// The compute nodes and extents of the orphans; the region names in the mappings are ignored.
    pub orphans: Vec<Mapping>,
}

/// Query of `POST /v1/memory-nodes/{name}/release-orphans`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseOrphans {
    /// Maximum wait for the memory to be zeroed, in milliseconds.
    #[serde(default = "super::regions::wait_ms_default")]
    pub wait_ms: u64,
}

/// Memory of a memory node that belongs to no region and is not allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Orphans {
    /// Name of the memory node that holds these orphans.
    pub memory_node: Name,
    /// The extents, and the compute nodes for which they were mapped.
    pub orphans: Vec<Mapping>,
}

impl Orphans {
    pub fn bytes(&self) -> u64 {
        self.orphans.iter().map(Mapping::bytes).sum()
    }
}
