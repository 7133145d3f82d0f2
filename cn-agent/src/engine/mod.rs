//! Line operations in, completions out: what the compute node decides, without I/O.
//!
//! ```text
//!   read, write, bursts --> line cache --hit--> done
//!                              | miss, victim
//!                              v
//!                           routes: HPA -> memory node, CMem
//!                              |
//!                              v
//!                           Requester of that memory node --> frames
//!   completions  <----------  answers  <------------------  frames
//! ```
//!
//! One operation becomes at most one request frame, so that nothing has to be kept half done: an operation
//! that cannot be taken now is refused with [`EngineError::Busy`] and made again after the next poll.
//!
//! What keeps memory consistent:
//! * all requests of a 4 KiB page travel on one stream, in order (R12);
//! * a write waits for a read of the same line that is on its way (R7), and so does the eviction of a
//!   modified line;
//! * a modified line leaves the cache into the retry buffer, and if its session dies it is kept
//!   ([`Engine::stranded`]) until the memory node is back: an acknowledged write is not lost with a link.

mod completer;
mod inflight;
mod routes;

use std::collections::VecDeque;

use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE, Mac, burst_fits_page};
use cxloe_wire::link::Transmit;
use cxloe_wire::session::{
    OpError, Rejected, Requester, RequesterConfig, RequesterStatus, SessionEvent,
};
use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use completer::{Completer, Op, Ops};
use inflight::InFlight;
use routes::Routes;
pub use routes::{ROUTES_MAX, Route, RouteError};

use crate::cache::{CacheConfig, Line, LineCache, Place, State};

/// Operations that may be on their way at once.
const OPS_MAX: usize = 16_384;
/// Events kept until they are taken; the oldest go first.
const EVENTS_MAX: usize = 256;

/// Why an operation was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Cannot be taken at this moment: poll, then try again.
    #[error("busy: poll and try again")]
    Busy,
    /// No region holds this address.
    #[error("no region holds HPA {0:#x}; `cn-agent list` shows what is attached")]
    Unmapped(u64),
    /// Not the address of a line.
    #[error("HPA {0:#x} is not a multiple of 64")]
    Unaligned(u64),
    /// A burst of no lines, too many for one frame, over the end of a page, or with data of another length.
    #[error("a burst at HPA {0:#x} does not fit one frame, or crosses the end of its 4 KiB page")]
    BadBurst(u64),
    /// No session with the memory node is open.
    #[error("no session with memory node {0} is open; check that mn-server runs there and the link is up")]
    NotConnected(Mac),
    /// The memory node has lost the region's data.
    #[error("memory node {0} was restarted without its content: the region's data is lost; destroy the region and create it anew")]
    DataLost(Mac),
    /// The request was sent and failed.
    #[error("memory node {mac}: {error}")]
    Failed {
        /// The memory node.
        mac: Mac,
        /// Why.
        error: OpError,
    },
}

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
}

/// Where a read stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Here it is.
    Hit(Line),
    /// On its way; the sink will be told.
    Sent,
}

/// Where a write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Done: the cache has it.
    Done,
    /// On its way; the sink will be told.
    Sent,
}

struct Peer {
    mac: Mac,
    requester: Requester,
    /// The incarnation of its content, as its last session told.
    incarnation: Option<u64>,
}

/// A modified line whose write-back failed with its session.
struct Stranded {
    peer: usize,
    cmem: u64,
    hpa: u64,
    data: Line,
}

/// The engine. One thread drives it together with one link.
pub struct Engine {
    peers: Vec<Peer>,
    core: Core,
    routes: Routes,
    last_peer: usize,
    deadline: Time,
}

/// What completions change: everything but the requesters they come from.
struct Core {
    cache: Option<LineCache>,
    inflight: InFlight,
    ops: Ops,
    stranded: VecDeque<Stranded>,
    write_backs: usize,
    counters: EngineCounters,
    events: VecDeque<EngineEvent>,
}

#[inline]
fn page_and_mask(hpa: u64, lines: usize) -> (u64, u64) {
    let first = (hpa / LINE_SIZE as u64) % 64;
    let mask = if lines >= 64 { u64::MAX } else { (1 << lines) - 1 };
    (hpa >> 12, mask << first)
}

