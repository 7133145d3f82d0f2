//! The memory node's end of the protocol: the sessions of all CNs that one worker serves.
//!
//! * `stream`: order, execution, the reorder and the retry buffer (R2-R4, R7); `multi`: frames that are many
//!   requests.
//! * `phase`: states of a session, as one table; `admission`: Hello, Start, Ping, Bye, and limits.
//! * `keyed`: sessions between nodes' keys; `flood`, `allowance`: limits against floods of Hellos.
//! * `session`: data of one session; `directory`: index of sessions; `memory`: interface to the pool.
//! * `config`, `counters`, `event`: configuration, counts, reports.
//! * `offers`: Hellos that were accepted, but not yet followed by a Start.

mod admission;
mod allowance;
mod config;
mod counters;
mod directory;
mod event;
mod flood;
mod keyed;
mod memory;
mod multi;
mod offers;
mod phase;
mod session;
mod stream;

use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

pub use config::ResponderConfig;
pub use counters::ResponderCounters;
pub use event::ResponderEvent;
pub use flood::{HelloSieve, Share};
pub use memory::Memory;
pub use session::SessionStatus;

use directory::Directory;
use event::Events;
use keyed::Keyed;
use multi::Multi;
use offers::Offers;
use session::Session;
use stream::{Context, GenuineRequest, Op, ResponseStream};

use super::entropy::Nonces;
use super::framer::Received;
use super::{STREAMS_MAX, infer};
use crate::Transmit;
use crate::frame::{
    Command, FEATURES, FrameView, Mac, Message, PROTOCOL_VERSION, PROTOCOL_VERSION_KEYED,
    PROTOCOL_VERSION_OLDEST, Space,
};
use crate::machine::{Deadline, StateMachine};
use crate::time::Time;

/// Interval of the checks for silent sessions, old offers and lost handshakes.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time until requests that wait for a transmit slot are tried again. A caller that does not sleep tries more
/// often.
const RESUME_INTERVAL: Duration = Duration::from_micros(100);

/// All sessions of one worker, driven as every [machine](crate::machine):
///
/// ```text
///   loop {
///       for frame in received { responder.handle(frame, now, memory, tx); }
///       if any frames came, or responder.deadline().is_due(now) { responder.poll(now, memory, tx); }
///       while let Some(job) = responder.poll_handshake() { ... }    // its result: handshake_done
///       while let Some(event) = responder.poll_event() { ... }      // for the log: when undrained() says so, or seldom
///       flush the link; wait for frames, until responder.deadline() at the latest
///   }
/// ```
pub struct Responder {
    config: ResponderConfig,
    sessions: Vec<Option<Session>>,
    by_cn: Directory,
    /// Index of the last frame's session; the next frame probably belongs to the same one.
    last: usize,
    /// Session and stream with an acknowledgement that is held back.
    due: Option<(usize, u8)>,
    /// True if a session may have requests that wait only because the transmit ring had no slot for their
    /// answers.
    stalled: bool,
    /// Time at which these requests are tried again at the latest.
    resume_at: Time,
    /// Time of the next check for what has become too old.
    expire_at: Time,
    offers: Offers,
    /// Time of the last check for sessions of guests.
    guests_at: Time,
    /// Length of the control frame being handled. A StartAck or Pong gets the same length, to test that the
    /// path carries such frames.
    asked_len: usize,
    /// Number of early writes that wait, in all sessions together.
    early: usize,
    counters: ResponderCounters,
    events: Events,
    nonces: Nonces,
    draining: bool,
    /// Handshakes between nodes' keys; `None` if this node has no key.
    keyed: Option<Keyed>,
    versions: RangeInclusive<u16>,
    features: u32,
}

