//! The line port: the CXL.mem requests a CPU would send, as function calls.
//!
//! A port owns a link and an engine and runs both in the calling thread: a request goes into the transmit
//! ring, and the same thread takes the answer out of the receive ring. Nothing is handed to another thread
//! on the way. What the cache has is answered in nanoseconds without touching either ring.

use std::time::Duration;

use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::link::wait::{Idle, WaitStyle, Waiter};
use cxloe_wire::link::{Link, LinkError};
use cxloe_wire::time::{Clock, Time};

use crate::cache::Line;
use crate::engine::{Engine, EngineError, EngineEvent, Read, Sink, Write};
use crate::signals::Signals;

/// Frames taken from the ring in one go.
const BATCH: usize = 64;
/// Looks at an empty ring between two looks at the clock.
const SPINS: u32 = 32;
/// Requests in flight of one batched call, unless changed: enough to keep both ends busy, few enough for
/// the smallest ring on the way (256 frames in a veth).
pub const DEPTH_DEFAULT: usize = 128;
const PAGE: u64 = (BURST_LINES_MAX * LINE_SIZE) as u64;

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
    /// Counts calls, so that the answer to a request of one that ended early, because the link failed, is
    /// never taken for the answer to another's.
    call: u64,
    last_refusal: Option<String>,
}

/// Bits of a user value that say where the data goes; those above say which call it belongs to.
const OFFSET_BITS: u32 = 40;

/// Waits for one operation, `user`.
struct One {
    user: u64,
    line: Line,
    outcome: Option<Result<(), EngineError>>,
}

impl One {
    #[inline]
    fn end(&mut self, user: u64, outcome: Result<(), EngineError>) {
        if user == self.user {
            self.outcome = Some(outcome);
        }
    }
}

impl Sink for One {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if let (true, Some(line)) = (user == self.user, data.first_chunk()) {
            self.line = *line;
            self.end(user, Ok(()));
        }
    }
    #[inline]
    fn written(&mut self, user: u64) {
        self.end(user, Ok(()));
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        self.end(user, Err(error));
    }
}

/// Waits for many of one call; reads go to `out` at the offset they were made with.
struct Many<'a> {
    call: u64,
    out: &'a mut [u8],
    in_flight: usize,
    error: Option<EngineError>,
}

impl Many<'_> {
    /// Whether an operation that has ended is one of this call's.
    #[inline]
    fn end(&mut self, user: u64) -> bool {
        let ours = user >> OFFSET_BITS == self.call >> OFFSET_BITS;
        self.in_flight -= usize::from(ours);
        ours
    }
}

impl Sink for Many<'_> {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        if self.end(user) {
            let at = (user - self.call) as usize;
            if let Some(out) = self.out.get_mut(at..at + data.len()) {
                out.copy_from_slice(data);
            }
        }
    }
    #[inline]
    fn written(&mut self, user: u64) {
        self.end(user);
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        if self.end(user) {
            self.error.get_or_insert(error);
        }
    }
}

/// For polling when nobody waits for anything in particular.
struct Nobody;

