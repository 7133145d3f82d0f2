//! The compute node's end of a session: takes requests, returns completions.
//!
//! * `stream`, `entry`: numbering, the window and the retry buffer (R1, R2); `stream::pack`: many requests in
//!   one frame; `stream::recovery`: retransmission (R5, R6, R8).
//! * `phase`: opening, keeping alive, losing and re-opening the session, as one table; `connection`: its
//!   data; `control`, `drive`: turn frames, commands and time into events of the table, and carry out its
//!   actions; `timers`.
//! * `keyed`: agreement on a session between nodes' keys; `path`: longest frame that the path carries;
//!   `pause`: time in which this process did not run.
//! * `config`, `outcome`, `figures`: configuration, results and events, counters.

mod config;
mod connection;
mod control;
mod drive;
mod entry;
mod figures;
mod keyed;
mod outcome;
mod path;
mod pause;
mod phase;
mod stream;
mod timers;

use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

pub use config::{RequesterConfig, Timing};
pub use figures::{RequesterCounters, RequesterStatus};
pub use outcome::{Completions, OpError, Rejected, SessionEvent};

use connection::Connection;
use entry::{Buffers, EntryAnswer, Op};
use keyed::Keyed;
use path::PathLimit;
use pause::Pause;
use phase::ConnectionEvent;
use stream::{Packing, RequestStream};
use timers::{Timer, Timers};

use super::entropy::Nonces;
use super::framer::{Framer, Identity, Received};
use super::rtt::RoundTrip;
use super::slab::Slab;
use super::{STREAMS_MAX, WINDOW, infer};
use crate::Transmit;
use crate::frame::{
    BURST_LINES_MAX, Command, FEATURE_JOINT_ACKS, FEATURE_LONG_BURSTS, FEATURE_MULTI, FEATURES, FrameView,
    HEADER_LEN, LINE_SIZE, Mac, Message, Space, WIRE_OVERHEAD, burst_read_lines_max, burst_write_lines_max,
    multi_read_lines_max, multi_write_lines_max,
};
use crate::time::Time;

/// Maximum number of early answers whose data is kept. Further early answers are dropped, and their requests are sent
/// again (R10).
const EARLY_BUFFERS: usize = 256;
/// Maximum number of events kept until they are polled; a further event displaces the oldest.
const EVENTS_MAX: usize = 64;

struct SessionState {
    buffers: Buffers,
    rtt: RoundTrip,
    counters: RequesterCounters,
    packing: Packing,
    /// Bytes on the wire of all first transmissions: of the request or its answer, whichever is larger (R13).
    wire_bytes: u64,
}

impl SessionState {
    /// Adds the bytes on the wire of a frame sent for the first time, or of its answer if that is larger.
    /// `payload` is the number of payload bytes of the larger one.
    #[inline]
    fn charge(&mut self, payload: usize, framer: &Framer) {
        self.wire_bytes += (HEADER_LEN + payload + framer.seal.len() + WIRE_OVERHEAD) as u64;
    }
}

/// The compute node's end of the sessions with one memory node.
///
/// Call [`connect`](Self::connect) once; then drive it as every [machine](crate::machine):
///
/// ```text
///   loop {
///       for frame in received { requester.handle(frame, now, tx, completions); }
///       if requester.deadline().is_due(now) { requester.poll(now, tx, completions); }
///       while let Some(event) = requester.poll_event() { ... }
///       while let Some(job) = requester.poll_handshake() { ... }    // its result: handshake_done
///       flush the link; wait for frames, until requester.deadline() at the latest
///   }
/// ```
pub struct Requester {
    config: RequesterConfig,
    /// Longest frame that the buffers were allocated for; the frame length cannot grow beyond it.
    max_frame_at_first: usize,
    connection: Connection,
    streams: Vec<RequestStream>,
    /// Number of streams that the memory node granted to the session.
    granted: usize,
    shared: SessionState,
    events: VecDeque<SessionEvent>,
    /// Time of the last genuine frame of the session.
    last_heard: Time,
    /// Last time span in which this process did not run.
    pause: Pause,
    timers: Timers,
    read_lines_max: usize,
    write_lines_max: usize,
    /// State of the agreement between nodes' keys; `None` without keys.
    keyed: Option<Keyed>,
    /// True while the memory node is [barred](Self::bar).
    barred: bool,
    path: PathLimit,
    /// End of the time in which a session is [expected](Self::is_expected); `None` after a refusal.
    expected_until: Option<Time>,
    /// True if the memory node has reported, in an authenticated answer, that this CN's key was withdrawn. The next
    /// poll ends the session.
    expelled: bool,
}

