//! The line port: the CXL.mem requests a CPU would send, as function calls.
//!
//! A port owns a link and an engine and runs both in the calling thread: a request goes into the transmit
//! ring, and the same thread takes the answer out of the receive ring. Nothing is handed to another thread
//! on the way. What the cache has is answered in nanoseconds without touching either ring.
//!
//! A call for many lines becomes as many requests as it takes, in flight at once, on every memory node that the range is
//! spread over, many in a frame where the memory node takes such frames; what each answer brings is put where it belongs.

use std::ops::Range;
use std::time::Duration;

use cxloe_link::Clock;
use cxloe_link::keys::Handshaker;
use cxloe_link::wait::{Idle, WaitStyle, Waiter};
use cxloe_link::{Link, LinkError};
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::time::Time;

use crate::signals::Signals;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{
    BurstRead, Direction, Engine, EngineError, EngineEvent, Read, Segment, SegmentIter, Sink, Write,
};

mod waiting;

use waiting::{Many, Next, Nobody, One, REQUEST_BITS, Request, Requests};

/// Frames taken from the ring in one go.
const BATCH: usize = 64;
/// The longest sleep while a handshake is computed.
const COMPUTING_SLEEP: Duration = Duration::from_micros(100);
/// Looks at an empty ring between two looks at the clock.
const SPINS: u32 = 32;
/// Requests in flight of one batched call, unless changed: enough to keep both ends busy, few enough for
/// the smallest ring on the way (256 frames in a veth).
pub const DEPTH_DEFAULT: usize = 128;

/// Parts into which a batched call of lines divides what it has in flight, where many lines travel in a frame.
const LOTS: usize = 4;

/// Why an operation of the port failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The engine or the memory node.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No session within the time allowed.
    #[error("no session with {peers} within {limit:?}; {hint}")]
    ConnectTimeout {
        /// The memory nodes not reached.
        peers: String,
        /// How long it was tried.
        limit: Duration,
        /// What was heard meanwhile, or what to look at.
        hint: String,
    },
    /// A buffer that is not whole lines.
    #[error("{0} bytes are not whole lines of 64 bytes")]
    PartialLine(usize),
}

/// A line port.
pub struct Port {
    link: Box<dyn Link>,
    engine: Engine,
    signals: Signals,
    clock: Clock,
    waiter: Waiter,
    empty: u32,
    depth: usize,
    /// The requests of a batched call.
    requests: Requests,
    /// Counts calls, so that the answer to a request of one that ended early, because the link failed, is
    /// never taken for the answer to another's.
    call: u64,
    last_refusal: Option<String>,
    /// Computes for sessions between keys; `None` without a key.
    handshaker: Option<Handshaker<usize>>,
}

impl Port {
    /// A port over `link`, whose engine may have peers and routes already.
    pub fn new(link: Box<dyn Link>, engine: Engine, wait: WaitStyle) -> Port {
        Port {
            link,
            engine,
            signals: Signals::default(),
            clock: Clock::new(),
            waiter: Waiter::new(wait),
            empty: 0,
            depth: DEPTH_DEFAULT,
            requests: Requests::new(DEPTH_DEFAULT),
            call: 0,
            last_refusal: None,
            handshaker: None,
        }
    }

    /// Has a thread compute handshakes, so that the engine can have sessions between keys.
    ///
    /// # Errors
    /// No thread.
    pub fn shake_hands(&mut self) -> std::io::Result<()> {
        self.handshaker = Some(Handshaker::start()?);
        Ok(())
    }

    /// Has the engine told of pauses.
    pub fn listen(&mut self, signals: Signals) {
        self.signals = signals;
    }

    /// The link, to look at its counters or to measure it bare.
    #[inline]
    pub fn link(&mut self) -> &mut dyn Link {
        &mut *self.link
    }

    /// The engine, to add memory nodes and routes, and to look at its counters.
    #[inline]
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The port's clock: what `now` means to its engine.
    #[inline]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Requests in flight of one batched call, at least 1.
    pub fn set_depth(&mut self, depth: usize) {
        self.depth = depth.max(1);
        self.requests.clear(self.depth);
    }

