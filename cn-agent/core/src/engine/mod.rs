//! Line operations in, completions out: what the compute node decides, without I/O.
//!
//! ```text
//!   read, write, bursts --> line cache --hit--> done
//!                              | miss, victim
//!                              v
//!                           routes: HPA -> memory node, CMem      (none: local memory has it, or a decode-miss policy says what is answered)
//!                              |
//!                              v
//!                           Requester of that memory node --> frames
//!   completions  <----------  answers  <------------------  frames
//! ```
//!
//! One operation becomes at most one request frame, so that nothing has to be kept half done: an operation
//! that cannot be taken now is refused with [`EngineError::Busy`] and made again after the next poll. Whoever wants
//! more than a frame carries walks over it in segments ([`SegmentIter`]), all of them in flight at once if there is room, on as
//! many memory nodes as the range is spread over.
//!
//! What keeps memory consistent:
//! * all requests of a 4 KiB page of a memory node's CMem travel on one stream, in order (R12);
//! * a write waits for a read of the same line that is on its way (R7), and so does the eviction of a
//!   modified line;
//! * a request has to have tokens (`pacing`);
//! * a modified line leaves the cache into the retry buffer, and if its session dies it is kept
//!   ([`Engine::stranded`]) until the memory node is back: an acknowledged write is not lost with a link.

mod bursts;
mod completer;
mod drain;
mod error;
mod flush;
mod inflight;
mod keys;
mod lines;
mod local;
mod miss_policy;
mod pacing;
mod packing;
mod routes;
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
use cxloe_wire::session::{Rejected, Requester, RequesterConfig, RequesterStatus, SessionEvent};
use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use completer::{Op, Ops};
use drain::DrainingRanges;
pub use drain::{DrainReason, WriteBackRange};
pub use error::EngineError;
pub use flush::Flush;
use inflight::InFlight;
pub use lines::Missed;
use local::Locals;
pub use local::{LocalMemory, MemoryGone};
use miss_policy::MissPolicies;
pub use miss_policy::Unmapped;
use pacing::PeerPacer;
pub use pacing::{BUCKET_DEFAULT, Pacing};
use routes::Routes;
pub use routes::{ROUTES_MAX, Route, RouteError, Target};
pub use segment::{Segment, Span};
pub use segment_iter::{Direction, SegmentIter};
use write_back::Stranded;

use crate::cache::{CacheConfig, Line, LineCache, State};

/// Operations that may be on their way at once.
const OPS_MAX: usize = 16_384;
/// Events kept until they are taken; the oldest go first.
const EVENTS_MAX: usize = 256;

/// Takes what has become of operations; `user` is what the operation was made with.
pub trait Sink {
    /// A line or burst was read. The data is valid during the call only.
    fn read(&mut self, user: u64, data: &[u8]);
    /// A write is done.
    fn written(&mut self, user: u64);
    /// The operation failed.
    fn failed(&mut self, user: u64, error: EngineError);
}

/// What happens, for logs and for those who attached regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// The session with a memory node changed.
    Session {
        /// The memory node.
        mac: Mac,
        /// How.
        event: SessionEvent,
    },
    /// A modified line could not be written back and never will be: its region is gone or lost.
    WriteBackRefused {
        /// Its HPA.
        hpa: u64,
        /// Why.
        error: EngineError,
    },
}

/// What an engine has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Line reads answered by the cache.
    pub read_hits: u64,
    /// Line reads that went to a memory node.
    pub read_misses: u64,
    /// Line writes the cache took in place.
    pub write_hits: u64,
    /// Line writes the cache took at a new place, or that went to a memory node.
    pub write_misses: u64,
    /// Burst reads.
    pub burst_reads: u64,
    /// Burst writes.
    pub burst_writes: u64,
    /// Modified lines written back.
    pub write_backs: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Accesses to addresses nobody maps that were answered with an error.
    #[serde(default)]
    pub unmapped_errors: u64,
    /// Reads of addresses nobody maps that were answered with poison.
    #[serde(default)]
    pub unmapped_poisoned: u64,
    /// Reads of addresses nobody maps that were answered with all ones.
    #[serde(default)]
    pub unmapped_ones: u64,
    /// Writes to addresses nobody maps that were dropped.
    #[serde(default)]
    pub unmapped_dropped: u64,
    /// Reads, lines and bursts alike, that memory of this machine answered.
    #[serde(default)]
    pub local_reads: u64,
    /// Writes, lines and bursts alike, that memory of this machine took.
    #[serde(default)]
    pub local_writes: u64,
    /// Pause signals that counted: 802.1Qbb frames seen on the link.
    #[serde(default)]
    pub pauses_link: u64,
    /// Pause signals that counted: PFC frames that the NIC has counted.
    #[serde(default)]
    pub pauses_nic: u64,
    /// Pause signals that counted: Congestion frames of memory nodes.
    #[serde(default)]
    pub pauses_mn: u64,
}

/// Where a read stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Here it is.
    Hit(Line),
    /// On its way; the sink will be told.
    Sent,
}

