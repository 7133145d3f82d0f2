//! The line port: CXL.mem requests of a CPU as function calls.
//!
//! A port owns a link and an engine and runs both in the calling thread: the thread puts a request into the transmit
//! ring, and takes the answer out of the receive ring itself. Cache hits are answered in nanoseconds without touching
//! either ring.
//!
//! A call for many lines becomes as many requests as needed, all in flight at once, to every memory node that the
//! range is interleaved over; where the memory node supports it, many share a frame. The data of each answer is
//! copied to its position in the caller's buffer.

use std::ops::Range;
use std::time::Duration;

use cxloe_link::Clock;
use cxloe_link::keys::Handshaker;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkError};
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::time::Time;

use crate::frames::Stamped;
use crate::handshakes;
use crate::signals::Signals;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{
    BurstRead, Direction, Engine, EngineError, EngineEvent, Read, RequestId, Segment, SegmentIter, Sink,
    Write,
};
use cxloe_cn_core::node::{self, Users};

mod waiting;

pub(crate) use waiting::NO_SESSION;
use waiting::{BatchSink, DiscardCompletions, NextRequest, PendingRequest, PendingRequests, SingleSink};

/// Maximum number of frames received in one turn.
const BATCH: usize = 64;
/// Longest sleep while a handshake is computed.
const COMPUTING_SLEEP: Duration = Duration::from_micros(100);
/// Number of polls of an empty ring between two readings of the clock.
const SPINS: u32 = 32;
/// Default number of requests in flight of one batched call: enough to keep both ends busy, and few enough for the
/// smallest ring on the path (256 frames in a veth).
pub const DEPTH_DEFAULT: usize = 128;

/// Number of parts into which a batched call of lines divides its requests in flight, if a frame carries many lines.
const LOTS: usize = 4;

/// Failure of a read, write or flush, or of opening sessions.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The engine or the memory node failed the operation.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No session was opened in time.
    #[error("no session with {peers} within {limit:?}; {hint}")]
    ConnectTimeout {
        /// Addresses of the memory nodes without a session.
        peers: String,
        /// Time after which the wait was given up.
        limit: Duration,
        /// Reason of the last refusal, or advice on what to check.
        hint: String,
    },
    /// A buffer that is not whole lines.
    #[error("{0} bytes are not whole lines of 64 bytes")]
    PartialLine(usize),
}

/// A port for reads and writes of lines, with its link and engine.
pub struct Port {
    link: Box<dyn Link>,
    engine: Engine,
    signals: Signals,
    clock: Clock,
    waiter: Waiter,
    empty: u32,
    depth: usize,
    /// Requests of the batched call in progress.
    requests: PendingRequests,
    /// Number of the call in progress. It distinguishes answers to this call from late answers to an earlier call,
    /// which ended early because the link failed.
    call: u32,
    last_refusal: Option<String>,
    /// Thread that computes for sessions with keys; `None` without a key.
    handshaker: Option<Handshaker<usize>>,
}

impl Port {
    /// Creates a port over `link`. The engine may have peers and routes already.
    pub fn new(link: Box<dyn Link>, engine: Engine, wait: WaitStyle) -> Port {
        Port {
            link,
            engine,
            signals: Signals::default(),
            clock: Clock::new(),
            waiter: Waiter::new(wait),
            empty: 0,
            depth: DEPTH_DEFAULT,
            requests: PendingRequests::new(DEPTH_DEFAULT),
            call: 0,
            last_refusal: None,
            handshaker: None,
        }
    }

    /// Starts a thread that computes handshakes, which sessions with keys need.
    ///
    /// # Errors
    /// Failure to start the thread.
    pub fn start_handshaker(&mut self) -> std::io::Result<()> {
        self.handshaker = Some(Handshaker::start()?);
        Ok(())
    }

    /// Sets the signals that pause the engine's requests.
    pub fn set_signals(&mut self, signals: Signals) {
        self.signals = signals;
    }

    /// Link of the port, for its counters or for measurements without the engine.
    #[inline]
    pub fn link(&mut self) -> &mut dyn Link {
        &mut *self.link
    }

    /// Engine of the port, for adding memory nodes and routes, and for its counters.
    #[inline]
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Clock of the port, which gives the `now` that the engine's functions take.
    #[inline]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sets the number of requests in flight of one batched call; at least 1.
    pub fn set_depth(&mut self, depth: usize) {
        self.depth = depth.max(1);
        self.requests.clear(self.depth);
    }

