//! The memory node's end: the sessions of all compute nodes that one worker serves.
//!
//! * `stream`: order, execution, the reorder and the retry buffer (R2-R4, R7); `multi`: frames that are many requests.
//! * `phase`: what becomes of a session, as one table; `admission`: Hello, Start, Ping, Bye, and who may have one.
//! * `keyed`: sessions between keys: what is looked at before Diffie-Hellman, and what its outcome is worth.
//! * `directory`: which session is whose.
//! * `offers`: Hellos answered and not yet followed by a Start.

mod admission;
mod directory;
mod keyed;
mod multi;
mod offers;
mod phase;
mod stream;

use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use directory::Directory;
use keyed::Keyed;
use multi::Multi;
use offers::Offers;
use phase::Phase;
use stream::{Context, Op, Request, Stream};

use super::entropy::{Entropy, Nonces};
use super::framer::{Framer, PreSharedKey, Received};
use super::noise::{NodeKey, integrity_name};
use super::slab::Slab;
use super::{Retransmission, STREAMS_MAX, infer};
use crate::Transmit;
use crate::frame::{
    BURST_LINES_MAX, Command, FEATURES, FaultStatus, FrameView, HEADER_LEN, LINE_SIZE, Mac, Message,
    PROTOCOL_VERSION, PROTOCOL_VERSION_KEYED, PROTOCOL_VERSION_OLDEST, PublicKey, Space,
};
use crate::time::Time;

/// What requests are executed against: translation and pool.
pub trait Memory {
    /// Fills `out` (whole lines) with what CN `cn` (its MAC as a number) has at CMem byte address `addr`.
    /// All of it is checked before any of it is read.
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus>;

    /// Writes the lines that `mask` names relative to `addr`; `data` holds them in order. All of it is
    /// checked before any of it is written.
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus>;

    /// Whether CN `cn` may have a session at all.
    fn admits(&mut self, cn: u64) -> bool;

    /// The public key that belongs to CN `cn`, if one does: a memory node with a key takes nobody for this CN who does not
    /// show it.
    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        let _ = cn;
        None
    }

    /// Whether CN `cn` has memory here. One that has none is a guest: anybody can invent such a CN, so guests have few
    /// of the sessions, and none that a CN with memory needs.
    fn has_memory(&mut self, cn: u64) -> bool {
        let _ = cn;
        true
    }

    /// CN `cn` is this instance from now on. Whether nothing of an earlier instance's shards can be executed any more, by
    /// any worker of the node: until then the session does not start, and the CN asks again.
    fn take_over(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }

    /// Whether CN `cn` is this instance, so that shards of it may have sessions.
    fn is_current(&mut self, cn: u64, instance: u64) -> bool {
        let _ = (cn, instance);
        true
    }
}

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

/// What a responder has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderCounters {
    /// Requests executed.
    pub executed: u64,
    /// Requests answered with a Fault.
    pub faults: u64,
    /// Frames that were many requests, executed and answered as one.
    #[serde(default)]
    pub multi_frames: u64,
    /// Requests in them.
    #[serde(default)]
    pub multi_requests: u64,
    /// Requests that had been answered before, or waited already.
    pub duplicates: u64,
    /// Requests that came early and waited.
    pub early: u64,
    /// SackNak frames sent.
    pub sacks: u64,
    /// SackNakAck frames sent.
    pub sack_acks: u64,
    /// Congestion frames sent.
    pub congestion: u64,
    /// Sessions started.
    pub sessions: u64,
    /// Frames dropped: too short, or of a length their command does not have.
    pub dropped_length: u64,
    /// Frames dropped: integrity trailer wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped: number outside the window.
    pub dropped_window: u64,
    /// Frames dropped: no room for the answer, or to keep them.
    pub dropped_full: u64,
    /// Frames dropped: from nobody with a session, or not for us.
    pub dropped_foreign: u64,
    /// Hellos dropped: from who does not know this node's key, or made no use of its cookie.
    #[serde(default)]
    pub dropped_mac: u64,
    /// Hellos dropped: not genuine, or older than one that was taken.
    #[serde(default)]
    pub dropped_handshake: u64,
    /// Cookies asked for.
    #[serde(default)]
    pub cookies: u64,
}

