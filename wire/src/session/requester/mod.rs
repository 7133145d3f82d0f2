//! The compute node's end of a session: requests in, completions out, everything between them its business.
//!
//! * `stream`, `entry`: numbering, the window and the retry buffer (R1, R2); `stream::pack`: many requests in one frame;
//!   `stream::recovery`: what is sent again when (R5, R6, R8).
//! * `phase`: opening, keeping alive, losing and re-opening the session, as one table; `connection`: what it is about;
//!   `control`, `drive`: what turns frames, commands and time into its events and does what it says; `timers`: what
//!   waits for a time.
//! * `keyed`: how a session between keys is agreed on.
//! * `config`, `outcome`, `figures`: what it is told, what it tells, how it is doing.

mod config;
mod connection;
mod control;
mod drive;
mod entry;
mod figures;
mod keyed;
mod outcome;
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
use entry::{Answer, Buffers, Op};
use keyed::Keyed;
use phase::Event;
use stream::{Packing, Stream};
use timers::{Timer, Timers};

use super::entropy::Nonces;
use super::framer::{Framer, Identity, Received};
use super::rtt::RoundTrip;
use super::slab::Slab;
use super::{Retransmission, STREAMS_MAX, WINDOW, infer};
use crate::Transmit;
use crate::frame::{
    BURST_LINES_MAX, Command, FEATURE_JOINT_ACKS, FEATURE_LONG_BURSTS, FEATURE_MULTI, FEATURES, FrameView,
    HEADER_LEN, LINE_SIZE, Mac, Message, Space, WIRE_OVERHEAD, burst_read_lines_max, burst_write_lines_max,
    multi_read_lines_max, multi_write_lines_max,
};
use crate::time::Time;

/// Early answers with data that are kept until they are in order; those beyond are dropped and asked for
/// again (R10).
const EARLY_BUFFERS: usize = 256;
/// Events kept until they are polled; the oldest go first.
const EVENTS_MAX: usize = 64;

/// What the streams of a session share.
struct Shared {
    buffers: Buffers,
    rtt: RoundTrip,
    counters: RequesterCounters,
    packing: Packing,
    /// Bytes of the wire that requests took when they were sent first, or their answers where those are larger (R13).
    wire_bytes: u64,
}

impl Shared {
    /// Notes a frame sent first, which, or whose answer if that is larger, has so many bytes between header and trailer.
    #[inline]
    fn charge(&mut self, payload: usize, framer: &Framer) {
        self.wire_bytes += (HEADER_LEN + payload + framer.seal.len() + WIRE_OVERHEAD) as u64;
    }
}

/// The compute node's end of the session with one memory node.
///
/// Call [`connect`](Self::connect) once; then [`handle`](Self::handle) for every frame from the node,
/// [`poll`](Self::poll) whenever [`deadline`](Self::deadline) has come, and
/// [`poll_event`](Self::poll_event) after either.
pub struct Requester {
    config: RequesterConfig,
    /// What its buffers were made for.
    max_frame_at_first: usize,
    connection: Connection,
    streams: Vec<Stream>,
    /// How many of them the session has.
    granted: usize,
    shared: Shared,
    events: VecDeque<SessionEvent>,
    /// When the last genuine frame of the session came.
    last_heard: Time,
    timers: Timers,
    read_lines_max: usize,
    write_lines_max: usize,
    /// What a session between keys is agreed on with; `None` without keys.
    keyed: Option<Keyed>,
    /// The memory node is not to be spoken with.
    barred: bool,
    /// Until when a session is about to open: memory was given to this end a moment ago, and nothing has said no since.
    expected_until: Option<Time>,
    /// The memory node has said, by a handshake of its own key, that this end's key belongs to it no more: seen to at the
    /// next poll.
    expelled: bool,
}

