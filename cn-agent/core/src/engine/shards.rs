//! Several queues: each memory node has a session with each of them, by page.
//!
//! ```text
//!   CMem page 0, N, 2N ...     --> session 0: this node's own address,  queue 0
//!   CMem page 1, N + 1 ...     --> session 1: the address of shard 1,   queue 1
//! ```
//!
//! To everybody else a memory node is one peer, that of its first session; the others follow it. What is known of one is
//! known of all: content that is lost is lost for all; and a memory node takes nothing by any before it has answered all, nor
//! while it has not answered one for as long as a session lasts in silence. So a region never answers here and not there.

use cxloe_wire::frame::SHARDS_MAX;
use cxloe_wire::session::{Requester, RequesterConfig};
use cxloe_wire::time::Time;

use super::pacing::PeerPacer;
use super::{Engine, EngineError, Peer};

impl Engine {
    /// Has memory nodes that are added from now on make a session for each of `queues` queues of the link. To be called
    /// before the first is added.
    ///
    /// # Panics
    /// If `queues` is no power of two up to [`SHARDS_MAX`], or a peer was added.
    pub fn set_queues(&mut self, queues: usize) {
        assert!(queues.is_power_of_two() && queues <= usize::from(SHARDS_MAX) && self.peers.is_empty());
        (self.queues_log2, self.shard) = (queues.trailing_zeros(), 0);
    }

    /// Has the engine be one shard of this compute node, with its link, its cache and one session with each memory node:
    /// other shards are other engines', and whoever uses several sees to it that no line is known to two of them. The
    /// session of shard 0 comes first. To be called before the first peer is added.
    ///
    /// # Panics
    /// If there is no such shard, or a peer was added.
    pub fn set_shard(&mut self, shard: u8) {
        assert!(shard < SHARDS_MAX && self.peers.is_empty());
        (self.queues_log2, self.shard) = (0, shard);
    }

    /// Sessions with each memory node.
    #[inline]
    pub(super) fn queues(&self) -> usize {
        1 << self.queues_log2
    }

    /// Calls a memory node as this shard, by this queue of the link.
    pub(super) fn add_session(&mut self, mut config: RequesterConfig, queue: u8, shard: u8, now: Time) {
        let (owner, mac) = (config.identity.own, config.identity.peer);
        let own = owner.shard(shard);
        config.identity.own = own;
        // Nonces of two sessions must differ.
        config.seed = config.seed.part(u64::from(shard) << 56);
        let sealed = config.key.is_some() || config.keys.is_some();
        let mut requester = Requester::new(config);
        requester.set_features(self.features);
        requester.set_shard(owner, shard);
        if self.held {
            requester.hold();
        }
        requester.connect(now);
        self.deadline = self.deadline.min(requester.deadline());
        let pacer = self.pacing.map(|p| PeerPacer::new(&p, sealed, 0, now));
        self.peers.push(Peer {
            mac,
            own,
            queue,
            away: self.queues_log2 > 0,
            requester,
            incarnation: None,
            sealed,
            pacer,
        });
    }

    /// Which of the sessions with the memory node whose first is `first` has the page of `cmem`.
    #[inline]
    pub(super) fn session_of(&self, first: usize, cmem: u64) -> usize {
        first + ((cmem >> 12) as usize & (self.queues() - 1))
    }

    /// The same for a new operation.
    ///
    /// # Errors
    /// [`EngineError::NotConnected`] until all of the sessions have been open, and while one has died.
    #[inline]
    pub(super) fn shard_of(&mut self, first: usize, cmem: u64) -> Result<usize, EngineError> {
        let sessions = &self.peers[first..first + self.queues()];
        if sessions.iter().any(|session| session.away) {
            self.core.counters.failures += 1;
            return Err(EngineError::NotConnected(self.peers[first].mac));
        }
        Ok(self.session_of(first, cmem))
    }

    /// The sessions with the same memory node as session `index`.
    pub(super) fn siblings(&self, index: usize) -> core::ops::Range<usize> {
        let first = index & !(self.queues() - 1);
        first..first + self.queues()
    }

    /// A page's stream (R12): pages next to each other in one session take turns.
    #[inline]
    pub(super) fn stream_of(&self, cmem: u64) -> u8 {
        (cmem >> (12 + self.queues_log2)) as u8
    }
}