/// Where a burst read stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstRead<'a> {
    /// All its lines, in the order of its segment: memory of this machine has them. The sink is not told.
    Here(&'a [u8]),
    /// Nobody maps them, and each reads as this line. The sink is not told.
    Alike(Line),
    /// On its way; the sink will be told.
    Sent,
}

/// Where a write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Done: the cache has it, or memory of this machine.
    Done,
    /// On its way; the sink will be told.
    Sent,
}

/// A session with a memory node: the only one, or that of one shard.
struct Peer {
    mac: Mac,
    /// This end's address in it.
    own: Mac,
    /// By which queue of the link its frames leave.
    queue: u8,
    /// One of several with the memory node that has not been open yet, or died and is not back.
    away: bool,
    requester: Requester,
    /// The incarnation of its content, as its last session told.
    incarnation: Option<u64>,
    sealed: bool,
    /// `None` without rate control.
    pacer: Option<PeerPacer>,
}

/// The engine. One thread drives it together with one link.
pub struct Engine {
    peers: Vec<Peer>,
    core: Core,
    routes: Routes,
    locals: Locals,
    miss_policies: MissPolicies,
    draining: DrainingRanges,
    last_peer: usize,
    deadline: Time,
    pacing: Option<Pacing>,
    /// When there may be tokens for what was refused for want of them.
    resume_at: Time,
    /// Requests of single lines wait for others.
    held: bool,
    /// What is asked for of memory nodes to come.
    features: u32,
    /// log2 of the sessions that each memory node has with this compute node, by page.
    queues_log2: u32,
    /// Which shard of this compute node the engine is, if it has one session with each memory node.
    shard: u8,
}

/// What completions change: everything but the requesters they come from.
struct Core {
    cache: Option<LineCache>,
    inflight: InFlight,
    ops: Ops,
    /// By peer and CMem address, which, unlike an HPA, never belongs to another region later.
    stranded: BTreeMap<(usize, u64), Stranded>,
    /// Write-backs on their way, by epoch.
    write_backs: [usize; 2],
    /// That of the next write-back; see [`Flush`].
    epoch: bool,
    counters: EngineCounters,
    events: VecDeque<EngineEvent>,
    /// The PFC class of our frames, if requests are paced.
    class: Option<u8>,
    /// Whether the memory node whose frame is being handled is congested.
    congested: bool,
}

/// The page of CMem, told apart from other memory nodes' by the bits above CMem addresses' 48, and the mask of the lines.
#[inline]
fn page_and_mask(peer: usize, cmem: u64, lines: usize) -> (u64, u64) {
    let first = (cmem / LINE_SIZE as u64) % 64;
    let mask = if lines >= 64 { u64::MAX } else { (1 << lines) - 1 };
    ((peer as u64) << 36 | cmem >> 12, mask << first)
}

impl Engine {
    /// An engine without peers and routes.
    pub fn new(cache: CacheConfig) -> Engine {
        Engine {
            peers: Vec::new(),
            core: Core {
                cache: LineCache::new(cache),
                inflight: InFlight::new(OPS_MAX),
                ops: Ops::new(OPS_MAX),
                stranded: BTreeMap::new(),
                write_backs: [0; 2],
                epoch: false,
                counters: EngineCounters::default(),
                events: VecDeque::with_capacity(EVENTS_MAX),
                class: None,
                congested: false,
            },
            routes: Routes::default(),
            locals: Locals::default(),
            miss_policies: MissPolicies::default(),
            draining: DrainingRanges::default(),
            last_peer: 0,
            deadline: Time(u64::MAX),
            pacing: None,
            resume_at: Time(u64::MAX),
            held: false,
            features: FEATURES,
            queues_log2: 0,
            shard: 0,
        }
    }

