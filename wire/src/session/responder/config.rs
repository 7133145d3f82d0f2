//! Configuration of a responder: addresses, keys, and the limits that hold against many or hostile CNs.

use alloc::sync::Arc;
use core::time::Duration;

use crate::frame::Mac;
use crate::session::entropy::Entropy;
use crate::session::framer::PreSharedKey;
use crate::session::noise::NodeKey;
#[cfg(doc)]
use crate::session::{Memory, STREAMS_MAX};

/// Configuration of a responder; fixed while the responder runs, except for the frame length.
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// MAC address of the memory node, which its frames are sent from.
    pub own: Mac,
    /// EtherType of the sessions' frames; frames with another one do not reach the responder.
    pub ethertype: u16,
    /// Longest frame that this end's link carries, in bytes from the destination MAC to the end of the
    /// trailer.
    pub max_frame: usize,
    /// Maximum number of sessions of all CNs together; a further CN is refused with `NoResources`.
    pub sessions_max: usize,
    /// Maximum number of sessions of guests (CNs without memory, [`Memory::has_memory`]); a further guest is
    /// refused with `NotAllowed`.
    pub guests_max: usize,
    /// Maximum number of streams of a session, at most [`STREAMS_MAX`].
    pub streams_max: u8,
    /// Maximum number of early writes that one session keeps in buffers (R10).
    pub early_buffers: usize,
    /// Maximum number of early writes that all sessions together keep in buffers (R10).
    pub early_buffers_total: usize,
    /// Time without any frame after which a session is removed.
    pub idle_after: Duration,
    /// Incarnation of the pool; a new value tells CNs that the pool's content was lost.
    pub incarnation: u64,
    /// Pre-shared key for sessions with CNs that have no node key; `None` gives them the plain trailer.
    pub key: Option<PreSharedKey>,
    /// Key of this node, for sessions with CNs that have a node key; `None` permits no such sessions.
    pub node_key: Option<Arc<NodeKey>>,
    /// Source of session ids, nonces and ephemeral keys.
    pub seed: Entropy,
}

impl ResponderConfig {
    /// Makes a configuration with default limits, for a node at the address `own`.
    pub fn new(own: Mac, max_frame: usize, incarnation: u64, seed: impl Into<Entropy>) -> Self {
        ResponderConfig {
            own,
            ethertype: crate::frame::ETHERTYPE_DEFAULT,
            max_frame,
            sessions_max: 256,
            guests_max: 16,
            streams_max: 16,
            early_buffers: 128,
            early_buffers_total: 8192,
            idle_after: Duration::from_secs(15),
            incarnation,
            key: None,
            node_key: None,
            seed: seed.into(),
        }
    }
}