    /// Runs one round: receives frames and runs due timers. If no frame has arrived, waits in the port's
    /// style.
    #[inline]
    pub fn turn(&mut self, sink: &mut dyn Sink) -> Result<usize, LinkError> {
        let clock = &self.clock;
        let mut link = Stamped { link: &mut *self.link, stamp: || clock.now() };
        // A port that spins reads the clock only for arrived frames and at one poll in `SPINS`.
        let spins = self.waiter.style() != WaitStyle::Sleep && !(self.empty + 1).is_multiple_of(SPINS);
        let now = if spins { None } else { Some(clock.now()) };
        let handshaker = self.handshaker.as_mut();
        let mut users = Caller { sink, signals: &mut self.signals, handshaker, received: 0 };
        let found = node::round(&mut self.engine, &mut link, &mut users, now, BATCH)?;
        if found.received == 0 {
            self.empty = self.empty.wrapping_add(1) % SPINS;
        }
        let Some(now) = found.at else {
            std::hint::spin_loop();
            return Ok(0);
        };
        if let Idle::Sleep(most) = self.waiter.after(found.received, now, Some(self.engine.deadline().at)) {
            let computing = self.handshaker.as_ref().is_some_and(Handshaker::is_busy);
            self.link.wait(if computing { most.min(COMPUTING_SLEEP) } else { most })?;
        }
        Ok(found.received)
    }

    /// Runs one [`turn`](Self::turn) without an operation, which keeps sessions alive.
    #[inline]
    pub fn idle(&mut self) -> Result<(), LinkError> {
        self.turn(&mut DiscardCompletions).map(drop)
    }