    /// Takes what has arrived and does what is due; waits by the port's style if it is nothing.
    #[inline]
    pub fn turn(&mut self, sink: &mut dyn Sink) -> Result<usize, LinkError> {
        let (engine, clock) = (&mut self.engine, &self.clock);
        let mut now = None;
        let received = self.link.receive(BATCH, &mut |frame, tx| {
            let now = *now.get_or_insert_with(|| clock.now());
            engine.handle(frame, now, tx, sink);
        })?;
        if received == 0 {
            self.empty = self.empty.wrapping_add(1);
            if !self.empty.is_multiple_of(SPINS) && self.waiter.style() != WaitStyle::Sleep {
                std::hint::spin_loop();
                return Ok(0);
            }
            now = Some(self.clock.now());
        }
        let now = now.unwrap_or_default();
        self.signals.poll(&mut self.engine, || now);
        if now >= self.engine.deadline() {
            self.engine.poll(now, self.link.transmit(), sink);
        }
        let mut computing = false;
        if let Some(handshaker) = self.handshaker.as_mut().filter(|_| received == 0) {
            while let Some((session, job)) = self.engine.poll_handshake() {
                handshaker.compute(session, job);
            }
            while let Some((session, done)) = handshaker.finished() {
                self.engine.handshake_done(session, done, now);
            }
            computing = handshaker.is_busy();
        }
        self.engine.release(now, self.link.transmit());
        self.link.flush()?;
        if let Idle::Sleep(most) = self.waiter.after(received, now, Some(self.engine.deadline())) {
            self.link.wait(if computing { most.min(COMPUTING_SLEEP) } else { most })?;
        }
        Ok(received)
    }

    /// One [`turn`](Self::turn) for nobody in particular: keeps sessions alive.
    #[inline]
    pub fn idle(&mut self) -> Result<(), LinkError> {
        self.turn(&mut Nobody).map(drop)
    }

    /// Waits until all memory nodes have a session.
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
                let hint = self.last_refusal.clone().unwrap_or_else(|| {
                    "check that mn-server runs there, that both are on one Ethernet segment and use the same EtherType".into()
                });
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