impl Responder {
    /// Makes a responder without sessions. It permits at least one session and one stream, whatever `config`
    /// has.
    pub fn new(config: ResponderConfig) -> Responder {
        let mut nonces = Nonces::new(config.seed);
        let keyed = config.node_key.clone().map(|own| Keyed::new(own, &mut nonces));
        // Version 2 needs a key of this node.
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
            resume_at: Time::ZERO,
            expire_at: Time::ZERO,
            offers: Offers::new(),
            guests_at: Time::ZERO,
            asked_len: 0,
            early: 0,
            counters: ResponderCounters::default(),
            events: Events::new(),
            nonces,
            draining: false,
            keyed,
            versions: PROTOCOL_VERSION_OLDEST..=newest,
            features: FEATURES,
            config,
        }
    }

    /// Sets the protocol versions that a Hello may ask for.
    ///
    /// # Panics
    /// If `versions` is empty.
    pub fn set_versions(&mut self, versions: RangeInclusive<u16>) {
        assert!(!versions.is_empty(), "a version to speak");
        self.versions = versions;
    }

    /// Limits the features ([`FEATURES`]) of sessions that are offered from now on.
    pub fn set_features(&mut self, features: u32) {
        self.features = features & FEATURES;
    }

    /// Returns the counts of frames outside any session, and of sessions that have ended.
    pub fn counters(&self) -> ResponderCounters {
        self.counters
    }

    /// Returns the sums of all counts, including those of open sessions.
    pub fn totals(&self) -> ResponderCounters {
        self.sessions.iter().flatten().fold(self.counters, |sum, s| sum.plus(&s.counters))
    }

    /// Whether a session with the CN or shard at address `cn` is open.
    pub fn has_session(&self, cn: Mac) -> bool {
        self.by_cn.get(cn).is_some()
    }

    /// Returns the CN whose memory the session with `cn` accesses, or `cn` if there is no session.
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

    /// Ends the sessions of shards, without a Bye, if their CN has a new instance ([`Memory::is_current`]).
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

    /// Number of open sessions, those of shards included.
    pub fn sessions(&self) -> usize {
        self.by_cn.len()
    }

    /// Snapshot of each open session, for status output.
    pub fn statuses(&self, now: Time) -> Vec<SessionStatus> {
        self.sessions.iter().flatten().map(|session| session.status(now)).collect()
    }

    /// Removes and returns the oldest event, if any.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        self.events.pop()
    }

    fn event(&mut self, event: ResponderEvent) {
        self.events.push(event);
    }

    /// Handles a received frame. An invalid frame is only counted (R9).
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
        // Acknowledgements must be sent in order of execution, so one of another stream is sent first.
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
        // The frame has only the low 16 bits of its number. The upper bits are inferred, and the trailer, which covers
        // all 64 bits, verifies them.
        let seq = infer(stream.expected(), frame.seq());
        if !session.framer.open(&mut frame, Space::Stream(id), seq) {
            session.counters.dropped_trailer += 1;
            return;
        }
        // Only a genuine frame shows that the CN is running.
        session.last_heard = now;
        let before = session.buffers.used();
        let mut cx = Context {
            cn: session.owner.to_u64(),
            framer: &session.framer,
            max_frame: session.max_frame,
            acks_max: session.acks_max,
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

    /// Ends a receive batch, and does what is due: sends the acknowledgement that was held back to cover more writes
    /// (R4), answers [stalled](Self::is_stalled) requests, and removes silent sessions and old offers.
    #[inline]
    pub fn poll<M: Memory>(&mut self, now: Time, memory: &mut M, tx: &mut dyn Transmit) {
        self.finish_batch(tx);
        if self.stalled || now >= self.expire_at {
            self.poll_due(now, memory, tx);
        }
    }

    #[cold]
    fn poll_due<M: Memory>(&mut self, now: Time, memory: &mut M, tx: &mut dyn Transmit) {
        if self.stalled {
            self.resume(memory, tx);
            self.resume_at = now + RESUME_INTERVAL;
        }
        if now >= self.expire_at {
            self.expire(now);
            self.expire_at = now + EXPIRE_INTERVAL;
            self.events.publish();
        }
    }

    #[inline]
    fn finish_batch(&mut self, tx: &mut dyn Transmit) {
        if self.due.is_some() {
            self.flush_due(tx);
        }
    }

    /// Whether requests that are next in order wait for a transmit slot for their answers. If so, call
    /// [`poll`](Self::poll) once there may be a slot, even if no frame comes.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Executes and answers [stalled](Self::is_stalled) requests, as many as there are transmit slots for.
    fn resume<M: Memory>(&mut self, memory: &mut M, tx: &mut dyn Transmit) {
        self.stalled = false;
        for session in self.sessions.iter_mut().flatten() {
            for stream in session.streams.iter_mut().filter(|stream| stream.is_stalled()) {
                let before = session.buffers.used();
                let mut cx = Context {
                    cn: session.owner.to_u64(),
                    framer: &session.framer,
                    max_frame: session.max_frame,
                    acks_max: session.acks_max,
                    counters: &mut session.counters,
                    // This call only executes early requests that are already kept; it keeps no further ones.
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

impl StateMachine for Responder {
    #[inline]
    fn deadline(&self) -> Deadline {
        let expire = Deadline::new(self.expire_at, "a check for silent sessions");
        if self.stalled { expire.min(Deadline::new(self.resume_at, "room for answers")) } else { expire }
    }

    fn undrained(&self) -> Option<&'static str> {
        if self.due.is_some() {
            Some("an acknowledgement held back")
        } else if self.keyed.as_ref().is_some_and(Keyed::has_jobs) {
            Some("a computation of a handshake")
        } else if self.events.is_due() {
            Some("an event of a session")
        } else {
            None
        }
    }
}

/// Decodes a genuine request. A request that is invalid, or of a feature not agreed on, becomes
/// [`Op::Malformed`] (R9).
#[inline(always)]
fn request<'a>(frame: &'a Received<'_>) -> GenuineRequest<'a> {
    let (op, data) = match frame.message() {
        Ok(Message::ReadReq) => (Op::Read, &[][..]),
        Ok(Message::BurstReadReq { lines }) => (Op::BurstRead { lines }, &[][..]),
        Ok(Message::WriteReq { data }) => (Op::Write, &data[..]),
        Ok(Message::BurstWriteReq { mask, data }) => (Op::BurstWrite { mask }, data),
        _ => (Op::Malformed, &[][..]),
    };
    GenuineRequest { op, addr: frame.addr(), axi: frame.axi(), data }
}