/// What happens to sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderEvent {
    /// A session has started.
    Started {
        /// The compute node.
        cn: Mac,
        /// Whether it replaced an earlier one.
        replaced: bool,
    },
    /// A session has ended in order.
    Ended(Mac),
    /// A session was forgotten after silence.
    Expired(Mac),
    /// A second agent with the same address was turned away.
    Conflict(Mac),
    /// A CN speaks another version.
    VersionMismatch {
        /// The compute node.
        cn: Mac,
        /// Its version.
        version: u16,
    },
    /// Somebody asked for a session in the name of a CN whose key is known, and did not show that key.
    KeyRefused {
        /// The compute node.
        cn: Mac,
        /// The key that was shown; none if none was.
        shown: Option<PublicKey>,
    },
    /// The session of a CN ended because its key is another by now, or none.
    Revoked(Mac),
}

/// A session as `mn-server sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The compute node.
    pub cn: String,
    /// How its frames are protected: `sealed`, `sealed (pre-shared)` or `insecure`.
    #[serde(default)]
    pub integrity: String,
    /// Streams of the session.
    pub streams: u8,
    /// The largest frame, in bytes.
    pub max_frame: usize,
    /// Requests waiting in reorder buffers.
    pub waiting: usize,
    /// Buffers in use: data of writes among them.
    pub buffered: usize,
    /// Nanoseconds since its last frame.
    pub idle_ns: u64,
    /// What it has done.
    pub counters: ResponderCounters,
}

/// Events kept until polled; the oldest go first.
const EVENTS_MAX: usize = 64;

struct Session {
    /// The address at the other end.
    cn: Mac,
    /// Whose memory it reaches, and by which of that CN's shards.
    owner: Mac,
    shard: u8,
    /// Whether the CN had no memory here when this was last looked at.
    guest: bool,
    instance: u64,
    /// The key that the CN has shown.
    key: Option<PublicKey>,
    framer: Framer,
    max_frame: usize,
    /// Whether frames that are many requests were agreed on.
    multi: bool,
    /// Whether burst reads of more lines than an answer carries were agreed on.
    long_bursts: bool,
    streams: Vec<Stream>,
    buffers: Slab,
    counters: ResponderCounters,
    /// Control frames sent and the highest received.
    sent: u64,
    heard: u64,
    last_heard: Time,
    phase: Phase,
    /// When it was last asked for a sign of life because of another instance's Hello.
    challenged_at: Time,
}

/// All sessions of one worker. Call [`handle`](Self::handle) for every frame,
/// [`finish_batch`](Self::finish_batch) at the end of each receive batch, [`poll`](Self::poll) about once a
/// second.
pub struct Responder {
    config: ResponderConfig,
    sessions: Vec<Option<Session>>,
    by_cn: Directory,
    /// The session of the last frame: the next is likely of the same.
    last: usize,
    /// Session and stream with an acknowledgement due.
    due: Option<(usize, u8)>,
    /// Whether requests may wait, in any session, for room for their answers only.
    stalled: bool,
    offers: Offers,
    /// When it was last looked at who is a guest.
    guests_at: Time,
    /// Early writes that wait, in all sessions.
    early: usize,
    counters: ResponderCounters,
    events: VecDeque<ResponderEvent>,
    nonces: Nonces,
    draining: bool,
    /// What sessions between keys are agreed on with.
    keyed: Option<Keyed>,
    scheme: Retransmission,
    versions: RangeInclusive<u16>,
    features: u32,
}

impl Responder {
    /// A responder without sessions.
    pub fn new(config: ResponderConfig) -> Responder {
        let mut nonces = Nonces::new(config.seed);
        let keyed = config.node_key.clone().map(|own| Keyed::new(own, &mut nonces));
        let newest = if keyed.is_some() { PROTOCOL_VERSION_KEYED } else { PROTOCOL_VERSION };
        let config = ResponderConfig {
            sessions_max: config.sessions_max.max(1),
            streams_max: config.streams_max.clamp(1, STREAMS_MAX as u8),
            ..config
        };
        Responder {
            sessions: Vec::with_capacity(config.sessions_max),
            by_cn: Directory::with_capacity(config.sessions_max),
            last: 0,
            due: None,
            stalled: false,
            offers: Offers::new(),
            guests_at: Time::ZERO,
            early: 0,
            counters: ResponderCounters::default(),
            events: VecDeque::with_capacity(EVENTS_MAX),
            nonces,
            draining: false,
            scheme: Retransmission::Selective,
            keyed,
            versions: PROTOCOL_VERSION_OLDEST..=newest,
            features: FEATURES,
            config,
        }
    }

    /// Repairs losses in sessions yet to start by another scheme, to compare them.
    pub fn set_retransmission(&mut self, scheme: Retransmission) {
        self.scheme = scheme;
    }

