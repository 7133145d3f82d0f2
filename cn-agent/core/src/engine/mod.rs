//! The compute node's engine: line operations in, completions out, without I/O.
//!
//! Driven by the contract of all machines ([`cxloe_wire::machine`]); [`round`](crate::node::round) has the same steps in
//! the order that serves users best:
//!
//! ```text
//!   loop {
//!       for frame in received { engine.handle(frame, now, tx, sink); }
//!       engine.read(...), engine.write(...);        // requests: sent at once, or Busy until the next poll
//!       if engine.deadline().is_due(now) { engine.poll(now, tx, sink); }
//!       while let Some((session, job)) = engine.poll_handshake() { ... }    // its result: handshake_done
//!       while let Some(event) = engine.poll_event() { ... }
//!       flush the link; wait for frames and users, until engine.deadline() at the latest
//!   }
//! ```
//!
//! ```text
//!   read, write, bursts --> line cache --hit--> done
//!                              | miss, victim
//!                              v
//!                           routes: HPA -> memory node, CMem      (none: local memory, or a decode-miss policy)
//!                              |
//!                              v
//!                           Requester of that memory node --> frames
//!   completions  <----------  answers  <------------------  frames
//!
//!   A write to a mirrored position goes to the requesters of both of its legs (`mirror`).
//! ```
//!
//! One operation becomes at most one request frame, so no partial state is kept. An operation that cannot be accepted
//! now is refused with [`EngineError::Busy`], and the caller repeats it after the next poll. A larger range is divided
//! into segments ([`SegmentIter`]). If there is room, all segments are in flight at once, to as many memory nodes as
//! the range is interleaved over.
//!
//! Invariants of memory consistency:
//! * all requests of a 4 KiB page of a memory node's CMem travel on one stream, in order (R12);
//! * a write waits for a read of the same line in flight (R7), and so does the eviction of a modified line;
//! * a request needs tokens (`pacing`);
//! * a modified line moves from the cache to the retry buffer. If the session ends before the line is acknowledged, the
//!   line is kept ([`Engine::stranded`]) until the memory node returns, so that a failed link loses no acknowledged
//!   write.

mod adopt;
mod bursts;
mod completer;
mod drain;
mod error;
mod flush;
mod inflight;
mod keys;
mod lines;
mod local;
mod location;
mod mirror;
mod miss_policy;
mod pacing;
mod packing;
mod request_id;
mod routes;
mod sealed;
mod segment;
mod segment_iter;
mod shards;
mod turns;
mod write_back;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;

use cxloe_fabric::hdm::Decoder;
use cxloe_wire::frame::{FEATURES, LINE_SIZE, Mac};
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::{Rejected, Requester, RequesterConfig, RequesterStatus, SessionEvent};
use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use completer::{Op, Ops};
use drain::DrainingRanges;
pub use drain::{DrainReason, WriteBackRange};
pub use error::EngineError;
pub use flush::Flush;
use inflight::InFlight;
pub use lines::CacheMiss;
use local::LocalRanges;
pub use local::{LocalMemory, MemoryGone};
use location::Location;
pub use mirror::LegTarget;
use mirror::Mirrors;
use miss_policy::MissPolicies;
pub use miss_policy::Unmapped;
use pacing::PeerPacer;
pub use pacing::{BUCKET_DEFAULT, Pacing};
pub use request_id::RequestId;
use routes::Routes;
pub use routes::{ROUTES_MAX, Route, RouteError, RouteTarget};
use sealed::SealedRanges;
pub use sealed::touches;
pub use segment::{Segment, Span};
pub use segment_iter::{Direction, SegmentIter};
use write_back::FailedWriteBack;

use crate::cache::{CacheConfig, Line, LineCache, LineState};

/// Maximum number of operations in flight.
const OPS_MAX: usize = 16_384;
/// Maximum number of events kept until the caller takes them; the oldest are dropped first.
const EVENTS_MAX: usize = 256;

/// Receiver of the results of operations; `id` is the identity that the caller gave the operation.
pub trait Sink {
    /// A line or burst was read. The data is valid during the call only.
    fn read(&mut self, id: RequestId, data: &[u8]);
    /// A write is complete: the memory node has acknowledged it.
    fn written(&mut self, id: RequestId);
    /// An operation has failed; nothing more follows for `id`.
    fn failed(&mut self, id: RequestId, error: EngineError);
}