    /// The link carries frames of another length from now on: sessions are agreed on anew.
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        for peer in &mut self.peers {
            peer.requester.set_max_frame(max_frame, now);
            self.deadline = self.deadline.min(peer.requester.deadline());
        }
    }

    /// Adds a memory node and calls it. Returns its index for routes. A node that is known already keeps its session, or is
    /// called anew: until that opens, operations on it are [`EngineError::Busy`], for as long as a silent memory node is waited
    /// for.
    pub fn add_peer(&mut self, config: RequesterConfig, now: Time) -> usize {
        let mac = config.identity.peer;
        if let Some(known) = self.peers.iter().position(|p| p.mac == mac) {
            let siblings = self.siblings(known);
            self.peers[siblings].iter_mut().for_each(|peer| peer.requester.expect(now));
            self.deadline = now;
            return known;
        }
        let first = self.peers.len();
        for queue in 0..self.queues() as u8 {
            self.add_session(config.clone(), queue, self.shard + queue, now);
        }
        first
    }

    /// Adds a route. A target without an incarnation belongs to the content of the session that its memory node has, or
    /// else of the next one.
    ///
    /// # Panics
    /// If a target's peer was not added before.
    pub fn add_route(&mut self, mut route: Route) -> Result<(), RouteError> {
        for target in &mut route.targets {
            // Also while that session is being handed over: if nothing comes of it, the old one goes on, untold.
            target.incarnation = target.incarnation.or(self.peer_incarnation(target.peer));
        }
        let Decoder { base, size, .. } = route.decoder;
        if self.locals.overlap(base, size) {
            return Err(RouteError::Overlap { hpa: base });
        }
        self.routes.add(route)
    }

    /// Removes the route that starts at `hpa`. Flush it first, or modified lines are lost with it. What is on
    /// its way still ends at the sink.
    pub fn remove_route(&mut self, hpa: u64) -> Option<Route> {
        let route = self.routes.remove(hpa)?;
        self.core.forget(&route.decoder, u32::MAX);
        Some(route)
    }

    /// Replaces the line cache by an empty one of another shape.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while something is on its way or modified: flush first.
    pub fn set_cache(&mut self, config: CacheConfig) -> Result<(), EngineError> {
        let modified = |c: &LineCache| c.places().any(|p| c.state(p) == State::Modified);
        if self.core.ops.used() > 0 || self.core.cache.as_ref().is_some_and(modified) {
            return Err(EngineError::Busy);
        }
        self.core.cache = LineCache::new(config);
        Ok(())
    }

    /// Whether all peers have a session.
    pub fn is_connected(&self) -> bool {
        self.peers.iter().all(|p| p.requester.is_open())
    }

    /// Whether this peer has a session: one for each queue.
    #[inline]
    pub fn is_peer_connected(&self, peer: usize) -> bool {
        let all = self.peers.get(peer..peer + self.queues());
        all.is_some_and(|sessions| sessions.iter().all(|p| p.requester.is_open()))
    }

    /// The incarnation of this peer's content, if it has a session, be it just handed over to the next one.
    pub fn peer_incarnation(&self, peer: usize) -> Option<u64> {
        self.peers[peer].requester.incarnation()
    }

    /// Each session in figures. Those of further queues say which beside the memory node's address.
    pub fn sessions(&self) -> Vec<RequesterStatus> {
        let status = |p: &Peer| {
            let mut status = p.requester.status();
            if p.queue > 0 {
                status.peer = format!("{} queue {}", p.mac, p.queue);
            }
            status
        };
        self.peers.iter().map(status).collect()
    }

    /// What was counted.
    #[inline]
    pub fn counters(&self) -> EngineCounters {
        self.core.counters
    }

    /// Operations on their way, write-backs included.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.core.ops.used()
    }

    /// Marks all operations on their way, so that it can be told when the last of them [has ended](Self::marked).
    #[cold]
    pub fn mark(&mut self) {
        self.core.ops.mark();
    }

    /// Operations that were on their way when they were [marked](Self::mark), and are still.
    pub fn marked(&self) -> usize {
        self.core.ops.marks()
    }

    /// The oldest event not yet taken.
    #[inline]
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        if self.core.events.is_empty() { None } else { self.core.events.pop_front() }
    }

    /// [`route`](Self::route) for a new operation, which may not be made on closed addresses.
    #[inline]
    fn route_open(&mut self, hpa: u64) -> Result<Option<(usize, u64)>, EngineError> {
        if !self.draining.is_empty() {
            self.draining.check(hpa)?;
        }
        self.route(hpa)
    }

    /// The peer that has the line at `hpa`, and the CMem address there; `None` where there is no route.
    #[inline]
    fn route(&mut self, hpa: u64) -> Result<Option<(usize, u64)>, EngineError> {
        let Some(route) = self.routes.find(hpa) else { return Ok(None) };
        let (target, _, cmem) = route.locate(hpa);
        let first = target.peer;
        let peer = &self.peers[first];
        if target.is_lost(peer.incarnation) {
            self.core.counters.failures += 1;
            return Err(EngineError::DataLost(peer.mac));
        }
        if self.queues_log2 == 0 {
            return Ok(Some((first, cmem)));
        }
        self.shard_of(first, cmem).map(|peer| Some((peer, cmem)))
    }

    /// Why `peer` takes nothing at this moment: it is gone, or there is no room, or its session is about to open or just being
    /// handed over to the next one, which ends by itself.
    fn not_now(&self, peer: usize) -> EngineError {
        let Peer { mac, requester, .. } = &self.peers[peer];
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

    /// Drops all that is here of the lines at some positions of an interleave set, a bit each. Reads that are on their
    /// way no longer fill the cache, and write-backs are nobody's any more.
    fn forget(&mut self, decoder: &Decoder, positions: u32) {
        let covers =
            |hpa: u64| decoder.decode(hpa).is_some_and(|(position, _)| positions >> position & 1 == 1);
        if let Some(cache) = &mut self.cache {
            for place in cache.places() {
                if cache.state(place) != State::Invalid && covers(cache.line(place) * LINE_SIZE as u64) {
                    cache.set_state(place, State::Invalid);
                }
            }
        }
        self.stranded.retain(|_, line| !covers(line.hpa));
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