impl Requester {
    /// Makes a requester that does nothing until [`connect`](Self::connect).
    pub fn new(config: RequesterConfig) -> Requester {
        let streams = config.streams.clamp(1, STREAMS_MAX as u8);
        let config = RequesterConfig { streams, ..config };
        let lines = (config.max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX);
        let timing = config.timing;
        let mut connection = Connection::new(Nonces::new(config.seed));
        connection.versions = keyed::versions(config.keys.is_some());
        Requester {
            keyed: config.keys.clone().map(Keyed::new),
            connection,
            streams: (0..streams).map(RequestStream::new).collect(),
            granted: usize::from(streams),
            shared: SessionState {
                buffers: Buffers {
                    writes: Slab::new(WINDOW * usize::from(streams), lines * LINE_SIZE),
                    early: Slab::new(EARLY_BUFFERS, lines * LINE_SIZE),
                },
                rtt: RoundTrip::new(timing.timeout_initial, timing.timeout_min, timing.timeout_max),
                counters: RequesterCounters::default(),
                packing: Packing::default(),
                wire_bytes: 0,
            },
            events: VecDeque::with_capacity(EVENTS_MAX),
            last_heard: Time::ZERO,
            pause: Pause::default(),
            timers: Timers::new(),
            read_lines_max: 0,
            write_lines_max: 0,
            max_frame_at_first: config.max_frame,
            barred: false,
            path: PathLimit::default(),
            expected_until: None,
            expelled: false,
            config,
        }
    }

    /// Sets the protocol versions that a Hello may ask for; a session gets the newest that the memory node
    /// supports too.
    ///
    /// # Panics
    /// If `versions` is empty.
    pub fn set_versions(&mut self, versions: RangeInclusive<u16>) {
        assert!(!versions.is_empty(), "a version to speak");
        self.connection.versions = versions;
    }

    /// Limits the features ([`FEATURES`]) of sessions that are agreed on from now on.
    pub fn set_features(&mut self, features: u32) {
        self.connection.features = features & FEATURES;
    }

    /// Makes the next sessions those of shard `shard` of the CN `owner`. This end's address must be
    /// `owner.shard(shard)`.
    pub fn set_shard(&mut self, owner: Mac, shard: u8) {
        debug_assert_eq!(owner.shard(shard), self.config.identity.own);
        self.connection.shard = shard;
        // Shard 0 is the CN itself, so its Hello names no owner.
        self.connection.owner = if shard == 0 { Mac::default() } else { owner };
    }

    /// Announces that more requests follow at once. Until [`release`](Self::release), single lines wait so
    /// that many can be sent in one frame, if the session has such frames, and a burst read waits for the
    /// burst that continues it. Call `release` soon: requests that still wait are sent by the next
    /// [`poll`](Self::poll).
    #[inline]
    pub fn hold(&mut self) {
        self.shared.packing.held = true;
    }

    /// Announces that no more requests follow for now, and sends the waiting requests.
    #[inline]
    pub fn release(&mut self, now: Time, tx: &mut dyn Transmit) {
        self.shared.packing.held = false;
        self.send_waiting(now, tx);
    }

    /// Sends the waiting requests, although more may follow.
    #[inline]
    pub fn send_waiting(&mut self, now: Time, tx: &mut dyn Transmit) {
        let Some(framer) = self.connection.framer() else { return };
        for stream in &mut self.streams[..self.granted] {
            // The transmit ring is full, so the next poll tries again.
            if stream.waiting() > 0 && !stream.send_waiting(now, framer, &mut self.shared, tx) {
                self.timers.arm_by(Timer::Streams, now);
            }
        }
    }

