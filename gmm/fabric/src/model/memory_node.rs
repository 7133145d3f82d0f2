//! A memory node as the manager remembers it: where it is, what it lends, and which life of its memory this is. Which of
//! its extents are in use is not kept here but follows from the legs of all regions, so the two can never disagree.

use core::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceKind, Health, Mac, Name, PublicKey};

/// A server that lends a pool of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryNode {
    /// Its name, which is its identity: a node that registers again under its name is the same node.
    pub name: Name,
    /// Its number among memory nodes, the lowest that was free: its place in the FM API.
    pub index: u32,
    /// Whether it is given away in slices or whole.
    pub kind: DeviceKind,
    /// Addresses of its ports, at least one; CNs send to these.
    pub macs: Vec<Mac>,
    /// Where frames for these go over the `udp` link; none if it does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Its public key, by which it proves who it is to other nodes; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Bytes of one extent, a power of two: the unit in which its pool is given away.
    pub extent_bytes: u64,
    /// Which life of the pool's content this is. It changes whenever the content was lost.
    pub incarnation: u64,
    /// Identifies the run of the daemon that registered last (random at its start).
    pub instance_id: u64,
    /// When that daemon started, milliseconds since the Unix epoch by its own clock; 0 if it did not say.
    #[serde(default)]
    pub started_ms: u64,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// Number of its latest registration; a sync under an older one is refused.
    pub registration: u64,
    /// Whether it is heard of.
    pub health: Health,
    /// Sequence number of the latest command issued to it; 0 before the first.
    pub last_seq: u64,
    /// Sequence number up to which it has given a result for every command.
    pub acked_seq: u64,
}

impl MemoryNode {
    /// How many whole extents the pool has.
    pub fn extent_count(&self) -> u64 {
        self.pool_bytes / self.extent_bytes
    }
}