impl Requester {
    /// A requester that has not called its peer yet.
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
            streams: (0..streams).map(Stream::new).collect(),
            granted: usize::from(streams),
            shared: Shared {
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
            timers: Timers::new(),
            read_lines_max: 0,
            write_lines_max: 0,
            max_frame_at_first: config.max_frame,
            barred: false,
            expected_until: None,
            expelled: false,
            config,
        }
    }

    /// Repairs losses by another scheme, to compare them. The responder must be told the same, and both before they
    /// connect.
    pub fn set_retransmission(&mut self, scheme: Retransmission) {
        self.streams.iter_mut().for_each(|stream| stream.scheme = scheme);
    }

    /// Speaks these versions of the protocol only: the newest that the memory node speaks too.
    ///
    /// # Panics
    /// If there is none among them.
    pub fn set_versions(&mut self, versions: RangeInclusive<u16>) {
        assert!(!versions.is_empty(), "a version to speak");
        self.connection.versions = versions;
    }

    /// Asks for these features at most, of those there are ([`FEATURES`]), in sessions yet to be agreed on.
    pub fn set_features(&mut self, features: u32) {
        self.connection.features = features & FEATURES;
    }

    /// Is shard `shard` of the CN `owner`, in sessions yet to be agreed on: this end's address has to be
    /// `owner.shard(shard)`.
    pub fn set_shard(&mut self, owner: Mac, shard: u8) {
        debug_assert_eq!(owner.shard(shard), self.config.identity.own);
        self.connection.shard = shard;
        self.connection.owner = if shard == 0 { Mac::default() } else { owner };
    }

    /// More requests follow at once: single lines wait for each other from now on, to be sent many in a frame where the
    /// session has such frames; likewise burst reads for the burst that goes on where they end. [`release`](Self::release) is to follow soon; what waits after that is sent by the next
    /// [`poll`](Self::poll).
    #[inline]
    pub fn hold(&mut self) {
        self.shared.packing.held = true;
    }

    /// No more requests follow at this moment: sends those that wait.
    #[inline]
    pub fn release(&mut self, now: Time, tx: &mut dyn Transmit) {
        self.shared.packing.held = false;
        self.send_waiting(now, tx);
    }

    /// Sends those that wait; more follow all the same.
    #[inline]
    pub fn send_waiting(&mut self, now: Time, tx: &mut dyn Transmit) {
        let Some(framer) = self.connection.framer() else { return };
        for stream in &mut self.streams[..self.granted] {
            if stream.waiting() > 0 && !stream.send_waiting(now, framer, &mut self.shared, tx) {
                self.timers.arm_by(Timer::Streams, now);
            }
        }
    }

    /// Whether the session has frames of many lines.
    #[inline]
    pub fn has_multi(&self) -> bool {
        self.shared.packing.reads > 0
    }

    /// Bytes of the wire that requests have taken so far, frame by frame, repetitions aside; or their answers where those
    /// are larger (R13).
    #[inline]
    pub fn wire_bytes(&self) -> u64 {
        self.shared.wire_bytes
    }

    /// The link carries frames of another length from now on: agrees on a new session, to which everything unanswered
    /// goes over; what is too long for it fails with [`OpError::FrameTooLarge`]. Never more than at first.
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        let max_frame = max_frame.min(self.max_frame_at_first);
        if max_frame != self.config.max_frame {
            self.config.max_frame = max_frame;
            self.agree_anew(now);
        }
    }

    /// Who talks to whom.
    pub fn identity(&self) -> Identity {
        self.config.identity
    }

    /// Whether requests are taken.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.connection.framer().is_some()
    }

    /// The incarnation of the memory of the open session.
    pub fn incarnation(&self) -> Option<u64> {
        self.connection.incarnation()
    }

    /// Streams of the session; before there is one, those that will be asked for.
    pub fn streams(&self) -> usize {
        self.granted
    }

    /// Requests not yet answered, over all streams.
    pub fn unanswered(&self) -> usize {
        self.streams.iter().map(Stream::unanswered).sum()
    }

    /// Most lines of a burst read in this session; 0 before it is open.
    #[inline]
    pub fn burst_read_lines_max(&self) -> usize {
        self.read_lines_max
    }

    /// Most lines of a burst write in this session; 0 before it is open.
    #[inline]
    pub fn burst_write_lines_max(&self) -> usize {
        self.write_lines_max
    }

    /// The counters.
    pub fn counters(&self) -> &RequesterCounters {
        &self.shared.counters
    }

    /// The session in figures. The time-out is that of the stream with the longest.
    pub fn status(&self) -> RequesterStatus {
        let Shared { buffers, rtt, counters, .. } = &self.shared;
        let timeout = |stream: &Stream| stream.timeout_ns(rtt);
        RequesterStatus {
            peer: self.config.identity.peer.to_string(),
            state: self.connection.phase().name().to_owned(),
            streams: self.granted as u8,
            window: self.connection.window(),
            max_frame: self.connection.max_frame(),
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

    /// When to [`poll`](Self::poll) next; far in the future if there is nothing to wait for.
    #[inline]
    pub fn deadline(&self) -> Time {
        self.timers.next_timeout()
    }

    /// The oldest event not yet taken.
    #[inline]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if self.events.is_empty() { None } else { self.events.pop_front() }
    }

    /// Reads the line at CMem address `addr` on `stream`.
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

    /// Writes the line at `addr`.
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

    /// Reads `lines` lines from `addr` on, all in one page.
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

    /// Writes the lines that `mask` names relative to `addr`, all in one page; `data` holds them in order.
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

    /// Takes a frame from the memory node (the caller has looked at its source address). Frames that are
    /// not what they should be are counted and change nothing (R9).
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
            // A request, and one that is none of the protocol's: not for this end.
            None => self.shared.counters.dropped_foreign += 1,
        }
    }

    #[inline(always)]
    fn handle_answer(&mut self, mut frame: Received<'_>, now: Time, out: &mut dyn Completions) {
        let id = frame.stream();
        let shared = &mut self.shared;
        let (Some(framer), Some(stream)) =
            (self.connection.framer(), self.streams[..self.granted].get_mut(usize::from(id)))
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
            Message::ReadResp { data } => stream.answered(seq, Answer::Data(data), now, shared, out),
            Message::BurstReadResp { data, .. } => {
                stream.answered(seq, Answer::Data(data), now, shared, out);
            }
            Message::MultiReadResp { data } => {
                stream.answered_all(seq, data.iter().map(|line| Answer::Data(line)), now, shared, out);
            }
            Message::MultiWriteResp { lines } => {
                let answers = core::iter::repeat_n(Answer::Done, lines.into());
                stream.answered_all(seq, answers, now, shared, out);
            }
            Message::WriteResp => stream.answered(seq, Answer::Done, now, shared, out),
            Message::Fault { status } => stream.answered(seq, Answer::Fault(status), now, shared, out),
            Message::SackNak { last_in_order } => {
                shared.counters.sacks += 1;
                stream.sacked(seq, infer(oldest, last_in_order));
            }
            Message::SackNakAck { last_in_order, acked_seq, .. } => {
                shared.counters.sacks += 1;
                stream.answered(infer(oldest, acked_seq), Answer::Done, now, shared, out);
                stream.sacked(seq, infer(oldest, last_in_order));
            }
            _ => return,
        }
        // What the timer is armed for may stand, though it be for a request now answered: at worst it brings one poll too
        // many.
        if let Some(at) = stream.deadline() {
            self.timers.arm_by(Timer::Streams, at);
        }
        if self.connection.is_suspect() {
            self.step(Event::Heard, now);
        }
    }

    fn event(&mut self, event: SessionEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Fails everything unanswered with `error`.
    fn fail_all(&mut self, error: OpError, out: &mut dyn Completions) {
        for stream in &mut self.streams {
            stream.fail_all(error, &mut self.shared, out);
        }
    }

    /// Makes the limits of the session just opened those of the streams, and everything unanswered part of
    /// it. What does not fit it any more fails.
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
            // R12: with another number of streams, lines belong to other streams.
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
