//! What a responder needs to know before its first frame.

use alloc::sync::Arc;
use core::time::Duration;

use crate::frame::Mac;
use crate::session::entropy::Entropy;
use crate::session::framer::PreSharedKey;
use crate::session::noise::NodeKey;
#[cfg(doc)]
use crate::session::{Memory, STREAMS_MAX};

/// What a responder needs to know.
#[derive(Clone, Debug)]
pub struct ResponderConfig {
    /// The memory node's address.
    pub own: Mac,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// The largest frame this end's link carries.
    pub max_frame: usize,
    /// Sessions at most; a further CN is refused with `NoResources`.
    pub sessions_max: usize,
    /// Of these, sessions that guests ([`Memory::has_memory`]) may have; a further one is refused with `NotAllowed`.
    pub guests_max: usize,
    /// Streams a session may have, at most [`STREAMS_MAX`].
    pub streams_max: u8,
    /// Early writes a session may have waiting (R10).
    pub early_buffers: usize,
    /// Early writes that may wait in all sessions together (R10).
    pub early_buffers_total: usize,
    /// A session without any frame for this long is forgotten.
    pub idle_after: Duration,
    /// Incarnation of the memory: changes when its content was lost.
    pub incarnation: u64,
    /// Pre-shared key for the frames of CNs without a key of their own; `None` for the plain trailer.
    pub key: Option<PreSharedKey>,
    /// This node's key, by which it talks with CNs that have one; `None`: with none of these.
    pub node_key: Option<Arc<NodeKey>>,
    /// Where session ids, nonces and ephemeral keys come from.
    pub seed: Entropy,
}

impl ResponderConfig {
    /// Usual limits for a node at `own`.
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