impl Sink for Nobody {
    fn read(&mut self, _user: u64, _data: &[u8]) {}
    fn written(&mut self, _user: u64) {}
    fn failed(&mut self, _user: u64, _error: EngineError) {}
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
            call: 0,
            last_refusal: None,
        }
    }

    /// Has the engine told of pauses.
    pub fn listen(&mut self, signals: Signals) {
        self.signals = signals;
    }

    /// The link, to look at its counters or to measure it bare.
    pub fn link(&mut self) -> &mut dyn Link {
        &mut *self.link
    }

    /// The engine, to add memory nodes and routes, and to look at its counters.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The port's clock: what `now` means to its engine.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Requests in flight of one batched call, at least 1.
    pub fn set_depth(&mut self, depth: usize) {
        self.depth = depth.max(1);
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
        self.link.flush()?;
        if let Idle::Sleep(most) = self.waiter.after(received, now, Some(self.engine.deadline())) {
            self.link.wait(most)?;
        }
        Ok(received)
    }

    /// One [`turn`](Self::turn) for nobody in particular: keeps sessions alive.
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
        if let Some(text) = crate::events::refusal(event) {
            self.last_refusal = Some(text);
        }
        crate::events::log(event);
    }

    /// Reads the line at `hpa`.
    #[inline]
    pub fn read(&mut self, hpa: u64) -> Result<Line, PortError> {
        if let Some(line) = self.engine.read_cached(hpa) {
            return Ok(*line);
        }
        let user = self.next_call();
        loop {
            let now = self.clock.now();
            match self.engine.read(hpa, user, now, self.link.transmit()) {
                Ok(Read::Hit(line)) => return Ok(line),
                Ok(Read::Sent) => break,
                Err(EngineError::Busy) => self.idle()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.finish_one(user)
    }

    /// The user value of the next call, offset 0.
    #[inline]
    fn next_call(&mut self) -> u64 {
        self.call = self.call.wrapping_add(1 << OFFSET_BITS);
        self.call
    }

    /// Writes the line at `hpa`.
    #[inline]
    pub fn write(&mut self, hpa: u64, line: &Line) -> Result<(), PortError> {
        if self.engine.write_cached(hpa, line) {
            return Ok(());
        }
        let user = self.next_call();
        loop {
            let now = self.clock.now();
            match self.engine.write(hpa, line, user, now, self.link.transmit()) {
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

    /// Reads the lines at `hpas` into `out`, as many in flight as [`set_depth`](Self::set_depth) allows.
    /// The first error is returned once all have ended.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn read_batch(&mut self, hpas: &[u64], out: &mut [Line]) -> Result<(), PortError> {
        assert_eq!(hpas.len(), out.len(), "a place for each line");
        self.many(hpas.len(), out.as_flattened_mut(), |engine, index, user, now, tx, out| {
            match engine.read(hpas[index], user, now, tx)? {
                Read::Sent => Ok(Some(1)),
                Read::Hit(line) => {
                    out[index * LINE_SIZE..][..LINE_SIZE].copy_from_slice(&line);
                    Ok(None)
                }
            }
        })
    }

    /// Writes each line to its HPA, as many in flight as [`set_depth`](Self::set_depth) allows. The first
    /// error is returned once all have ended.
    pub fn write_batch(&mut self, lines: &[(u64, Line)]) -> Result<(), PortError> {
        self.many(lines.len(), &mut [], |engine, index, user, now, tx, _| {
            let (hpa, line) = &lines[index];
            Ok(match engine.write(*hpa, line, user, now, tx)? {
                Write::Sent => Some(1),
                Write::Done => None,
            })
        })
    }

    /// Reads `out.len()` bytes (whole lines) from `hpa` on, in bursts.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), PortError> {
        let lines = whole_lines(out.len())?;
        self.many(lines, out, |engine, index, user, now, tx, _| {
            let at = hpa + (index * LINE_SIZE) as u64;
            let most = burst_len(at, lines - index, engine.burst_read_lines_max(at));
            engine.burst_read(at, most, user, now, tx)?;
            Ok(Some(most))
        })
    }

    /// Writes `data` (whole lines) from `hpa` on, in bursts.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), PortError> {
        let lines = whole_lines(data.len())?;
        self.many(lines, &mut [], |engine, index, user, now, tx, _| {
            let at = hpa + (index * LINE_SIZE) as u64;
            let most = burst_len(at, lines - index, engine.burst_write_lines_max(at));
            let mask = if most >= 64 { u64::MAX } else { (1 << most) - 1 };
            let bytes = &data[index * LINE_SIZE..(index + most) * LINE_SIZE];
            engine.burst_write(at, mask, bytes, user, now, tx)?;
            Ok(Some(most))
        })
    }

    /// Makes requests for `count` lines with `submit` until all are done. `submit` gets the engine, the
    /// index of the next line and the user value for it, and says how many lines it has sent, or `None` for
    /// one line done without sending.
    fn many(
        &mut self,
        count: usize,
        out: &mut [u8],
        mut submit: impl FnMut(
            &mut Engine,
            usize,
            u64,
            Time,
            &mut dyn cxloe_wire::link::Transmit,
            &mut [u8],
        ) -> Result<Option<usize>, EngineError>,
    ) -> Result<(), PortError> {
        let call = self.next_call();
        let mut many = Many { call, out, in_flight: 0, error: None };
        let mut next = 0;
        while next < count || many.in_flight > 0 {
            let now = self.clock.now();
            while next < count && many.in_flight < self.depth && many.error.is_none() {
                let user = call + (next * LINE_SIZE) as u64;
                match submit(&mut self.engine, next, user, now, self.link.transmit(), many.out) {
                    Ok(Some(lines)) => {
                        next += lines;
                        many.in_flight += 1;
                    }
                    Ok(None) => next += 1,
                    Err(EngineError::Busy) => break,
                    Err(e) => many.error = Some(e),
                }
            }
            if many.error.is_some() && many.in_flight == 0 {
                break;
            }
            self.link.flush()?;
            self.turn(&mut many)?;
        }
        many.error.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Writes back everything the cache has modified and waits until it has arrived.
    pub fn flush(&mut self) -> Result<(), PortError> {
        loop {
            let now = self.clock.now();
            let done = self.engine.flush(now, self.link.transmit())?;
            self.link.flush()?;
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

fn whole_lines(bytes: usize) -> Result<usize, PortError> {
    if bytes.is_multiple_of(LINE_SIZE) { Ok(bytes / LINE_SIZE) } else { Err(PortError::PartialLine(bytes)) }
}

/// Lines of the next burst: what is left, of this page, in one frame. At least one, so that an engine
/// without a session is asked and says so.
fn burst_len(hpa: u64, left: usize, frame_max: usize) -> usize {
    let page_left = ((PAGE - hpa % PAGE) as usize).div_ceil(LINE_SIZE);
    left.min(page_left).min(frame_max).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_an_earlier_call_are_nobodys() {
        let (before, call) = (7 << OFFSET_BITS, 8 << OFFSET_BITS);
        let mut one = One { user: call, line: [0; LINE_SIZE], outcome: None };
        one.read(before, &[1; LINE_SIZE]);
        one.written(before);
        one.failed(before, EngineError::Unmapped(0));
        assert!(one.outcome.is_none());
        one.read(call, &[2; LINE_SIZE]);
        assert_eq!((one.outcome, one.line), (Some(Ok(())), [2; LINE_SIZE]));

        let mut out = [0; 2 * LINE_SIZE];
        let mut many = Many { call, out: &mut out, in_flight: 2, error: None };
        many.read(before, &[1; LINE_SIZE]);
        many.failed(before + 64, EngineError::Unmapped(0));
        many.written(before);
        assert_eq!((many.in_flight, many.error), (2, None));
        many.read(call + 64, &[3; LINE_SIZE]);
        many.failed(call, EngineError::Unmapped(0));
        assert_eq!((many.in_flight, many.error), (0, Some(EngineError::Unmapped(0))));
        assert_eq!((out[0], out[64]), (0, 3));
    }

    #[test]
    fn bursts_end_with_the_page_the_frame_and_the_data() {
        assert_eq!(burst_len(4096 - 128, 10, 23), 2);
        assert_eq!(burst_len(0, 10, 4), 4);
        assert_eq!(burst_len(0, 3, 23), 3);
        assert_eq!(burst_len(0, 3, 0), 1, "so that the engine says why");
    }
}
