//! The compute node's end of a session: requests in, completions out, everything between them its business.
//!
//! * `stream`: numbering, the retry buffer, what is sent again when (R1, R5, R6, R8).
//! * `connection`: opening, keeping alive, losing and re-opening the session.

mod connection;
mod stream;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use connection::Connection;
use stream::{Answer, Buffers, Op, Stream};

use super::framer::{Identity, PreSharedKey};
use super::rtt::RoundTrip;
use super::slab::Slab;
use super::{Nonces, STREAMS_MAX, WINDOW, infer};
use crate::frame::{
    BURST_LINES_MAX, Command, FaultStatus, FrameError, HEADER_LEN, HelloStatus, LINE_SIZE, Message, Space,
    body_len, burst_read_lines_max, burst_write_lines_max,
};
use crate::link::Transmit;
use crate::time::Time;

/// Early answers with data that are kept until they are in order; those beyond are dropped and asked for
/// again (R10).
const EARLY_BUFFERS: usize = 256;
/// Events kept until they are polled; the oldest go first.
const EVENTS_MAX: usize = 64;

/// When a session waits how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A session without any sign of life for this long is dead, and its requests fail (R8).
    pub dead_after: Duration,
    /// After this long without a sign of life a new session is offered, while the old one may still answer.
    pub suspect_after: Duration,
    /// An idle session is asked for a sign of life this often.
    pub ping_every: Duration,
    /// First interval between two Hellos; doubled up to [`hello_max`](Timing::hello_max).
    pub hello_first: Duration,
    /// Longest interval between two Hellos.
    pub hello_max: Duration,
    /// Time-out of a request before there is a sample.
    pub timeout_initial: Duration,
    /// Shortest time-out of a request.
    pub timeout_min: Duration,
    /// Longest time-out of a request.
    pub timeout_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            dead_after: Duration::from_secs(5),
            suspect_after: Duration::from_secs(1),
            ping_every: Duration::from_secs(1),
            hello_first: Duration::from_millis(20),
            hello_max: Duration::from_secs(1),
            timeout_initial: Duration::from_millis(20),
            timeout_min: Duration::from_millis(1),
            timeout_max: Duration::from_millis(500),
        }
    }
}

/// What a requester needs to know.
#[derive(Clone, Debug)]
pub struct RequesterConfig {
    /// Who talks to whom.
    pub identity: Identity,
    /// The largest frame this end's link carries.
    pub max_frame: usize,
    /// Streams to ask for, 1 to [`STREAMS_MAX`].
    pub streams: u8,
    /// This agent's instance id: random at its start.
    pub instance: u64,
    /// Key for sealed frames; `None` for the plain trailer.
    pub key: Option<PreSharedKey>,
    /// How long to wait for what.
    pub timing: Timing,
    /// Seeds the nonces.
    pub seed: u64,
}

/// Why a request was not carried out. A write that failed may still take effect until the next session
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The memory node refused it.
    #[error("the memory node refused the request: {0}")]
    Fault(FaultStatus),
    /// The memory node has not answered for the session's limit.
    #[error("the memory node has not answered within the session's limit; check that mn-server runs and the link is up")]
    SessionDead,
    /// The memory node has come back without the memory's content.
    #[error("the memory node has lost its content (it was restarted without a kept pool): the region's data is gone")]
    DataLost,
    /// The memory node has come back with smaller frames than the request needs.
    #[error("the new session carries smaller frames than the request was made for; try again")]
    FrameTooLarge,
    /// The session was closed by this end.
    #[error("the session was closed")]
    Closed,
}

/// Why a request was not even taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No session is open: not yet, or not any more.
    #[error("no session with the memory node is open")]
    NotConnected,
    /// The window or the transmit ring is full: poll and try again.
    #[error("the window or the transmit ring is full")]
    Busy,
    /// More lines than a frame of this session carries, none at all, or data of another length.
    #[error("the burst does not fit a frame of this session")]
    BadBurst,
}

/// Takes what has become of requests, in the order in which each stream completes. `token` is what the
/// request was made with.
pub trait Completions {
    /// A read is done; `data` holds its lines and is valid during the call only.
    fn read(&mut self, token: u64, data: &[u8]);
    /// A write is done.
    fn written(&mut self, token: u64);
    /// The request failed. For a write, `data` is what it was to write.
    fn failed(&mut self, token: u64, error: OpError, data: &[u8]);
}

/// What happens to a session, to be polled after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session is open.
    Opened {
        /// The memory's incarnation: changes when its content was lost.
        incarnation: u64,
        /// Whether requests of an earlier session go on in this one.
        resumed: bool,
    },
    /// The memory node came back with another incarnation: what was in it is gone.
    DataLost {
        /// The incarnation before.
        before: u64,
        /// The one now.
        now: u64,
    },
    /// Nothing was heard for [`Timing::suspect_after`]; a new session is being offered.
    Suspect,
    /// Nothing was heard for [`Timing::dead_after`]; everything unanswered has failed.
    Dead,
    /// The memory node says it is going away.
    PeerLeft,
    /// The memory node does not take us.
    Refused {
        /// Why.
        status: HelloStatus,
        /// Oldest protocol version it speaks.
        version_min: u16,
        /// Newest protocol version it speaks.
        version_max: u16,
    },
    /// The session was closed as we asked.
    Closed,
}