    /// Takes sessions of these versions of the protocol only.
    ///
    /// # Panics
    /// If there is none among them.
    pub fn set_versions(&mut self, versions: RangeInclusive<u16>) {
        assert!(!versions.is_empty(), "a version to speak");
        self.versions = versions;
    }

    /// Grants these features at most, of those there are ([`FEATURES`]), in sessions yet to be offered.
    pub fn set_features(&mut self, features: u32) {
        self.features = features & FEATURES;
    }

    /// What was counted outside sessions and in those that have ended.
    pub fn counters(&self) -> ResponderCounters {
        self.counters
    }

    /// Everything counted, sessions included.
    pub fn totals(&self) -> ResponderCounters {
        self.sessions.iter().flatten().fold(self.counters, |sum, s| sum.plus(&s.counters))
    }

    /// Whether CN `cn` has a session.
    pub fn has_session(&self, cn: Mac) -> bool {
        self.by_cn.get(cn).is_some()
    }

    /// Whose memory the session with `cn` reaches; `cn` itself if there is none.
    #[inline]
    pub fn owner(&self, cn: Mac) -> Mac {
        if let Some(Some(session)) = self.sessions.get(self.last)
            && session.cn == cn
        {
            return session.owner;
        }
        let session = self.by_cn.get(cn).and_then(|index| self.sessions[index].as_ref());
        session.map_or(cn, |session| session.owner)
    }

    /// Ends the sessions of shards whose CN is another instance by now ([`Memory::is_current`]), without a word.
    #[cold]
    pub fn end_replaced<M: Memory>(&mut self, memory: &mut M) {
        for index in 0..self.sessions.len() {
            let Some(session) = &self.sessions[index] else { continue };
            let (cn, owner) = (session.cn, session.owner.to_u64());
            if session.shard > 0 && !memory.is_current(owner, session.instance) {
                self.end(index);
                self.event(ResponderEvent::Ended(cn));
            }
        }
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.by_cn.len()
    }

    /// Each session in figures.
    pub fn statuses(&self, now: Time) -> Vec<SessionStatus> {
        let status = |s: &Session| SessionStatus {
            cn: s.cn.to_string(),
            integrity: integrity_name(s.framer.seal.is_sealed(), s.key.is_some()).to_owned(),
            streams: s.streams.len() as u8,
            max_frame: s.max_frame,
            waiting: s.streams.iter().map(Stream::waiting).sum(),
            buffered: s.buffers.used(),
            idle_ns: (now - s.last_heard).as_nanos() as u64,
            counters: s.counters,
        };
        self.sessions.iter().flatten().map(status).collect()
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        self.events.pop_front()
    }