    /// Whether the session has frames of many lines, so that [`hold`](Self::hold) has an effect.
    #[inline]
    pub fn has_multi(&self) -> bool {
        self.shared.packing.reads > 0
    }

    /// Returns the bytes on the wire of all requests so far, without retransmissions: of each request frame
    /// or its answer, whichever is larger (R13).
    #[inline]
    pub fn wire_bytes(&self) -> u64 {
        self.shared.wire_bytes
    }

    /// Sets the frame length that the link now carries, at most the length at creation. The requester agrees
    /// on a new session, to which unanswered requests move; a request too long for it fails with
    /// [`OpError::FrameTooLarge`].
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        let max_frame = max_frame.min(self.max_frame_at_first);
        if max_frame != self.config.max_frame {
            self.config.max_frame = max_frame;
            // A changed frame length may come with another path, so the limit of the old path is dropped.
            self.path.widen();
            self.agree_anew(now);
        }
    }

    /// MAC addresses of this end and of the memory node, and the EtherType.
    pub fn identity(&self) -> Identity {
        self.config.identity
    }

    /// Whether requests are taken now; `false` also while one session replaces another.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.connection.framer().is_some()
    }

    /// Incarnation of the pool that the open session accesses; it changes when the pool's content is lost.
    pub fn incarnation(&self) -> Option<u64> {
        self.connection.incarnation()
    }

    /// Number of streams of the session; without a session, the number to ask for.
    pub fn streams(&self) -> usize {
        self.granted
    }

    /// Number of unanswered requests of all streams.
    pub fn unanswered(&self) -> usize {
        self.streams.iter().map(RequestStream::unanswered).sum()
    }

    /// Whether a session is open and the window of `stream` has room for one more write.
    #[inline]
    pub fn has_room_to_write(&self, stream: u8) -> bool {
        self.is_open() && self.streams[usize::from(stream) % self.granted].has_room(Op::Write)
    }

    /// Time at which the current silence began, in which an answer is due and no frame has come. `None` if no answer is
    /// due.
    pub fn silent_since(&self) -> Option<Time> {
        self.owed_since().map(|since| since.max(self.last_heard))
    }

    /// Time limits and intervals given at creation.
    pub fn timing(&self) -> Timing {
        self.config.timing
    }

    /// Time of the last genuine frame of the session; [`Time::ZERO`] before the first one.
    pub fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Maximum number of lines in a burst read of this session; 0 before it is open.
    #[inline]
    pub fn burst_read_lines_max(&self) -> usize {
        self.read_lines_max
    }

    /// Maximum number of lines in a burst write of this session; 0 before it is open.
    #[inline]
    pub fn burst_write_lines_max(&self) -> usize {
        self.write_lines_max
    }

    /// Counters of all sessions since the requester was created.
    pub fn counters(&self) -> &RequesterCounters {
        &self.shared.counters
    }

    /// Snapshot of the session for status output.
    pub fn status(&self) -> RequesterStatus {
        let SessionState { buffers, rtt, counters, .. } = &self.shared;
        let timeout = |stream: &RequestStream| stream.timeout_ns(rtt);
        RequesterStatus {
            peer: self.config.identity.peer.to_string(),
            state: self.connection.phase().name().to_owned(),
            streams: self.granted as u8,
            window: self.connection.window(),
            max_frame: self.connection.max_frame(),
            path_loses: self.path.lost(),
            multi: self.connection.has(FEATURE_MULTI),
            integrity: self.integrity().to_owned(),
            unanswered: self.unanswered(),
            buffered: buffers.writes.used() + buffers.early.used(),
            rtt_ns: if rtt.is_measured() { rtt.smoothed_ns() } else { 0 },
            rtt_variation_ns: rtt.variation_ns(),
            timeout_ns: self.streams.iter().map(timeout).max().unwrap_or(0),
            counters: *counters,
        }
    }

    /// Removes and returns the oldest event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if self.events.is_empty() { None } else { self.events.pop_front() }
    }

    /// Sends a read of the line at CMem address `addr`. The completion repeats `token`.
    #[inline]
    pub fn read(
        &mut self,
        stream: u8,
        addr: u64,
        token: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        self.request(stream, Op::Read, addr, &[], token, now, tx)
    }

    /// Sends a write of the line at CMem address `addr`. The completion repeats `token`.
    #[inline]
    pub fn write(
        &mut self,
        stream: u8,
        addr: u64,
        data: &[u8; LINE_SIZE],
        token: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        self.request(stream, Op::Write, addr, data, token, now, tx)
    }

    /// Sends a read of `lines` lines from `addr` on, all in one page. The completion repeats `token`.
    #[inline]
    pub fn burst_read(
        &mut self,
        stream: u8,
        addr: u64,
        lines: u8,
        token: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        if lines == 0 || usize::from(lines) > self.read_lines_max {
            return Err(if self.is_open() { Rejected::BadBurst } else { Rejected::NotConnected });
        }
        self.request(stream, Op::BurstRead { lines }, addr, &[], token, now, tx)
    }

    /// Sends a write of the lines that `mask` selects, counted from `addr`, all in one page; `data` has their
    /// content in order.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "a burst write is its parts")]
    pub fn burst_write(
        &mut self,
        stream: u8,
        addr: u64,
        mask: u64,
        data: &[u8],
        token: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        let lines = mask.count_ones() as usize;
        if lines == 0 || lines > self.write_lines_max || data.len() != lines * LINE_SIZE {
            return Err(if self.is_open() { Rejected::BadBurst } else { Rejected::NotConnected });
        }
        self.request(stream, Op::BurstWrite { mask }, addr, data, token, now, tx)
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the parts of one request, all from the methods above")]
    fn request(
        &mut self,
        stream: u8,
        op: Op,
        addr: u64,
        data: &[u8],
        token: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected> {
        let Some(framer) = self.connection.framer() else { return Err(Rejected::NotConnected) };
        let mut index = usize::from(stream);
        // The caller derives the stream from the line's address (R12), but the memory node may have granted fewer
        // streams.
        if index >= self.granted {
            index %= self.granted;
        }
        let stream = &mut self.streams[index];
        if !stream.has_room(op) || !stream.send(op, addr, data, token, now, framer, &mut self.shared, tx) {
            return Err(Rejected::Busy);
        }
        self.shared.counters.requests += 1;
        if let Some(at) = stream.deadline() {
            self.timers.arm_by(Timer::Streams, at);
        }
        Ok(())
    }

    /// Handles a frame from the memory node, whose source address the caller has checked. An invalid frame is
    /// only counted (R9).
    #[inline]
    pub fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions) {
        let Ok(frame) = FrameView::new_checked(frame) else {
            self.shared.counters.dropped_length += 1;
            return;
        };
        match frame.command() {
            Some(Command::MultiReadResp) if !self.connection.has(FEATURE_MULTI) => {
                self.shared.counters.dropped_foreign += 1;
            }
            Some(Command::MultiWriteResp) if !self.connection.has(FEATURE_MULTI | FEATURE_JOINT_ACKS) => {
                self.shared.counters.dropped_foreign += 1;
            }
            Some(
                Command::ReadResp
                | Command::WriteResp
                | Command::BurstReadResp
                | Command::MultiReadResp
                | Command::MultiWriteResp
                | Command::SackNak
                | Command::SackNakAck
                | Command::Fault,
            ) => self.handle_answer(frame, now, out),
            Some(command) => self.handle_control(command, frame, now, tx, out),
            // The frame is a request or has an unknown command; no memory node sends such a frame to a CN.
            None => self.shared.counters.dropped_foreign += 1,
        }
    }

    #[inline(always)]
    fn handle_answer(&mut self, mut frame: Received<'_>, now: Time, out: &mut dyn Completions) {
        let id = frame.stream();
        let shared = &mut self.shared;
        let (Some(framer), Some(stream)) =
            (self.connection.answer_framer(), self.streams[..self.granted].get_mut(usize::from(id)))
        else {
            shared.counters.dropped_foreign += 1;
            return;
        };
        let oldest = stream.oldest();
        let seq = infer(oldest, frame.seq());
        if !framer.open(&mut frame, Space::Stream(id), seq) {
            shared.counters.dropped_trailer += 1;
            return;
        }
        let Ok(message) = frame.message() else {
            shared.counters.dropped_length += 1;
            return;
        };
        self.last_heard = now;
        match message {
            Message::ReadResp { data } => stream.answered(seq, EntryAnswer::Data(data), now, shared, out),
            Message::BurstReadResp { data, .. } => {
                stream.answered(seq, EntryAnswer::Data(data), now, shared, out);
            }
            Message::MultiReadResp { data } => {
                stream.answered_all(seq, data.iter().map(|line| EntryAnswer::Data(line)), now, shared, out);
            }
            Message::MultiWriteResp { lines } => {
                let answers = core::iter::repeat_n(EntryAnswer::Done, lines.into());
                stream.answered_all(seq, answers, now, shared, out);
            }
            Message::WriteResp => stream.answered(seq, EntryAnswer::Done, now, shared, out),
            Message::Fault { status } => stream.answered(seq, EntryAnswer::Fault(status), now, shared, out),
            Message::SackNak { last_in_order } => {
                shared.counters.sacks += 1;
                stream.sacked(seq, infer(oldest, last_in_order));
            }
            Message::SackNakAck { last_in_order, acked_seq, .. } => {
                shared.counters.sacks += 1;
                stream.answered(infer(oldest, acked_seq), EntryAnswer::Done, now, shared, out);
                stream.sacked(seq, infer(oldest, last_in_order));
            }
            _ => return,
        }
        // The timer may still be armed for a request that is answered now; that costs at most one poll.
        if let Some(at) = stream.deadline() {
            self.timers.arm_by(Timer::Streams, at);
        }
        if self.connection.is_suspect() {
            self.step(ConnectionEvent::Heard, now);
        }
    }

    fn event(&mut self, event: SessionEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn fail_all(&mut self, error: OpError, out: &mut dyn Completions) {
        for stream in &mut self.streams {
            stream.fail_all(error, &mut self.shared, out);
        }
    }

    /// Applies the limits of the session just opened to the streams, and moves all unanswered requests to it.
    /// Requests beyond the limits fail.
    fn adopt_session(&mut self, now: Time, out: &mut dyn Completions) {
        let trailer = self.connection.framer().map_or(0, |f| f.seal.len());
        let max_frame = self.connection.max_frame();
        self.read_lines_max = burst_read_lines_max(max_frame, trailer);
        self.write_lines_max = burst_write_lines_max(max_frame, trailer);
        let multi = self.connection.has(FEATURE_MULTI);
        self.shared.packing.reads = if multi { multi_read_lines_max(max_frame, trailer) } else { 0 };
        self.shared.packing.writes = if multi { multi_write_lines_max(max_frame, trailer) } else { 0 };
        let long = self.connection.has(FEATURE_LONG_BURSTS) && self.read_lines_max < BURST_LINES_MAX;
        self.shared.packing.burst = if long { self.read_lines_max } else { 0 };
        if self.connection.streams() != self.granted {
            // The number of streams has changed, so lines now belong to other streams (R12), and no request can move to
            // the new session.
            self.fail_all(OpError::FrameTooLarge, out);
            self.granted = self.connection.streams();
        }
        let (reads, writes) = (self.read_lines_max, self.write_lines_max);
        let fit = |op: Op| match op {
            Op::Read | Op::Write => true,
            Op::BurstRead { .. } => op.data_len() <= reads * LINE_SIZE,
            Op::BurstWrite { .. } => op.data_len() <= writes * LINE_SIZE,
        };
        for stream in &mut self.streams {
            stream.set_window(self.connection.window());
            stream.restart(now, fit, &mut self.shared, out);
        }
    }
}