/// What a requester has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterCounters {
    /// Requests sent for the first time.
    pub requests: u64,
    /// Requests completed by an answer.
    pub answered: u64,
    /// Requests sent again.
    pub retransmitted: u64,
    /// Selective acknowledgements received.
    pub sacks: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Answers that came early and waited.
    pub early: u64,
    /// Answers received more than once.
    pub duplicates: u64,
    /// Requests the memory node refused.
    pub faults: u64,
    /// Congestion frames received.
    pub congestion: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Frames dropped: too short, or of a length their command does not have.
    pub dropped_length: u64,
    /// Frames dropped: integrity trailer wrong (damaged, replayed, of another session).
    pub dropped_trailer: u64,
    /// Frames dropped: number outside the window.
    pub dropped_window: u64,
    /// Frames dropped: the answer does not fit the request.
    pub dropped_unmatched: u64,
    /// Frames dropped: no buffer for an early answer.
    pub dropped_full: u64,
    /// Frames dropped: not for us, or no session to check them against.
    pub dropped_foreign: u64,
}

/// A session as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequesterStatus {
    /// The memory node's address.
    pub peer: String,
    /// `open`, `connecting`, `suspect` or `closed`.
    pub state: String,
    /// Streams of the session.
    pub streams: u8,
    /// Reads, and as many writes, a stream may have in flight.
    pub window: usize,
    /// The largest frame, in bytes.
    pub max_frame: usize,
    /// `plain` or `sealed`.
    pub integrity: String,
    /// Requests in flight.
    pub unanswered: usize,
    /// Smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
    /// Its variation in nanoseconds.
    pub rtt_variation_ns: u64,
    /// The present time-out in nanoseconds.
    pub timeout_ns: u64,
    /// The counters.
    pub counters: RequesterCounters,
}

/// The compute node's end of the session with one memory node.
///
/// Call [`connect`](Self::connect) once; then [`handle`](Self::handle) for every frame from the node,
/// [`poll`](Self::poll) whenever [`deadline`](Self::deadline) has come, and
/// [`poll_event`](Self::poll_event) after either.
pub struct Requester {
    config: RequesterConfig,
    connection: Connection,
    streams: Vec<Stream>,
    buffers: Buffers,
    rtt: RoundTrip,
    counters: RequesterCounters,
    events: VecDeque<SessionEvent>,
    /// Since when an answer of any kind is owed.
    waiting_since: Option<Time>,
    last_heard: Time,
    deadline: Time,
    read_lines_max: usize,
    write_lines_max: usize,
}