    /// Waits until all memory nodes have open sessions, for at most `limit`.
    pub fn connect(&mut self, limit: Duration) -> Result<(), PortError> {
        let until = self.clock.now() + limit;
        while !self.engine.is_connected() {
            self.idle()?;
            while let Some(event) = self.engine.poll_event() {
                self.note(&event);
            }
            if self.clock.now() >= until {
                let sessions = self.engine.sessions();
                let missing = sessions.into_iter().filter(|s| s.state != "open").map(|s| s.peer);
                let hint = self.last_refusal.clone().unwrap_or_else(|| NO_SESSION.into());
                let peers = missing.collect::<Vec<_>>().join(", ");
                return Err(PortError::ConnectTimeout { peers, limit, hint });
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &EngineEvent) {
        if let Some(text) = cxloe_cn_core::events::refusal(event) {
            self.last_refusal = Some(text);
        }
        cxloe_cn_core::events::log(event);
    }

    /// Reads the line at `hpa`, from the cache or its memory node; waits for the answer.
    #[inline]
    pub fn read(&mut self, hpa: u64) -> Result<Line, PortError> {
        let missed = match self.engine.read_here(hpa) {
            Ok(line) => return Ok(*line),
            Err(missed) => missed,
        };
        let id = RequestId::PortRequest { call: self.next_call(), request: 0 };
        loop {
            let now = self.clock.now();
            // The bookkeeping is done while the request is in flight.
            let tx = self.link.transmit();
            tx.hasten();
            match self.engine.read_missed(missed, id, now, tx) {
                Ok(Read::Hit(line)) => return Ok(line),
                Ok(Read::Sent) => break,
                Err(EngineError::Busy) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.finish_one(id)
    }

    #[inline]
    fn next_call(&mut self) -> u32 {
        self.call = self.call.wrapping_add(1);
        self.call
    }

    /// Writes the line at `hpa`, to the cache or its memory node; waits until it is done.
    #[inline]
    pub fn write(&mut self, hpa: u64, line: &Line) -> Result<(), PortError> {
        let Err(missed) = self.engine.write_here(hpa, line) else { return Ok(()) };
        let id = RequestId::PortRequest { call: self.next_call(), request: 0 };
        loop {
            let now = self.clock.now();
            let tx = self.link.transmit();
            tx.hasten();
            match self.engine.write_missed(missed, line, id, now, tx) {
                Ok(Write::Done) => {
                    // The cache may have begun to write back another line, to make room for this one: that request is
                    // sent here.
                    self.link.flush()?;
                    return Ok(());
                }
                Ok(Write::Sent) => break,
                Err(EngineError::Busy) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.finish_one(id).map(drop)
    }

    /// Waits for the end of the operation `id`; returns the data if it is a read.
    #[inline]
    fn finish_one(&mut self, id: RequestId) -> Result<Line, PortError> {
        self.link.flush()?;
        let mut one = SingleSink { id, line: [0; LINE_SIZE], outcome: None };
        loop {
            self.turn(&mut one)?;
            if let Some(outcome) = one.outcome {
                return Ok(outcome.map(|()| one.line)?);
            }
        }
    }

    /// Begins to read the line at `hpa`, for callers that keep many requests in flight themselves. The sink of a
    /// later [`turn`](Self::turn) receives the result under [`RequestId::Number`] of `number`. Requests that were
    /// begun are sent together, by [`send`](Self::send) or the next turn.
    ///
    /// # Errors
    /// As [`Engine::read`]; after [`EngineError::Busy`], try again after a turn.
    #[inline]
    pub fn start_read(&mut self, hpa: u64, number: u32) -> Result<Read, EngineError> {
        self.engine.hold();
        self.engine.read(hpa, RequestId::Number(number), self.clock.now(), self.link.transmit())
    }

    /// Begins to write the line at `hpa`, like [`start_read`](Self::start_read).
    ///
    /// # Errors
    /// As [`Engine::write`]; after [`EngineError::Busy`], try again after a turn.
    #[inline]
    pub fn start_write(&mut self, hpa: u64, line: &Line, number: u32) -> Result<Write, EngineError> {
        self.engine.hold();
        self.engine.write(hpa, line, RequestId::Number(number), self.clock.now(), self.link.transmit())
    }

    /// Sends the requests that were begun by `start_read` and `start_write`.
    #[inline]
    pub fn send(&mut self) -> Result<(), LinkError> {
        self.engine.release(self.clock.now(), self.link.transmit());
        self.link.flush()
    }

    /// Reads the lines at `hpas` into `out`, with as many requests in flight as [`set_depth`](Self::set_depth)
    /// allows. The first error is returned after all requests have ended.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn read_batch(&mut self, hpas: &[u64], out: &mut [Line]) -> Result<(), PortError> {
        assert_eq!(hpas.len(), out.len(), "a place for each line");
        let mut left = hpas.iter().enumerate();
        self.many(self.batch_size(), out.as_flattened_mut(), |engine, id, now, tx, out| {
            let mut rest = left.clone();
            let Some((index, hpa)) = rest.next() else { return Ok(NextRequest::End) };
            let at = index * LINE_SIZE;
            let read = engine.read(*hpa, id, now, tx)?;
            left = rest;
            Ok(match read {
                Read::Sent => NextRequest::Sent(PendingRequest { segment: Segment::straight(*hpa, 1), at }),
                Read::Hit(line) => {
                    out[at..at + LINE_SIZE].copy_from_slice(&line);
                    NextRequest::Done
                }
            })
        })
    }

    /// Writes each line to its HPA, with as many requests in flight as [`set_depth`](Self::set_depth) allows. The
    /// first error is returned after all requests have ended.
    pub fn write_batch(&mut self, lines: &[(u64, Line)]) -> Result<(), PortError> {
        let mut left = lines.iter();
        self.many(self.batch_size(), &mut [], |engine, id, now, tx, _| {
            let mut rest = left.clone();
            let Some((hpa, line)) = rest.next() else { return Ok(NextRequest::End) };
            let written = engine.write(*hpa, line, id, now, tx)?;
            left = rest;
            Ok(match written {
                Write::Sent => {
                    NextRequest::Sent(PendingRequest { segment: Segment::straight(*hpa, 1), at: 0 })
                }
                Write::Done => NextRequest::Done,
            })
        })
    }

    /// Reads `out.len()` bytes (whole lines) from `hpa` on, in bursts as large as a frame permits, from all memory
    /// nodes of the range at once.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), PortError> {
        let mut segment_iter = SegmentIter::new(whole_lines(hpa, out.len())?);
        self.many(1, out, |engine, id, now, tx, out| {
            let Some(segment) = segment_iter.segment(engine, Direction::Read) else {
                return Ok(NextRequest::End);
            };
            let at = (segment.hpa - hpa) as usize;
            let read = engine.burst_read(&segment, id, now, tx)?;
            segment_iter.advance(&segment);
            match read {
                BurstRead::Sent => return Ok(NextRequest::Sent(PendingRequest { segment, at })),
                BurstRead::Here(data) => segment.scatter(data, &mut out[at..]),
                BurstRead::Alike(line) => {
                    segment.scatter([line; BURST_LINES_MAX][..segment.lines].as_flattened(), &mut out[at..])
                }
            };
            Ok(NextRequest::Done)
        })
    }

    /// Reads ranges of equal length (whole lines), which begin at `hpas`, into `out`, one behind the other. Bursts of
    /// several ranges are in flight at once, as many as [`set_depth`](Self::set_depth) allows.
    ///
    /// # Panics
    /// If `out` cannot be divided into as many ranges.
    pub fn read_ranges(&mut self, hpas: &[u64], out: &mut [u8]) -> Result<(), PortError> {
        let bytes = out.len() / hpas.len().max(1);
        assert_eq!(bytes * hpas.len(), out.len(), "ranges of equal length");
        for hpa in hpas {
            whole_lines(*hpa, bytes)?;
        }
        let mut left = hpas.iter().enumerate();
        // The range in progress: its segments, its HPA, and its offset in `out`.
        let (mut segment_iter, mut hpa, mut start) = (SegmentIter::new(0..0), 0, 0);
        self.many(1, out, |engine, id, now, tx, out| {
            let segment = loop {
                if let Some(segment) = segment_iter.segment(engine, Direction::Read) {
                    break segment;
                }
                let Some((index, next)) = left.next() else { return Ok(NextRequest::End) };
                (segment_iter, hpa, start) =
                    (SegmentIter::new(*next..*next + bytes as u64), *next, index * bytes);
            };
            let at = start + (segment.hpa - hpa) as usize;
            let read = engine.burst_read(&segment, id, now, tx)?;
            segment_iter.advance(&segment);
            match read {
                BurstRead::Sent => return Ok(NextRequest::Sent(PendingRequest { segment, at })),
                BurstRead::Here(data) => segment.scatter(data, &mut out[at..]),
                BurstRead::Alike(line) => {
                    segment.scatter([line; BURST_LINES_MAX][..segment.lines].as_flattened(), &mut out[at..])
                }
            };
            Ok(NextRequest::Done)
        })
    }

    /// Writes `data` (whole lines) from `hpa` on, in bursts as large as a frame permits, to all memory nodes of the
    /// range at once.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), PortError> {
        let mut segment_iter = SegmentIter::new(whole_lines(hpa, data.len())?);
        let mut room = [0; BURST_LINES_MAX * LINE_SIZE];
        self.many(1, &mut [], |engine, id, now, tx, _| {
            let Some(segment) = segment_iter.segment(engine, Direction::Write) else {
                return Ok(NextRequest::End);
            };
            let at = (segment.hpa - hpa) as usize;
            let mask = u64::MAX >> (BURST_LINES_MAX - segment.lines);
            let bytes = segment.gather(&data[at..], &mut room).ok_or(EngineError::BadBurst(segment.hpa))?;
            let written = engine.burst_write(&segment, mask, bytes, id, now, tx)?;
            segment_iter.advance(&segment);
            Ok(match written {
                Write::Sent => NextRequest::Sent(PendingRequest { segment, at }),
                Write::Done => NextRequest::Done,
            })
        })
    }

    /// Number of line requests made at once after the first: one, or, if a frame carries many lines, enough
    /// to fill a frame, but few enough that other requests stay in flight meanwhile.
    fn batch_size(&self) -> usize {
        if self.engine.has_multi() { self.depth.div_ceil(LOTS) } else { 1 }
    }

    /// Makes requests with `submit` until all are done, `lot` of them at a time. `submit` gets the engine,
    /// the identity for the next request, and the buffer, to which it copies data that is available at once.
    /// After the error `Busy` it is called again for the same request.
    fn many(
        &mut self,
        lot: usize,
        out: &mut [u8],
        mut submit: impl FnMut(
            &mut Engine,
            RequestId,
            Time,
            &mut dyn cxloe_wire::Transmit,
            &mut [u8],
        ) -> Result<NextRequest, EngineError>,
    ) -> Result<(), PortError> {
        let call = self.next_call();
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear(self.depth);
        let mut many = BatchSink { call, out, requests: &mut requests, error: None };
        let mut more = true;
        let outcome = loop {
            let now = self.clock.now();
            self.engine.hold();
            let refill = many.requests.free.len() >= lot;
            while more
                && refill
                && let Some(slot) = many.requests.free.last().copied()
            {
                let id = RequestId::PortRequest { call, request: slot };
                match submit(&mut self.engine, id, now, self.link.transmit(), many.out) {
                    Ok(NextRequest::Sent(request)) => {
                        many.requests.free.pop();
                        many.requests.slots[slot as usize] = request;
                    }
                    Ok(NextRequest::Done) => {}
                    Ok(NextRequest::End) => more = false,
                    Err(EngineError::Busy) => break,
                    Err(e) => (many.error, more) = (many.error.or(Some(e)), false),
                }
            }
            more &= many.error.is_none();
            if !more && many.requests.in_flight() == 0 {
                // The cache may have begun to write back other lines, to make room for these: those requests are sent
                // here.
                self.engine.release(now, self.link.transmit());
                if let Err(e) = self.link.flush() {
                    break Err(e.into());
                }
                break many.error.map_or(Ok(()), |e| Err(PortError::from(e)));
            }
            self.engine.release(now, self.link.transmit());
            if let Err(e) = self.link.flush().and_then(|()| self.turn(&mut many)) {
                break Err(e.into());
            }
        };
        self.requests = requests;
        outcome
    }

    /// Writes back all dirty lines of the cache and waits until they have arrived.
    pub fn flush(&mut self) -> Result<(), PortError> {
        loop {
            let now = self.clock.now();
            self.engine.hold();
            let done = self.engine.flush(now, self.link.transmit());
            self.engine.release(now, self.link.transmit());
            self.link.flush()?;
            let done = done?;
            if done {
                return Ok(());
            }
            self.idle()?;
        }
    }

    /// Flushes, and then ends all sessions in an orderly way.
    pub fn close(mut self) -> Result<(), PortError> {
        let flushed = self.flush();
        self.engine.close(self.clock.now(), &mut DiscardCompletions);
        // A short wait is enough: a memory node also ends a session if it receives nothing more from this node.
        let until = self.clock.now() + Duration::from_millis(200);
        while !self.engine.is_closed() && self.clock.now() < until {
            self.idle()?;
        }
        flushed
    }
}

/// The caller of [`Port::turn`] as the user of one round. It submitted its requests before the round, which only
/// receives.
struct Caller<'a> {
    sink: &'a mut dyn Sink,
    signals: &'a mut Signals,
    handshaker: Option<&'a mut Handshaker<usize>>,
    received: usize,
}

impl Users for Caller<'_> {
    #[inline]
    fn sink(&mut self) -> &mut dyn Sink {
        self.sink
    }

    #[inline]
    fn received(&mut self, engine: &mut Engine, frames: usize, now: Time) {
        self.received = frames;
        self.signals.poll(engine, || now);
    }

    /// Exchanges handshake computations only in rounds in which no frame arrived, so that no answer is delayed. There
    /// are many such rounds.
    #[inline]
    fn handshakes(&mut self, engine: &mut Engine, now: Time) {
        if let Some(handshaker) = self.handshaker.as_mut().filter(|_| self.received == 0) {
            handshakes::exchange(handshaker, engine, now);
        }
    }
}

/// Parts of a port, for a user that drives them itself.
pub struct PortParts {
    /// Link that the port owned.
    pub link: Box<dyn Link>,
    /// Engine with its sessions and routes.
    pub engine: Engine,
    /// Clock to which all times in the engine refer.
    pub clock: Clock,
    /// Pause signals of the link.
    pub signals: Signals,
}

impl Port {
    /// Takes the port apart without ending its sessions.
    pub fn into_parts(mut self) -> PortParts {
        // Held requests are sent now, because the engine's new user would not send them.
        self.engine.release(self.clock.now(), self.link.transmit());
        PortParts { link: self.link, engine: self.engine, clock: self.clock, signals: self.signals }
    }

    /// Assembles a port, which waits by spinning.
    pub fn from_parts(parts: PortParts) -> Port {
        let mut port = Port::new(parts.link, parts.engine, WaitStyle::Busy);
        (port.clock, port.signals) = (parts.clock, parts.signals);
        port
    }
}

/// The range of `bytes` bytes from `hpa` on; an error if it is not whole lines.
fn whole_lines(hpa: u64, bytes: usize) -> Result<Range<u64>, PortError> {
    if !bytes.is_multiple_of(LINE_SIZE) {
        return Err(PortError::PartialLine(bytes));
    }
    if !hpa.is_multiple_of(LINE_SIZE as u64) {
        return Err(EngineError::Unaligned(hpa).into());
    }
    let end = hpa.checked_add(bytes as u64).ok_or(EngineError::Unmapped(hpa))?;
    Ok(hpa..end)
}
