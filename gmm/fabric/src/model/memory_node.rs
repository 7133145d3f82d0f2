//! Record of a memory node: its addresses, its pool, and the incarnation of the pool's content. The extents in use are
//! not recorded here but follow from the legs of all regions, so the two cannot contradict each other.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{DeviceKind, Health, Mac, Name, PublicKey};

/// A server that lends a pool of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryNode {
    /// Name of the node, which is its identity: a daemon that registers under this name is this node.
    pub name: Name,
    /// Number of the node, the lowest free one when it was recorded; determines its place in the FM API.
    pub index: u32,
    /// Allocation of the node: in slices to many compute nodes, or whole to one.
    pub kind: DeviceKind,
    /// Addresses of the node's ports, at least one; compute nodes send to these.
    pub macs: Vec<Mac>,
    /// Address of the node's ports over the `udp` link; none if it does not use that link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Public key that proves the node's identity to other nodes; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Label of the rack that the node is in; none if it has no label. Copies of a region are on different racks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<Name>,
    /// True while the node is drained: nothing is placed on it, and the parts of regions on it move to other nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Size of the node's pool in bytes.
    pub pool_bytes: u64,
    /// Size of an extent, the unit of allocation, in bytes: a power of two.
    pub extent_bytes: u64,
    /// Number that identifies the content of the pool; it changes when the content is lost.
    pub incarnation: u64,
    /// Random number of the daemon process that registered last.
    pub instance_id: u64,
    /// Start time of that process by its own clock, in milliseconds since the Unix epoch; 0 if unknown.
    #[serde(default)]
    pub started_ms: u64,
    /// MTU of the node's ports, in bytes.
    pub mtu: u32,
    /// Number of the node's latest registration; a sync with an older number is refused.
    pub registration: u64,
    /// Reachable if the node has sent a message within the node time-out.
    pub health: Health,
    /// Number of the latest command issued to the node; 0 before the first.
    pub last_seq: u64,
    /// Highest number such that the node has given a result for every command up to it.
    pub acked_seq: u64,
}

impl MemoryNode {
    /// Number of whole extents in the pool.
    pub fn extent_count(&self) -> u64 {
        self.pool_bytes / self.extent_bytes
    }
}