    /// Reads the line at `hpa`.
    #[inline]
    pub fn read(&mut self, hpa: u64) -> Result<Line, PortError> {
        let missed = match self.engine.read_here(hpa) {
            Ok(line) => return Ok(*line),
            Err(missed) => missed,
        };
        let user = self.next_call();
        loop {
            let now = self.clock.now();
            // The books are kept while the request is on its way.
            let tx = self.link.transmit();
            tx.hasten();
            match self.engine.read_missed(missed, user, now, tx) {
                Ok(Read::Hit(line)) => return Ok(line),
                Ok(Read::Sent) => break,
                Err(EngineError::Busy) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.finish_one(user)
    }

    /// The user value of the next call, request 0.
    #[inline]
    fn next_call(&mut self) -> u64 {
        self.call = self.call.wrapping_add(1 << REQUEST_BITS);
        self.call
    }

    /// Writes the line at `hpa`.
    #[inline]
    pub fn write(&mut self, hpa: u64, line: &Line) -> Result<(), PortError> {
        let Err(missed) = self.engine.write_here(hpa, line) else { return Ok(()) };
        let user = self.next_call();
        loop {
            let now = self.clock.now();
            let tx = self.link.transmit();
            tx.hasten();
            match self.engine.write_missed(missed, line, user, now, tx) {
                Ok(Write::Done) => {
                    // A victim may have been written back to make room.
                    self.link.flush()?;
                    return Ok(());
                }
                Ok(Write::Sent) => break,
                Err(EngineError::Busy) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.finish_one(user).map(drop)
    }

    /// Waits for the operation `user`; the line is what was read, if it was a read.
    #[inline]
    fn finish_one(&mut self, user: u64) -> Result<Line, PortError> {
        self.link.flush()?;
        let mut one = One { user, line: [0; LINE_SIZE], outcome: None };
        loop {
            self.turn(&mut one)?;
            if let Some(outcome) = one.outcome {
                return Ok(outcome.map(|()| one.line)?);
            }
        }
    }

    /// Begins reading the line at `hpa`, for callers that keep many requests under way themselves: the sink of a later
    /// [`turn`](Self::turn) hears of it under `user`, which is below 2^32 so that it is none of a call's. It leaves, with
    /// others begun before or after it, when [`send`](Self::send) is called, or with the next turn.
    ///
    /// # Errors
    /// As [`Engine::read`]: [`EngineError::Busy`] to try again after a turn.
    #[inline]
    pub fn start_read(&mut self, hpa: u64, user: u64) -> Result<Read, EngineError> {
        debug_assert!(user >> REQUEST_BITS == 0, "user values from 2^32 on are the port's own");
        self.engine.hold();
        self.engine.read(hpa, user, self.clock.now(), self.link.transmit())
    }

    /// Begins writing the line at `hpa`, as [`start_read`](Self::start_read) begins reading.
    ///
    /// # Errors
    /// As [`Engine::write`]: [`EngineError::Busy`] to try again after a turn.
    #[inline]
    pub fn start_write(&mut self, hpa: u64, line: &Line, user: u64) -> Result<Write, EngineError> {
        debug_assert!(user >> REQUEST_BITS == 0, "user values from 2^32 on are the port's own");
        self.engine.hold();
        self.engine.write(hpa, line, user, self.clock.now(), self.link.transmit())
    }

    /// Sends what was begun.
    #[inline]
    pub fn send(&mut self) -> Result<(), LinkError> {
        self.engine.release(self.clock.now(), self.link.transmit());
        self.link.flush()
    }

    /// Reads the lines at `hpas` into `out`, as many in flight as [`set_depth`](Self::set_depth) allows.
    /// The first error is returned once all have ended.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn read_batch(&mut self, hpas: &[u64], out: &mut [Line]) -> Result<(), PortError> {
        assert_eq!(hpas.len(), out.len(), "a place for each line");
        let mut left = hpas.iter().enumerate();
        self.many(self.lot(), out.as_flattened_mut(), |engine, user, now, tx, out| {
            let mut rest = left.clone();
            let Some((index, hpa)) = rest.next() else { return Ok(Next::End) };
            let at = index * LINE_SIZE;
            let read = engine.read(*hpa, user, now, tx)?;
            left = rest;
            Ok(match read {
                Read::Sent => Next::Sent(Request { segment: Segment::straight(*hpa, 1), at }),
                Read::Hit(line) => {
                    out[at..at + LINE_SIZE].copy_from_slice(&line);
                    Next::Done
                }
            })
        })
    }

    /// Writes each line to its HPA, as many in flight as [`set_depth`](Self::set_depth) allows. The first
    /// error is returned once all have ended.
    pub fn write_batch(&mut self, lines: &[(u64, Line)]) -> Result<(), PortError> {
        let mut left = lines.iter();
        self.many(self.lot(), &mut [], |engine, user, now, tx, _| {
            let mut rest = left.clone();
            let Some((hpa, line)) = rest.next() else { return Ok(Next::End) };
            let written = engine.write(*hpa, line, user, now, tx)?;
            left = rest;
            Ok(match written {
                Write::Sent => Next::Sent(Request { segment: Segment::straight(*hpa, 1), at: 0 }),
                Write::Done => Next::Done,
            })
        })
    }

    /// Reads `out.len()` bytes (whole lines) from `hpa` on, in bursts, each as large as a frame takes, on all memory
    /// nodes that have a part of them at once.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), PortError> {
        let mut segment_iter = SegmentIter::new(whole_lines(hpa, out.len())?);
        self.many(1, out, |engine, user, now, tx, out| {
            let Some(segment) = segment_iter.segment(engine, Direction::Read) else { return Ok(Next::End) };
            let at = (segment.hpa - hpa) as usize;
            let read = engine.burst_read(&segment, user, now, tx)?;
            segment_iter.advance(&segment);
            match read {
                BurstRead::Sent => return Ok(Next::Sent(Request { segment, at })),
                BurstRead::Here(data) => segment.scatter(data, &mut out[at..]),
                BurstRead::Alike(line) => {
                    segment.scatter([line; BURST_LINES_MAX][..segment.lines].as_flattened(), &mut out[at..])
                }
            };
            Ok(Next::Done)
        })
    }

    /// Writes `data` (whole lines) from `hpa` on, in bursts, each as large as a frame takes, to all memory nodes that
    /// have a part of them at once.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), PortError> {
        let mut segment_iter = SegmentIter::new(whole_lines(hpa, data.len())?);
        let mut room = [0; BURST_LINES_MAX * LINE_SIZE];
        self.many(1, &mut [], |engine, user, now, tx, _| {
            let Some(segment) = segment_iter.segment(engine, Direction::Write) else { return Ok(Next::End) };
            let at = (segment.hpa - hpa) as usize;
            let mask = u64::MAX >> (BURST_LINES_MAX - segment.lines);
            let bytes = segment.gather(&data[at..], &mut room).ok_or(EngineError::BadBurst(segment.hpa))?;
            let written = engine.burst_write(&segment, mask, bytes, user, now, tx)?;
            segment_iter.advance(&segment);
            Ok(match written {
                Write::Sent => Next::Sent(Request { segment, at }),
                Write::Done => Next::Done,
            })
        })
    }

    /// How many requests for lines are made at once, after the first: one, or where many of them travel in a frame so many
    /// that it is worth a frame, few enough that the others are on their way meanwhile.
    fn lot(&self) -> usize {
        if self.engine.has_multi() { self.depth.div_ceil(LOTS) } else { 1 }
    }

    /// Makes requests with `submit` until all are done, `lot` of them at a time. `submit` gets the engine, the user value for the next request
    /// and the buffer, for what is there at once; after an error of being busy it is asked for the same request again.
    fn many(
        &mut self,
        lot: usize,
        out: &mut [u8],
        mut submit: impl FnMut(
            &mut Engine,
            u64,
            Time,
            &mut dyn cxloe_wire::Transmit,
            &mut [u8],
        ) -> Result<Next, EngineError>,
    ) -> Result<(), PortError> {
        let call = self.next_call();
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear(self.depth);
        let mut many = Many { call, out, requests: &mut requests, error: None };
        let mut more = true;
        let outcome = loop {
            let now = self.clock.now();
            self.engine.hold();
            let refill = many.requests.free.len() >= lot;
            while more
                && refill
                && let Some(slot) = many.requests.free.last().copied()
            {
                let user = call + u64::from(slot);
                match submit(&mut self.engine, user, now, self.link.transmit(), many.out) {
                    Ok(Next::Sent(request)) => {
                        many.requests.free.pop();
                        many.requests.slots[slot as usize] = request;
                    }
                    Ok(Next::Done) => {}
                    Ok(Next::End) => more = false,
                    Err(EngineError::Busy) => break,
                    Err(e) => (many.error, more) = (many.error.or(Some(e)), false),
                }
            }
            more &= many.error.is_none();
            if !more && many.requests.in_flight() == 0 {
                // Victims may have been written back to make room.
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

    /// Writes back everything the cache has modified and waits until it has arrived.
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

    /// Flushes and ends all sessions in order.
    pub fn close(mut self) -> Result<(), PortError> {
        let flushed = self.flush();
        self.engine.close(self.clock.now(), &mut Nobody);
        let until = self.clock.now() + Duration::from_millis(200);
        while !self.engine.is_closed() && self.clock.now() < until {
            self.idle()?;
        }
        flushed
    }
}

/// What a port is made of, for whoever drives it in another way.
pub struct Parts {
    /// The link.
    pub link: Box<dyn Link>,
    /// The engine.
    pub engine: Engine,
    /// Its clock.
    pub clock: Clock,
    /// Where it hears of pauses.
    pub signals: Signals,
}

impl Port {
    /// Takes the port apart.
    pub fn into_parts(mut self) -> Parts {
        // Whoever drives them does not know that something was begun.
        self.engine.release(self.clock.now(), self.link.transmit());
        Parts { link: self.link, engine: self.engine, clock: self.clock, signals: self.signals }
    }

    /// Puts a port together again, one that waits by spinning.
    pub fn from_parts(parts: Parts) -> Port {
        let mut port = Port::new(parts.link, parts.engine, WaitStyle::Busy);
        (port.clock, port.signals) = (parts.clock, parts.signals);
        port
    }
}

/// The HPAs of `bytes` bytes from `hpa` on.
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
