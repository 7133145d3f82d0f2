//! Record of a compute node. It includes the allocated CMem addresses, so that none is reused before every
//! request for it has ended. The record is removed by order of a user once the node has no regions, or when
//! the table is full and another node registers.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{CnId, Health, Name, PublicKey};

/// A server that uses remote memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNode {
    /// CN id of the node: the source address of its frames.
    pub cn_id: CnId,
    /// Number of the node, the lowest free one when it was recorded; determines its place in the FM API.
    pub index: u32,
    /// Name of the node; none until it registers with one.
    pub name: Option<Name>,
    /// Address of the node's frames over the `udp` link; none if it does not use that link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Public key that proves the node's identity to other nodes; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Random number of the agent process that registered last.
    pub instance_id: u64,
    /// Number of the node's latest registration; a sync with an older number is refused. 0: never registered.
    pub registration: u64,
    /// True if the agent that registered last has shut down after each of its writes was complete on all copies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// Reachable if the node has sent a message within the node time-out.
    pub health: Health,
    /// Quota of the node: maximum total size of its regions, in bytes; none if it has no quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// True while the node is held in reset: it attaches nothing until it is released.
    #[serde(default)]
    pub held: bool,
    /// True if a user holds the node in reset. False if it is only held until the regions that the fabric file declares
    /// for it exist.
    #[serde(default)]
    pub held_by_hand: bool,
    /// End of the CMem addresses ever allocated to the node. Never decreases.
    pub cmem_next: u64,
    /// Ranges of CMem that were allocated and are not in use, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
    /// Number of an event, the latest one for which this holds: every request that the agent made before it received
    /// the event has ended.
    #[serde(default)]
    pub quiet: u64,
    /// Number of the latest event that changed the node's regions or held or released the node.
    pub regions_event: u64,
}

/// CMem of a compute node that no memory node maps any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Retired {
    /// First byte address of the range.
    pub base: u64,
    /// Size of the range in bytes.
    pub bytes: u64,
    /// Instance id of the agent that used the range.
    pub instance_id: u64,
    /// Number of the event that notifies that agent that the region no longer has this range.
    pub event: u64,
}

/// The outer address of a compute node over the `udp` link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UdpPeer {
    /// CN id of the compute node that uses the address.
    pub compute_node: CnId,
    /// UDP address that the node's frames are sent to and from.
    pub address: SocketAddr,
}

/// Key that a memory node requires in sessions of a compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeNodeKey {
    /// CN id of the compute node that opens the sessions.
    pub compute_node: CnId,
    /// The node's key; zeros if it has none or a revoked one.
    pub key: PublicKey,
}
