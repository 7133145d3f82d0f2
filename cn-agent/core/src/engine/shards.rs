//! Several queues: each memory node has one session for each queue, and its pages are distributed over the sessions.
//!
//! ```text
//!   CMem page 0, N, 2N ...     --> session 0: this node's own address,  queue 0
//!   CMem page 1, N + 1 ...     --> session 1: the address of shard 1,   queue 1
//! ```
//!
//! For users of the engine a memory node is one peer, whose index is that of its first session; the indices of the
//! other sessions follow. A loss of content found by one session counts for all. A memory node gets operations only
//! while all its sessions are open: none before the last of them has opened, and none after one has been silent for the
//! session's time-out. So a region never answers for only some of its pages.

use cxloe_wire::frame::SHARDS_MAX;
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{Requester, RequesterConfig};
use cxloe_wire::time::Time;

use super::pacing::PeerPacer;
use super::{Engine, EngineError, PeerSession};

impl Engine {
    /// Sets the number of queues of the link: memory nodes added later get one session for each queue. To be called
    /// before the first memory node is added.
    ///
    /// # Panics
    /// If `queues` is no power of two up to [`SHARDS_MAX`], there are not that many shards, or a peer was added.
    pub fn set_queues(&mut self, queues: usize) {
        assert!(queues.is_power_of_two() && self.peers.is_empty());
        assert!(usize::from(self.shard) + queues <= usize::from(SHARDS_MAX));
        self.queues_log2 = queues.trailing_zeros();
    }

    /// Makes the engine one of several engines of this compute node, each with its own link, cache and
    /// sessions; the session on the first queue belongs to shard `first`. The user of the engines ensures
    /// that no line is accessed through two of them. The session of shard 0 opens first. To be called before
    /// the first peer is added.
    ///
    /// # Panics
    /// If there is no such shard, or a peer was added.
    pub fn set_shard(&mut self, first: u8) {
        assert!(first < SHARDS_MAX && self.peers.is_empty());
        self.shard = first;
    }

    /// Number of sessions with each memory node.
    #[inline]
    pub(super) fn queues(&self) -> usize {
        1 << self.queues_log2
    }

    /// Opens a session with a memory node for shard `shard`, on queue `queue` of the link.
    pub(super) fn add_session(&mut self, mut config: RequesterConfig, queue: u8, shard: u8, now: Time) {
        let (owner, mac) = (config.identity.own, config.identity.peer);
        let own = owner.shard(shard);
        config.identity.own = own;
        // The seeds differ, so that nonces of two sessions differ.
        config.seed = config.seed.part(u64::from(shard) << 56);
        let sealed = config.key.is_some() || config.keys.is_some();
        let mut requester = Requester::new(config);
        requester.set_features(self.features);
        requester.set_shard(owner, shard);
        if self.held {
            requester.hold();
        }
        requester.connect(now);
        self.deadline.keep_earlier(requester.deadline());
        let pacer = self.pacing.map(|p| PeerPacer::new(&p, sealed, 0, now));
        self.peers.push(PeerSession {
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

    /// Returns the session for the page of `cmem`; `first` is the first session with the same memory node.
    #[inline]
    pub(super) fn session_of(&self, first: usize, cmem: u64) -> usize {
        session_of(first, cmem, self.queues())
    }

    /// Like [`session_of`](Self::session_of), but for a new operation.
    ///
    /// # Errors
    /// [`EngineError::NotConnected`] before all sessions with the memory node have opened, and after one of them has
    /// died.
    #[inline]
    pub(super) fn shard_of(&mut self, first: usize, cmem: u64) -> Result<usize, EngineError> {
        let sessions = &self.peers[first..first + self.queues()];
        if sessions.iter().any(|session| session.away) {
            self.core.counters.failures += 1;
            return Err(EngineError::NotConnected(self.peers[first].mac));
        }
        Ok(self.session_of(first, cmem))
    }

    /// Returns the sessions with the same memory node as session `index`.
    pub(super) fn siblings(&self, index: usize) -> core::ops::Range<usize> {
        let first = index & !(self.queues() - 1);
        first..first + self.queues()
    }

    /// Returns the stream of the page of `cmem` (R12). Consecutive pages of one session use different
    /// streams.
    #[inline]
    pub(super) fn stream_of(&self, cmem: u64) -> u8 {
        (cmem >> (12 + self.queues_log2)) as u8
    }
}

/// Like [`Engine::session_of`], for an engine with `queues` queues.
#[inline]
pub(super) fn session_of(first: usize, cmem: u64, queues: usize) -> usize {
    first + ((cmem >> 12) as usize & (queues - 1))
}
