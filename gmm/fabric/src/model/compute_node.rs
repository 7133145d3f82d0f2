//! A compute node as the manager remembers it: also which of its CMem addresses were handed out, so that none is again
//! before every request that was made for it has ended. It is forgotten when it has nothing any more and somebody says
//! so, or when others need its place.

use core::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Health, Name, PublicKey};

/// A server that uses remote memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNode {
    /// Its identity: the address it sends its frames from.
    pub cn_id: CnId,
    /// Its number among compute nodes, the lowest that was free: its place in the FM API.
    pub index: u32,
    /// Its name; none until it registers with one.
    pub name: Option<Name>,
    /// Where its frames come from over the `udp` link, and go to; none if it does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Its public key, by which it proves who it is to other nodes; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Identifies the run of the agent that registered last (random at its start).
    pub instance_id: u64,
    /// Number of its latest registration; a sync under an older one is refused. 0: never registered.
    pub registration: u64,
    /// Whether it is heard of.
    pub health: Health,
    /// Most bytes of regions it may have; none: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Held in reset: it attaches nothing until it is released.
    #[serde(default)]
    pub held: bool,
    /// Held because someone said so, not because what is declared for it has yet to come about.
    #[serde(default)]
    pub held_by_hand: bool,
    /// CMem below this byte address was handed out at some time. Only grows.
    pub cmem_next: u64,
    /// CMem that was handed out and is nobody's any more, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
    /// No request is on its way that the agent made before it had heard of this event.
    #[serde(default)]
    pub quiet: u64,
    /// Sequence number of the latest event that changed its regions or its being held.
    pub regions_event: u64,
}

/// CMem of a compute node that no memory node has mapped any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retired {
    /// Its first byte address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// The run of the agent that had it.
    pub instance_id: u64,
    /// The event by which that agent hears that it has it no more.
    pub event: u64,
}

/// Which outer address speaks for a compute node over the `udp` link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UdpPeer {
    /// The compute node.
    pub compute_node: CnId,
    /// Where its frames come from, and go to.
    pub address: SocketAddr,
}

/// Which public key belongs to a compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeNodeKey {
    /// The compute node.
    pub compute_node: CnId,
    /// Its key.
    pub key: PublicKey,
}