    fn event(&mut self, event: ResponderEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Takes a frame. Frames that are not what they should be are counted and change nothing (R9).
    #[inline]
    pub fn handle<M: Memory>(&mut self, frame: &mut [u8], now: Time, memory: &mut M, tx: &mut dyn Transmit) {
        let Ok(mut frame) = FrameView::new_checked(frame) else {
            self.counters.dropped_length += 1;
            return;
        };
        if let Some(command) = frame.command()
            && !command.is_request()
        {
            self.handle_control(command, frame, now, memory, tx);
            return;
        }
        let cn = frame.src();
        let Some(index) = self.find(cn) else {
            self.counters.dropped_foreign += 1;
            return;
        };
        // An acknowledgement due on another stream does not wait for this one.
        if let Some((session, stream)) = self.due
            && (session, stream) != (index, frame.stream())
        {
            self.flush_due(tx);
        }
        let Some(session) = &mut self.sessions[index] else { return };
        let id = frame.stream();
        let Some(stream) = session.streams.get_mut(usize::from(id)) else {
            session.counters.dropped_foreign += 1;
            return;
        };
        let seq = infer(stream.expected(), frame.seq());
        if !session.framer.open(&mut frame, Space::Stream(id), seq) {
            session.counters.dropped_trailer += 1;
            return;
        }
        session.last_heard = now;
        let before = session.buffers.used();
        let mut cx = Context {
            cn: session.owner.to_u64(),
            framer: &session.framer,
            max_frame: session.max_frame,
            counters: &mut session.counters,
            room: self.config.early_buffers_total.saturating_sub(self.early),
            memory,
            tx,
        };
        if session.multi && frame.command().is_some_and(Command::is_multi_request) {
            match Multi::of(&frame) {
                Some(multi) => stream.take_multi(seq, &multi, &mut session.buffers, &mut cx),
                None => stream.take(seq, request(&frame), &mut session.buffers, &mut cx),
            }
        } else {
            let request = request(&frame);
            match request.op {
                Op::BurstRead { lines } if session.long_bursts => {
                    stream.take_burst_read(seq, lines, &request, &mut session.buffers, &mut cx);
                }
                _ => stream.take(seq, request, &mut session.buffers, &mut cx),
            }
        }
        self.early = self.early + session.buffers.used() - before;
        if stream.due.is_some() {
            self.due = Some((index, id));
        }
        self.stalled |= stream.is_stalled();
    }

    #[inline]
    fn find(&mut self, cn: Mac) -> Option<usize> {
        if let Some(Some(session)) = self.sessions.get(self.last)
            && session.cn == cn
        {
            return Some(self.last);
        }
        let index = self.by_cn.get(cn)?;
        self.last = index;
        Some(index)
    }

    /// To be called after each receive batch: sends the acknowledgement that waited for company (R4).
    #[inline]
    pub fn finish_batch(&mut self, tx: &mut dyn Transmit) {
        if self.due.is_some() {
            self.flush_due(tx);
        }
    }

    /// Whether requests whose turn has come wait for room for their answers: [`resume`](Self::resume) when there may be
    /// some, be it that no other frame comes.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Answers what [waits](Self::is_stalled) for room, as far as there is some.
    #[cold]
    pub fn resume<M: Memory>(&mut self, memory: &mut M, tx: &mut dyn Transmit) {
        self.finish_batch(tx);
        self.stalled = false;
        for session in self.sessions.iter_mut().flatten() {
            for stream in session.streams.iter_mut().filter(|stream| stream.is_stalled()) {
                let before = session.buffers.used();
                let mut cx = Context {
                    cn: session.owner.to_u64(),
                    framer: &session.framer,
                    max_frame: session.max_frame,
                    counters: &mut session.counters,
                    room: 0,
                    memory,
                    tx,
                };
                stream.resume(&mut session.buffers, &mut cx);
                self.early = self.early + session.buffers.used() - before;
                self.stalled |= stream.is_stalled();
            }
        }
    }

    #[inline]
    fn flush_due(&mut self, tx: &mut dyn Transmit) {
        if let Some((index, id)) = self.due.take()
            && let Some(Some(session)) = self.sessions.get_mut(index)
            && let Some(stream) = session.streams.get_mut(usize::from(id))
        {
            stream.flush_due(&session.framer, tx);
        }
    }
}

/// Reads a genuine request; what makes no sense, or was not agreed on, becomes [`Op::Malformed`] (R9).
#[inline(always)]
fn request<'a>(frame: &'a Received<'_>) -> Request<'a> {
    let (op, data) = match frame.message() {
        Ok(Message::ReadReq) => (Op::Read, &[][..]),
        Ok(Message::BurstReadReq { lines }) => (Op::BurstRead { lines }, &[][..]),
        Ok(Message::WriteReq { data }) => (Op::Write, &data[..]),
        Ok(Message::BurstWriteReq { mask, data }) => (Op::BurstWrite { mask }, data),
        _ => (Op::Malformed, &[][..]),
    };
    Request { op, addr: frame.addr(), axi: frame.axi(), data }
}

impl ResponderCounters {
    /// The sum of two.
    pub fn plus(&self, o: &ResponderCounters) -> ResponderCounters {
        ResponderCounters {
            executed: self.executed + o.executed,
            faults: self.faults + o.faults,
            multi_frames: self.multi_frames + o.multi_frames,
            multi_requests: self.multi_requests + o.multi_requests,
            duplicates: self.duplicates + o.duplicates,
            early: self.early + o.early,
            sacks: self.sacks + o.sacks,
            sack_acks: self.sack_acks + o.sack_acks,
            congestion: self.congestion + o.congestion,
            sessions: self.sessions + o.sessions,
            dropped_length: self.dropped_length + o.dropped_length,
            dropped_trailer: self.dropped_trailer + o.dropped_trailer,
            dropped_window: self.dropped_window + o.dropped_window,
            dropped_full: self.dropped_full + o.dropped_full,
            dropped_foreign: self.dropped_foreign + o.dropped_foreign,
            dropped_mac: self.dropped_mac + o.dropped_mac,
            dropped_handshake: self.dropped_handshake + o.dropped_handshake,
            cookies: self.cookies + o.cookies,
        }
    }
}

/// Size of a buffer for an early write in a session with frames of `max_frame` bytes.
fn early_buffer_len(max_frame: usize) -> usize {
    (max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX) * LINE_SIZE
}