impl Requester {
    /// A requester that has not called its peer yet.
    pub fn new(config: RequesterConfig) -> Requester {
        let streams = config.streams.clamp(1, STREAMS_MAX as u8);
        let config = RequesterConfig { streams, ..config };
        let lines = (config.max_frame.saturating_sub(HEADER_LEN) / LINE_SIZE).clamp(1, BURST_LINES_MAX);
        let timing = config.timing;
        Requester {
            connection: Connection::new(Nonces::new(config.seed)),
            streams: (0..streams).map(Stream::new).collect(),
            buffers: Buffers {
                writes: Slab::new(WINDOW * usize::from(streams), lines * LINE_SIZE),
                early: Slab::new(EARLY_BUFFERS, lines * LINE_SIZE),
            },
            rtt: RoundTrip::new(timing.timeout_initial, timing.timeout_min, timing.timeout_max),
            counters: RequesterCounters::default(),
            events: VecDeque::with_capacity(EVENTS_MAX),
            waiting_since: None,
            last_heard: Time::ZERO,
            deadline: Time(u64::MAX),
            read_lines_max: 0,
            write_lines_max: 0,
            config,
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
        &self.counters
    }

    /// The session in figures.
    pub fn status(&self) -> RequesterStatus {
        RequesterStatus {
            peer: self.config.identity.peer.to_string(),
            state: self.connection.state_name().to_owned(),
            streams: self.streams.len() as u8,
            window: self.connection.window(),
            max_frame: self.connection.max_frame(),
            integrity: if self.config.key.is_some() { "sealed" } else { "plain" }.to_owned(),
            unanswered: self.unanswered(),
            rtt_ns: self.rtt.smoothed().as_nanos() as u64,
            rtt_variation_ns: self.rtt.variation().as_nanos() as u64,
            timeout_ns: self.rtt.timeout().as_nanos() as u64,
            counters: self.counters,
        }
    }

    /// When to [`poll`](Self::poll) next; far in the future if there is nothing to wait for.
    #[inline]
    pub fn deadline(&self) -> Time {
        self.deadline
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
        let index = usize::from(stream) % self.streams.len();
        let stream = &mut self.streams[index];
        if !stream.has_room(op)
            || !stream.send(op, addr, data, token, now, framer, &mut self.buffers, &self.rtt, tx)
        {
            return Err(Rejected::Busy);
        }
        self.counters.requests += 1;
        if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
        if let Some(at) = self.streams[index].deadline() {
            self.deadline = self.deadline.min(at);
        }
        Ok(())
    }

    /// Takes a frame from the memory node (the caller has looked at its source address). Frames that are
    /// not what they should be are counted and change nothing (R9).
    #[inline]
    pub fn handle(
        &mut self,
        frame: &mut [u8],
        now: Time,
        tx: &mut dyn Transmit,
        out: &mut dyn Completions,
    ) {
        let body = match body_len(frame) {
            Ok(body) => body,
            Err(FrameError::Truncated { .. } | FrameError::Undelimited { .. }) => {
                self.counters.dropped_length += 1;
                return;
            }
            Err(_) => frame.len(),
        };
        let Some(command) = Command::from_u8(frame[14]) else {
            self.counters.dropped_length += 1;
            return;
        };
        match command {
            Command::ReadResp
            | Command::WriteResp
            | Command::BurstReadResp
            | Command::SackNak
            | Command::SackNakAck
            | Command::Fault => self.handle_answer(frame, body, now, out),
            _ => self.handle_control(command, frame, body, now, tx, out),
        }
    }

    #[inline]
    fn handle_answer(&mut self, frame: &mut [u8], body: usize, now: Time, out: &mut dyn Completions) {
        let (low, id) = (u16::from_be_bytes([frame[15], frame[16]]), frame[17]);
        let (Some(framer), Some(stream)) =
            (self.connection.framer(), self.streams.get_mut(usize::from(id)))
        else {
            self.counters.dropped_foreign += 1;
            return;
        };
        let seq = infer(stream.oldest(), low);
        if !framer.open(frame, body, Space::Stream(id), seq) {
            self.counters.dropped_trailer += 1;
            return;
        }
        let Ok((_, message)) = Message::parse(frame) else {
            self.counters.dropped_length += 1;
            return;
        };
        self.last_heard = now;
        let answer = match message {
            Message::ReadResp { data } => Answer::Data(data),
            Message::BurstReadResp { data, .. } => Answer::Data(data),
            Message::WriteResp => Answer::Done,
            Message::Fault { status } => Answer::Fault(status),
            Message::SackNak { last_in_order } => {
                self.counters.sacks += 1;
                stream.sacked(seq, infer(stream.oldest(), last_in_order));
                self.waiting_since = Some(now);
                self.deadline = Time::ZERO;
                return;
            }
            Message::SackNakAck { last_in_order, acked_seq, .. } => {
                self.counters.sacks += 1;
                let last = infer(stream.oldest(), last_in_order);
                let acked = infer(stream.oldest(), acked_seq);
                let (buffers, counters) = (&mut self.buffers, &mut self.counters);
                stream.answered(acked, Answer::Done, now, buffers, &mut self.rtt, counters, out);
                stream.sacked(seq, last);
                self.waiting_since = Some(now);
                self.deadline = Time::ZERO;
                return;
            }
            _ => return,
        };
        let (buffers, counters) = (&mut self.buffers, &mut self.counters);
        let early_before = counters.early;
        stream.answered(seq, answer, now, buffers, &mut self.rtt, counters, out);
        // A pending repetition is looked at right away; otherwise the old deadline may stand, at worst it
        // brings one poll too many.
        if self.counters.early != early_before || stream.deadline().is_some_and(|d| d <= now) {
            self.deadline = Time::ZERO;
        }
        self.waiting_since = if stream.unanswered() > 0 { Some(now) } else { None };
        if self.waiting_since.is_none() && self.streams.len() > 1 && self.unanswered() > 0 {
            self.waiting_since = Some(now);
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
            stream.fail_all(error, &mut self.buffers, out);
        }
        self.waiting_since = None;
    }

    /// Sets frame sizes and windows to those of the session just opened; `false` if something unanswered
    /// does not fit it any more.
    fn adopt_limits(&mut self) -> bool {
        let trailer = self.connection.framer().map_or(4, |f| f.seal.len());
        let max_frame = self.connection.max_frame();
        let before = (self.read_lines_max, self.write_lines_max);
        self.read_lines_max = burst_read_lines_max(max_frame, trailer);
        self.write_lines_max = burst_write_lines_max(max_frame, trailer);
        for stream in &mut self.streams {
            stream.set_window(self.connection.window());
        }
        self.read_lines_max >= before.0 && self.write_lines_max >= before.1
    }
}