/// A page's stream (R12): pages next to each other take turns.
#[inline]
fn stream_of(cmem: u64) -> u8 {
    (cmem >> 12) as u8
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
                stranded: VecDeque::new(),
                write_backs: 0,
                counters: EngineCounters::default(),
                events: VecDeque::with_capacity(EVENTS_MAX),
            },
            routes: Routes::default(),
            last_peer: 0,
            deadline: Time(u64::MAX),
        }
    }

    /// Adds a memory node and calls it. Returns its index for routes. A node that is known already keeps
    /// its session.
    pub fn add_peer(&mut self, config: RequesterConfig, now: Time) -> usize {
        let mac = config.identity.peer;
        if let Some(known) = self.peers.iter().position(|p| p.mac == mac) {
            return known;
        }
        let mut requester = Requester::new(config);
        requester.connect(now);
        self.deadline = self.deadline.min(requester.deadline());
        self.peers.push(Peer { mac, requester, incarnation: None });
        self.peers.len() - 1
    }

    /// Adds a route.
    pub fn add_route(&mut self, route: Route) -> Result<(), RouteError> {
        self.routes.add(route)
    }

    /// Removes the route that starts at `hpa`. Flush it first, or modified lines are lost with it.
    pub fn remove_route(&mut self, hpa: u64) -> Option<Route> {
        let route = self.routes.remove(hpa)?;
        self.forget_lines(route);
        Some(route)
    }

    /// Drops what the cache has of a stretch of HPA.
    fn forget_lines(&mut self, route: Route) {
        if let Some(cache) = &mut self.core.cache {
            for place in cache.places() {
                let held = matches!(cache.state(place), State::Exclusive | State::Modified);
                if held && (cache.line(place) * LINE_SIZE as u64).wrapping_sub(route.hpa) < route.bytes {
                    cache.set_state(place, State::Invalid);
                }
            }
        }
        self.core.stranded.retain(|s| s.hpa.wrapping_sub(route.hpa) >= route.bytes);
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

    /// Whether this peer has a session.
    pub fn is_peer_connected(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|p| p.requester.is_open())
    }

    /// Each session in figures.
    pub fn sessions(&self) -> Vec<RequesterStatus> {
        self.peers.iter().map(|p| p.requester.status()).collect()
    }

    /// What was counted.
    pub fn counters(&self) -> EngineCounters {
        self.core.counters
    }

    /// Operations on their way, write-backs included.
    pub fn in_flight(&self) -> usize {
        self.core.ops.used()
    }

    /// Modified lines that wait for their memory node to come back.
    pub fn stranded(&self) -> usize {
        self.core.stranded.len()
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        if self.core.events.is_empty() { None } else { self.core.events.pop_front() }
    }

    /// When to [`poll`](Self::poll) next.
    #[inline]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Most lines of a burst read at `hpa` in one frame; 0 without a session.
    pub fn burst_read_lines_max(&mut self, hpa: u64) -> usize {
        self.routes.find(hpa).map_or(0, |r| self.peers[r.peer].requester.burst_read_lines_max())
    }

    /// Most lines of a burst write at `hpa` in one frame; 0 without a session.
    pub fn burst_write_lines_max(&mut self, hpa: u64) -> usize {
        self.routes.find(hpa).map_or(0, |r| self.peers[r.peer].requester.burst_write_lines_max())
    }

    #[inline]
    fn route(&mut self, hpa: u64) -> Result<(usize, u64), EngineError> {
        let Some(route) = self.routes.find(hpa) else {
            self.core.counters.failures += 1;
            return Err(EngineError::Unmapped(hpa));
        };
        let peer = &self.peers[route.peer];
        if route.is_lost(peer.incarnation) {
            self.core.counters.failures += 1;
            return Err(EngineError::DataLost(peer.mac));
        }
        Ok((route.peer, route.cmem + (hpa - route.hpa)))
    }

    /// The line at `hpa` if the cache has it: a read that needs neither the time nor a link.
    #[inline]
    pub fn read_cached(&mut self, hpa: u64) -> Option<&Line> {
        let cache = self.core.cache.as_mut()?;
        let place = cache.find(hpa / LINE_SIZE as u64)?;
        if !hpa.is_multiple_of(LINE_SIZE as u64) || cache.state(place) == State::Filling {
            return None;
        }
        self.core.counters.read_hits += 1;
        Some(cache.read(place))
    }

    /// Writes the line at `hpa` if the cache has a place for it already.
    #[inline]
    pub fn write_cached(&mut self, hpa: u64, data: &Line) -> bool {
        let Some(cache) = self.core.cache.as_mut() else { return false };
        let Some(place) = cache.find(hpa / LINE_SIZE as u64) else { return false };
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return false;
        }
        // Also while it is being filled: the write came after the read, so what the fill brings goes to the
        // reader only.
        cache.write(place, data);
        self.core.counters.write_hits += 1;
        true
    }

    /// Reads the line at `hpa`.
    #[inline]
    pub fn read(
        &mut self,
        hpa: u64,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        if let Some(line) = self.read_cached(hpa) {
            return Ok(Read::Hit(*line));
        }
        let line = hpa / LINE_SIZE as u64;
        if self.core.cache.as_ref().is_some_and(|c| c.find(line).is_some()) {
            // Being filled for somebody else.
            return Err(EngineError::Busy);
        }
        self.read_miss(hpa, line, user, now, tx)
    }

    fn read_miss(
        &mut self,
        hpa: u64,
        line: u64,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let (peer, cmem) = self.route(hpa)?;
        if let Some(data) = self.core.find_stranded(hpa) {
            return Ok(Read::Hit(data));
        }
        let (page, mask) = page_and_mask(hpa, 1);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        let place = self.make_place(line, now, tx)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, lines: 1, place });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) = requester.read(stream_of(cmem), cmem, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache) {
            cache.assign(place, line, State::Filling);
        }
        self.core.inflight.start(page, mask);
        self.core.counters.read_misses += 1;
        self.deadline = self.deadline.min(self.peers[peer].requester.deadline());
        Ok(Read::Sent)
    }

    /// Writes the line at `hpa`.
    #[inline]
    pub fn write(
        &mut self,
        hpa: u64,
        data: &Line,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        if self.write_cached(hpa, data) {
            return Ok(Write::Done);
        }
        let line = hpa / LINE_SIZE as u64;
        self.write_miss(hpa, line, data, user, now, tx)
    }

    fn write_miss(
        &mut self,
        hpa: u64,
        line: u64,
        data: &Line,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        let (peer, cmem) = self.route(hpa)?;
        if !self.core.stranded.is_empty()
            && let Some(s) = self.core.stranded.iter_mut().find(|s| s.hpa == hpa)
        {
            s.data = *data;
            return Ok(Write::Done);
        }
        if let Some(place) = self.make_place(line, now, tx)?
            && let Some(cache) = &mut self.core.cache
        {
            // The paper's rule: straight into the cache, without a fetch, and done.
            cache.assign(place, line, State::Modified);
            cache.write(place, data);
            self.core.counters.write_misses += 1;
            return Ok(Write::Done);
        }
        self.send_write(peer, cmem, hpa, data, Op::Write { user }, now, tx)?;
        self.core.counters.write_misses += 1;
        Ok(Write::Sent)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    fn send_write(
        &mut self,
        peer: usize,
        cmem: u64,
        hpa: u64,
        data: &Line,
        op: Op,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let (page, mask) = page_and_mask(hpa, 1);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        let token = self.core.ops.insert(op);
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) = requester.write(stream_of(cmem), cmem, data, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        self.deadline = self.deadline.min(self.peers[peer].requester.deadline());
        Ok(())
    }

    /// A place for `line`, its victim written back; `None` where there is no cache or all ways are filling.
    #[inline]
    fn make_place(
        &mut self,
        line: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Option<Place>, EngineError> {
        let Some(cache) = &self.core.cache else { return Ok(None) };
        let Some(place) = cache.victim(line) else { return Ok(None) };
        if cache.line(place) != u64::MAX && cache.state(place) == State::Modified {
            self.write_back(place, now, tx)?;
        }
        Ok(Some(place))
    }

    /// Hands the modified line at `place` to its memory node's retry buffer; it is exclusive from then on.
    fn write_back(&mut self, place: Place, now: Time, tx: &mut dyn Transmit) -> Result<(), EngineError> {
        let Some(cache) = &self.core.cache else { return Ok(()) };
        let hpa = cache.line(place) * LINE_SIZE as u64;
        let data = *cache.peek(place);
        let (peer, cmem) = self.route(hpa)?;
        self.send_write(peer, cmem, hpa, &data, Op::WriteBack { peer, cmem, hpa }, now, tx)?;
        self.core.write_backs += 1;
        self.core.counters.write_backs += 1;
        if let Some(cache) = &mut self.core.cache {
            cache.set_state(place, State::Exclusive);
        }
        Ok(())
    }

    fn rejected(&mut self, peer: usize, hpa: u64, rejected: Rejected) -> EngineError {
        match rejected {
            Rejected::Busy => return EngineError::Busy,
            Rejected::NotConnected => {}
            Rejected::BadBurst => return EngineError::BadBurst(hpa),
        }
        self.core.counters.failures += 1;
        EngineError::NotConnected(self.peers[peer].mac)
    }

    /// Reads `lines` lines from `hpa` on, past the cache but not missing what it has modified. The sink gets
    /// all of them in one call.
    pub fn burst_read(
        &mut self,
        hpa: u64,
        lines: usize,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        self.check_burst(hpa, lines)?;
        let (peer, cmem) = self.route(hpa)?;
        let (page, mask) = page_and_mask(hpa, lines);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.settle(hpa, lines, now, tx)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, lines: lines as u8, place: None });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) =
            requester.burst_read(stream_of(cmem), cmem, lines as u8, token, now, tx)
        {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        self.core.inflight.start(page, mask);
        self.core.counters.burst_reads += 1;
        self.deadline = self.deadline.min(self.peers[peer].requester.deadline());
        Ok(())
    }

    /// Writes the lines that `mask` names relative to `hpa`; `data` holds them in order.
    pub fn burst_write(
        &mut self,
        hpa: u64,
        mask: u64,
        data: &[u8],
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let span = (u64::BITS - mask.leading_zeros()) as usize;
        self.check_burst(hpa, span)?;
        let (peer, cmem) = self.route(hpa)?;
        let (page, lines) = page_and_mask(hpa, span);
        if self.core.inflight.overlaps(page, lines) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        if !self.core.stranded.is_empty() {
            self.send_stranded(now, tx);
            if self.core.stranded_overlaps(hpa, span) {
                return Err(EngineError::NotConnected(self.peers[peer].mac));
            }
        }
        let token = self.core.ops.insert(Op::Write { user });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) =
            requester.burst_write(stream_of(cmem), cmem, mask, data, token, now, tx)
        {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let Some(cache) = self.core.cache.as_mut().filter(|c| c.used() > 0) {
            let mut rest = mask;
            for line in data.as_chunks::<LINE_SIZE>().0 {
                let index = u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                if let Some(place) = cache.find(hpa / LINE_SIZE as u64 + index) {
                    cache.put(place, line, State::Exclusive);
                }
            }
        }
        self.core.counters.burst_writes += 1;
        self.deadline = self.deadline.min(self.peers[peer].requester.deadline());
        Ok(())
    }

    fn check_burst(&self, hpa: u64, lines: usize) -> Result<(), EngineError> {
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        if lines == 0 || lines > BURST_LINES_MAX || !burst_fits_page(hpa, lines - 1) {
            return Err(EngineError::BadBurst(hpa));
        }
        Ok(())
    }

    /// Writes back what the cache has modified of these lines, ahead of a burst read on the same stream.
    fn settle(
        &mut self,
        hpa: u64,
        lines: usize,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        if !self.core.stranded.is_empty() {
            self.send_stranded(now, tx);
            if self.core.stranded_overlaps(hpa, lines) {
                return Err(EngineError::Busy);
            }
        }
        for line in 0..lines as u64 {
            let Some(cache) = self.core.cache.as_ref().filter(|c| c.used() > 0) else { return Ok(()) };
            if let Some(place) = cache.find(hpa / LINE_SIZE as u64 + line)
                && cache.state(place) == State::Modified
            {
                self.write_back(place, now, tx)?;
            }
        }
        Ok(())
    }

    /// Writes modified lines back as far as windows allow. `true` once nothing is modified any more and
    /// every write-back has been acknowledged.
    pub fn flush(&mut self, now: Time, tx: &mut dyn Transmit) -> Result<bool, EngineError> {
        self.send_stranded(now, tx);
        if let Some(stuck) = self.core.stranded.front() {
            return Err(EngineError::NotConnected(self.peers[stuck.peer].mac));
        }
        let places = self.core.cache.as_ref().map(LineCache::places);
        for place in places.into_iter().flatten() {
            let modified = self.core.cache.as_ref().is_some_and(|c| c.state(place) == State::Modified);
            if modified {
                match self.write_back(place, now, tx) {
                    Ok(()) => {}
                    Err(EngineError::Busy) => return Ok(false),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(self.core.write_backs == 0)
    }

    /// Takes a frame from the link. Frames of nobody we know are ignored.
    #[inline]
    pub fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        let Some(from) = frame.get(6..12) else { return };
        if self.peers.get(self.last_peer).is_none_or(|p| p.mac.0 != from) {
            let Some(index) = self.peers.iter().position(|p| p.mac.0 == from) else { return };
            self.last_peer = index;
        }
        let peer = &mut self.peers[self.last_peer];
        let mut completer = Completer { core: &mut self.core, mac: peer.mac, sink };
        peer.requester.handle(frame, now, tx, &mut completer);
        self.deadline = self.deadline.min(peer.requester.deadline());
        if let Some(event) = peer.requester.poll_event() {
            self.take_event(self.last_peer, event, now, tx);
        }
    }

    /// Does what time demands. Flush the link afterwards.
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            if now >= peer.requester.deadline() {
                let mut completer = Completer { core: &mut self.core, mac: peer.mac, sink };
                peer.requester.poll(now, tx, &mut completer);
            }
            while let Some(event) = self.peers[index].requester.poll_event() {
                self.take_event(index, event, now, tx);
            }
        }
        if !self.core.stranded.is_empty() {
            self.send_stranded(now, tx);
        }
        self.deadline =
            self.peers.iter().map(|p| p.requester.deadline()).min().unwrap_or(Time(u64::MAX));
    }

    /// Ends all sessions in order. Flush first; then poll until [`is_closed`](Self::is_closed).
    pub fn close(&mut self, now: Time, sink: &mut dyn Sink) {
        for peer in &mut self.peers {
            let mut completer = Completer { core: &mut self.core, mac: peer.mac, sink };
            peer.requester.close(now, &mut completer);
        }
        self.deadline = Time::ZERO;
    }

    /// Whether no session is left.
    pub fn is_closed(&self) -> bool {
        self.peers.iter().all(|p| !p.requester.is_open() && p.requester.deadline() == Time(u64::MAX))
    }

    #[cold]
    fn take_event(&mut self, index: usize, event: SessionEvent, now: Time, tx: &mut dyn Transmit) {
        if let SessionEvent::Opened { incarnation, .. } = &event {
            self.peers[index].incarnation = Some(*incarnation);
            // What the cache and the stranded lines have of memory that is gone is gone too.
            let mut lost = Vec::new();
            for route in self.routes.of_peer_mut(index) {
                route.incarnation.get_or_insert(*incarnation);
                if route.is_lost(Some(*incarnation)) {
                    lost.push(*route);
                }
            }
            lost.into_iter().for_each(|route| self.forget_lines(route));
            self.send_stranded(now, tx);
        }
        self.core.event(EngineEvent::Session { mac: self.peers[index].mac, event });
    }

    /// Sends what was left over from dead sessions to the memory nodes that are back.
    fn send_stranded(&mut self, now: Time, tx: &mut dyn Transmit) {
        for _ in 0..self.core.stranded.len() {
            let Some(Stranded { peer, cmem, hpa, data }) = self.core.stranded.pop_front() else { return };
            let op = Op::WriteBack { peer, cmem, hpa };
            match self.send_write(peer, cmem, hpa, &data, op, now, tx) {
                Ok(()) => self.core.write_backs += 1,
                Err(_) => self.core.stranded.push_back(Stranded { peer, cmem, hpa, data }),
            }
        }
    }
}
