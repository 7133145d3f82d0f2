//! Configuration of a responder, complete before the first frame.

use alloc::sync::Arc;
use core::time::Duration;

use crate::frame::Mac;
use crate::session::entropy::Entropy;
use crate::session::framer::PreSharedKey;
use crate::session::noise::NodeKey;
#[cfg(doc)]
use crate::session::{Memory, STREAMS_MAX};

/// Configuration of a responder; fixed while it runs, except for the frame length.
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// MAC address of the memory node.
    pub own: Mac,
    /// EtherType of the sessions' frames.
    pub ethertype: u16,
    /// Largest frame that this end's link carries, in bytes from the destination MAC to the end of the trailer.
    pub max_frame: usize,
    /// Most sessions of all CNs; a further CN is refused with `NoResources`.
    pub sessions_max: usize,
    /// Most sessions of guests (CNs without memory, [`Memory::has_memory`]); a further guest is refused with
    /// `NotAllowed`.
    pub guests_max: usize,
    /// Most streams of a session, at most [`STREAMS_MAX`].
    pub streams_max: u8,
    /// Most early writes of one session that wait in buffers (R10).
    pub early_buffers: usize,
    /// Most early writes of all sessions together that wait in buffers (R10).
    pub early_buffers_total: usize,
    /// Time without any frame after which a session is removed.
    pub idle_after: Duration,
    /// Incarnation of the pool: another value means that its content was lost.
    pub incarnation: u64,
    /// Pre-shared key for the frames of CNs without a key of their own; `None` for the plain trailer.
    pub key: Option<PreSharedKey>,
    /// Key of this node, for sessions with CNs that have a key; `None`: no such sessions.
    pub node_key: Option<Arc<NodeKey>>,
    /// Source of session ids, nonces and ephemeral keys.
    pub seed: Entropy,
}

impl ResponderConfig {
    /// Default limits, for a node at the address `own`.
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