/// Events for logs and for the owners of attached regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    Session {
        mac: Mac,
        /// New state of the session, or error found in it.
        event: SessionEvent,
    },
    /// A leg of a mirrored position (one of its two copies), in sync so far, does not answer or has missed a write. The
    /// manager is asked to declare the leg stale; the event repeats until the manager has done so.
    LegSilent {
        /// First HPA of the leg's route.
        hpa: u64,
        mac: Mac,
        /// Epoch of the region in the manager's last description.
        epoch: u64,
    },
    /// A leg of a mirrored position (one of its two copies) has every page again. The manager is asked to declare the
    /// leg in sync; the event repeats until the manager has done so.
    LegFilled {
        /// First HPA of the leg's route.
        hpa: u64,
        mac: Mac,
        /// First CMem address of the leg.
        cmem: u64,
        /// Epoch of the region in which the leg was filled.
        epoch: u64,
    },
    /// A modified line can never be written back: its region is gone or lost.
    WriteBackRefused {
        /// HPA at which the line was written.
        hpa: u64,
        error: EngineError,
    },
}

cxloe_wire::counters! {
    /// Counts of operations since the engine was created.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct EngineCounters {
        /// Line reads answered by the cache.
        pub read_hits: u64,
        /// Line reads not answered by the cache, which went to a memory node.
        pub read_misses: u64,
        /// Line writes to lines in the cache.
        pub write_hits: u64,
        /// Line writes that took a new way of the cache, or that went to a memory node.
        pub write_misses: u64,
        /// Burst reads sent to memory nodes.
        pub burst_reads: u64,
        /// Burst writes sent to memory nodes.
        pub burst_writes: u64,
        /// Modified lines that were sent to their memory nodes.
        pub write_backs: u64,
        /// Operations that ended with an error other than `Busy`.
        pub failures: u64,
        /// Accesses to unmapped addresses that were answered with an error.
        #[serde(default)]
        pub unmapped_errors: u64,
        /// Reads of unmapped addresses that were answered with poison.
        #[serde(default)]
        pub unmapped_poisoned: u64,
        /// Reads of unmapped addresses that were answered with all ones.
        #[serde(default)]
        pub unmapped_ones: u64,
        /// Writes to unmapped addresses that were dropped.
        #[serde(default)]
        pub unmapped_dropped: u64,
        /// Reads of lines and bursts that local memory answered.
        #[serde(default)]
        pub local_reads: u64,
        /// Writes of lines and bursts to local memory.
        #[serde(default)]
        pub local_writes: u64,
        /// Times that requests were slowed down because of 802.1Qbb frames seen on the link.
        #[serde(default)]
        pub pauses_link: u64,
        /// Times that requests were slowed down because of PFC frames counted by the NIC.
        #[serde(default)]
        pub pauses_nic: u64,
        /// Times that requests were slowed down because of Congestion frames of memory nodes.
        #[serde(default)]
        pub pauses_mn: u64,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Done: the line's data.
    Hit(Line),
    /// In flight; the sink will be called.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstRead<'a> {
    /// Done: the data of all lines in the order of the segment, from local memory. The sink is not called.
    Here(&'a [u8]),
    /// Done: the burst's lines are unmapped, and each reads as this line. The sink is not called.
    Alike(Line),
    /// In flight; the sink will be called.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Done: in the cache, or in local memory.
    Done,
    /// In flight; the sink will be called.
    Sent,
}

/// A session with a memory node: the only session, or the session for one shard of the memory node's pages.
struct PeerSession {
    mac: Mac,
    /// This node's MAC address in the session.
    own: Mac,
    /// Queue of the link that carries the session's frames.
    queue: u8,
    /// Whether this session is not open although it is one of several with its memory node; always `false`
    /// for a single session.
    away: bool,
    requester: Requester,
    /// Incarnation of the memory node's content, as the last session announced it.
    incarnation: Option<u64>,
    sealed: bool,
    /// Rate control of the session's requests; `None` if requests are not paced.
    pacer: Option<PeerPacer>,
}

/// The engine of a compute node. One thread drives it together with one link.
pub struct Engine {
    peers: Vec<PeerSession>,
    core: Core,
    routes: Routes,
    locals: LocalRanges,
    miss_policies: MissPolicies,
    sealed: SealedRanges,
    draining: DrainingRanges,
    last_peer: usize,
    deadline: Deadline,
    pacing: Option<Pacing>,
    /// Time at which a request refused for lack of tokens may be retried.
    resume_at: Time,
    /// Whether requests of single lines are held back so that several share a frame.
    held: bool,
    /// Protocol features that are requested of memory nodes added from now on.
    features: u32,
    /// log2 of the number of sessions with each memory node; pages are distributed over the sessions.
    queues_log2: u32,
    /// Shard of this compute node to which the session on the first queue belongs; further queues have the
    /// next shards.
    shard: u8,
}

/// State that completions change: everything except the requesters, which report completions.
struct Core {
    cache: Option<LineCache>,
    inflight: InFlight,
    ops: Ops,
    /// Stranded lines (modified lines whose write-back failed with its session), by peer and CMem address: unlike an
    /// HPA, a CMem address is not reused by a later region.
    stranded: BTreeMap<(usize, u64), FailedWriteBack>,
    /// Serial number of the last write-back, or write to a stranded line.
    serial: u64,
    /// Number of write-backs in flight, by epoch.
    write_backs: [usize; 2],
    /// Epoch of the next write-back; see [`Flush`].
    epoch: bool,
    counters: EngineCounters,
    events: VecDeque<EngineEvent>,
    /// PFC class of this node's frames, if requests are paced.
    class: Option<u8>,
    /// Whether the frame being handled reports that its memory node is congested.
    congested: bool,
    mirrors: Mirrors,
}

/// Returns the page number and the mask of the lines in the page. From bit 36 up, the page number contains the peer's
/// index, so that it is unique among memory nodes.
#[inline]
fn page_and_mask(peer: usize, cmem: u64, lines: usize) -> (u64, u64) {
    let first = (cmem / LINE_SIZE as u64) % 64;
    let mask = if lines >= 64 { u64::MAX } else { (1 << lines) - 1 };
    ((peer as u64) << 36 | cmem >> 12, mask << first)
}

impl Engine {
    pub fn new(cache: CacheConfig) -> Engine {
        Engine {
            peers: Vec::new(),
            core: Core {
                cache: LineCache::new(cache),
                inflight: InFlight::new(OPS_MAX),
                ops: Ops::new(OPS_MAX),
                stranded: BTreeMap::new(),
                serial: 0,
                write_backs: [0; 2],
                epoch: false,
                counters: EngineCounters::default(),
                events: VecDeque::with_capacity(EVENTS_MAX),
                class: None,
                congested: false,
                mirrors: Mirrors::default(),
            },
            routes: Routes::default(),
            locals: LocalRanges::default(),
            miss_policies: MissPolicies::default(),
            sealed: SealedRanges::default(),
            draining: DrainingRanges::default(),
            last_peer: 0,
            deadline: Deadline::NEVER,
            pacing: None,
            resume_at: Time(u64::MAX),
            held: false,
            features: FEATURES,
            queues_log2: 0,
            shard: 0,
        }
    }

    /// Sets the largest frame of the link in bytes; sessions are renegotiated.
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        for peer in &mut self.peers {
            peer.requester.set_max_frame(max_frame, now);
            self.deadline.keep_earlier(peer.requester.deadline());
        }
    }

    /// Adds a memory node, opens a session with it, and returns the node's index for routes. A node that was
    /// added before keeps its open session. Until a session is open, operations on the node are
    /// [`EngineError::Busy`]; they fail after the time-out for a silent memory node.
    pub fn add_peer(&mut self, config: RequesterConfig, now: Time) -> usize {
        let mac = config.identity.peer;
        if let Some(known) = self.peers.iter().position(|p| p.mac == mac) {
            let siblings = self.siblings(known);
            self.peers[siblings].iter_mut().for_each(|peer| peer.requester.expect(now));
            self.deadline.keep_earlier(Deadline::new(now, "a session with a memory node"));
            return known;
        }
        let first = self.peers.len();
        for queue in 0..self.queues() as u8 {
            self.add_session(config.clone(), queue, self.shard + queue, now);
        }
        first
    }

    /// Adds a route. A target without an incarnation gets that of the present session with its memory node,
    /// or else that of the next session.
    ///
    /// # Panics
    /// If a target's peer was not added before.
    pub fn add_route(&mut self, mut route: Route) -> Result<(), RouteError> {
        for target in &mut route.targets {
            // An incarnation stays valid while its session is being replaced: if the replacement fails, the old session
            // continues without an event.
            target.incarnation = target.incarnation.or(self.peer_incarnation(target.peer));
        }
        let Decoder { base, size, .. } = route.decoder;
        if self.locals.overlap(base, size) {
            return Err(RouteError::Overlap { hpa: base });
        }
        self.routes.add(route)
    }

    /// Removes the route that starts at `hpa`. Flush first: dirty lines of the route are lost. Operations in flight
    /// still end at the sink.
    pub fn remove_route(&mut self, hpa: u64) -> Option<Route> {
        let route = self.routes.remove(hpa)?;
        self.drop_mirrors(&route);
        self.core.forget(&route.decoder, u32::MAX);
        Some(route)
    }

    /// Replaces the line cache by an empty one of another shape.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while an operation is in flight or a line is dirty: flush first.
    pub fn set_cache(&mut self, config: CacheConfig) -> Result<(), EngineError> {
        let modified = |c: &LineCache| c.places().any(|p| c.state(p) == LineState::Modified);
        if self.core.ops.used() > 0 || self.core.cache.as_ref().is_some_and(modified) {
            return Err(EngineError::Busy);
        }
        self.core.cache = LineCache::new(config);
        Ok(())
    }

    /// Whether the sessions with all memory nodes are open.
    pub fn is_connected(&self) -> bool {
        self.peers.iter().all(|p| p.requester.is_open())
    }

    /// Whether all sessions with this memory node are open, one for each queue.
    #[inline]
    pub fn is_peer_connected(&self, peer: usize) -> bool {
        let all = self.peers.get(peer..peer + self.queues());
        all.is_some_and(|sessions| sessions.iter().all(|p| p.requester.is_open()))
    }

    /// Incarnation of this peer's content; `None` without a session. A session that is being replaced still counts.
    pub fn peer_incarnation(&self, peer: usize) -> Option<u64> {
        self.peers[peer].requester.incarnation()
    }

    /// Status of each session. With several queues, the name of a further session is the memory node's address and
    /// the queue.
    pub fn sessions(&self) -> Vec<RequesterStatus> {
        let status = |p: &PeerSession| {
            let mut status = p.requester.status();
            if p.queue > 0 {
                status.peer = format!("{} queue {}", p.mac, p.queue);
            }
            status
        };
        self.peers.iter().map(status).collect()
    }

    /// Addresses of both ends of each session: this node's, and the memory node's.
    pub fn session_ends(&self) -> impl Iterator<Item = (Mac, Mac)> {
        self.peers.iter().map(|peer| (peer.own, peer.mac))
    }

    /// HPAs of the lines that the engine has: in its cache, in any state, and stranded ones. For checks that no other
    /// engine of this node has them.
    pub fn cached_lines(&self) -> impl Iterator<Item = u64> {
        let cached = self.core.cache.iter().flat_map(|cache| {
            let used = cache.places().filter(move |place| cache.state(*place) != LineState::Invalid);
            used.map(move |place| cache.line(place) * LINE_SIZE as u64)
        });
        cached.chain(self.core.stranded.values().map(|line| line.hpa))
    }

    #[inline]
    pub fn counters(&self) -> EngineCounters {
        self.core.counters
    }

    /// Number of operations in flight, including write-backs.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.core.ops.used()
    }

    /// Marks all operations in flight: once [`marked`](Self::marked) is 0, all of them have ended.
    #[cold]
    pub fn mark(&mut self) {
        self.core.ops.mark();
    }

    /// Number of [marked](Self::mark) operations still in flight.
    pub fn marked(&self) -> usize {
        self.core.ops.marks()
    }

    /// Removes and returns the oldest event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        if self.core.events.is_empty() { None } else { self.core.events.pop_front() }
    }

    /// Like [`route`](Self::route), but for a new operation, which a drain or a reset may forbid.
    #[inline]
    fn route_open(&mut self, hpa: u64) -> Result<Option<(usize, u64)>, EngineError> {
        self.check_open(hpa)?;
        self.route(hpa)
    }

    /// Checks that no drain or reset forbids a new operation at `hpa`.
    #[inline]
    fn check_open(&self, hpa: u64) -> Result<(), EngineError> {
        if self.draining.is_empty() { Ok(()) } else { self.draining.check(hpa) }
    }

    /// Returns the peer and CMem address of the line at `hpa`; `None` without a route.
    #[inline]
    fn route(&mut self, hpa: u64) -> Result<Option<(usize, u64)>, EngineError> {
        let location = self.routes.locate(hpa);
        self.open_location(&location)
    }

    /// Returns the peer and CMem address of a location of the present generation; `None` without a route.
    #[inline]
    fn open_location(&mut self, location: &Location) -> Result<Option<(usize, u64)>, EngineError> {
        let Some(target) = self.routes.target(location) else { return Ok(None) };
        let (first, cmem) = (target.peer, location.cmem);
        let peer = &self.peers[first];
        if let Some(mirror) = target.mirror {
            if target.is_lost(peer.incarnation) && !self.core.mirrors.has_content(mirror) {
                self.core.counters.failures += 1;
                return Err(EngineError::DataLost(peer.mac));
            } else if target.is_lost(peer.incarnation) {
                // The other leg has the content, but the manager has not yet made it the leg to read from.
                return Err(EngineError::Busy);
            }
        } else if target.is_lost(peer.incarnation) {
            self.core.counters.failures += 1;
            return Err(EngineError::DataLost(peer.mac));
        }
        if self.queues_log2 == 0 {
            return Ok(Some((first, cmem)));
        }
        self.shard_of(first, cmem).map(|peer| Some((peer, cmem)))
    }

    /// Returns the error for a `peer` that accepts no request now: not connected if its session has died; busy if there
    /// is no room, or if a session is about to open or to be replaced.
    fn not_now(&self, peer: usize) -> EngineError {
        let PeerSession { mac, requester, .. } = &self.peers[peer];
        let opens = requester.incarnation().is_some() || requester.is_expected();
        if opens { EngineError::Busy } else { EngineError::NotConnected(*mac) }
    }

    #[cold]
    fn rejected(&mut self, peer: usize, hpa: u64, rejected: Rejected) -> EngineError {
        let error = match rejected {
            Rejected::Busy => EngineError::Busy,
            Rejected::NotConnected => self.not_now(peer),
            Rejected::BadBurst => EngineError::BadBurst(hpa),
        };
        if error != EngineError::Busy {
            self.core.counters.failures += 1;
        }
        error
    }
}

impl Core {
    fn event(&mut self, event: EngineEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Drops all lines at the positions of an interleave set that `positions` selects, one bit each. Reads in flight
    /// no longer fill the cache, and write-backs in flight are ignored.
    fn forget(&mut self, decoder: &Decoder, positions: u32) {
        let covers =
            |hpa: u64| decoder.decode(hpa).is_some_and(|(position, _)| positions >> position & 1 == 1);
        if let Some(cache) = &mut self.cache {
            for place in cache.places() {
                if cache.state(place) != LineState::Invalid && covers(cache.line(place) * LINE_SIZE as u64) {
                    cache.set_state(place, LineState::Invalid);
                }
            }
        }
        self.stranded.retain(|_, line| !covers(line.hpa));
        self.forget_pairs(covers);
        for op in self.ops.iter_mut() {
            match op {
                Op::Read { hpa, place, .. } if covers(*hpa) => *place = None,
                Op::WriteBack { hpa, epoch, .. } if covers(*hpa) => {
                    let epoch = *epoch;
                    *op = Op::Nothing;
                    self.write_backs[usize::from(epoch)] -= 1;
                }
                _ => {}
            }
        }
    }
}
