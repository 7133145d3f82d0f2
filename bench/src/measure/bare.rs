//! The limits: bare frames over the port's own link, one at a time and with a full window.

use std::time::{Duration, Instant};

use cxloe_link::echo::{ECHO_BODY, Echo, is_reply};
use cxloe_link::{Link, LinkError};
use cxloe_wire::frame::Mac;

use super::{MeasureError, Target};
use crate::report::{Samples, ThroughputTrial};

/// How long an answer may take before a frame counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// Frames taken from the ring in one go.
const BATCH: usize = 64;
/// Looks at an empty ring between two looks at the clock.
const SPINS: u32 = 256;

/// One end of a bare exchange.
pub struct Bare<'a> {
    link: &'a mut dyn Link,
    own: Mac,
    peer: Mac,
    ethertype: u16,
}

impl<'a> Bare<'a> {
    /// A bare exchange with `peer` over `link`, which it waits for by spinning.
    pub fn new(link: &'a mut dyn Link, peer: Mac, ethertype: u16) -> Self {
        Bare { own: link.info().mac, link, peer, ethertype }
    }

    /// Tells the memory node's worker to turn to echoes, and waits until it has.
    pub fn wake(&mut self) -> Result<(), MeasureError> {
        let echo = Echo { request_len: 60, reply_len: 60, replies: 1 };
        for _ in 0..40 {
            if self.once(echo)?.is_some() {
                // Leftovers of earlier exchanges.
                while self.link.receive(BATCH, &mut |_, _| {})? > 0 {}
                return Ok(());
            }
        }
        Err(MeasureError::NoEcho(self.peer))
    }

    /// One exchange: the time until all replies are there, or `None` if one was lost.
    #[inline]
    pub fn once(&mut self, echo: Echo) -> Result<Option<u64>, LinkError> {
        self.exchange(echo, &mut |_| {})
    }

    #[inline]
    fn exchange(&mut self, echo: Echo, on_reply: &mut impl FnMut(&[u8])) -> Result<Option<u64>, LinkError> {
        let start = Instant::now();
        echo.send(self.own, self.peer, self.ethertype, self.link.transmit());
        self.link.flush()?;
        let (mut left, mut spins) = (echo.replies, 0_u32);
        while left > 0 {
            // More replies than asked for are those of an earlier exchange that was given up.
            let received = self.link.receive(BATCH, &mut |frame, _| {
                if is_reply(frame) {
                    left = left.saturating_sub(1);
                    on_reply(frame);
                }
            })?;
            if received == 0 {
                spins += 1;
                if spins.is_multiple_of(SPINS) && start.elapsed() > LOST_AFTER {
                    return Ok(None);
                }
                std::hint::spin_loop();
            }
        }
        Ok(Some(start.elapsed().as_nanos() as u64))
    }

    /// One exchange whose replies are read, as who fetches a page has to: what they carry goes into `page`, one behind the
    /// other. The time until all of it is there, or `None` if a reply was lost.
    #[inline]
    pub fn fetch(&mut self, echo: Echo, page: &mut [u8]) -> Result<Option<u64>, LinkError> {
        let mut filled = 0;
        self.exchange(echo, &mut |frame| {
            let payload = frame.get(ECHO_BODY..).unwrap_or_default();
            let len = payload.len().min(page.len() - filled);
            page[filled..filled + len].copy_from_slice(&payload[..len]);
            filled += len;
        })
    }

    /// `count` exchanges, `depth` of them in flight, cycling through `shapes`. Returns frames answered and
    /// the time it took; frames lost are given up.
    pub fn pipelined(
        &mut self,
        shapes: &[Echo],
        count: u64,
        depth: u64,
    ) -> Result<(u64, Duration), LinkError> {
        let (mut sent, mut answered, mut spins) = (0_u64, 0_u64, 0_u32);
        let start = Instant::now();
        let mut last = start;
        while answered < count {
            while sent < count && sent.saturating_sub(answered) < depth {
                let shape = shapes[(sent % shapes.len() as u64) as usize];
                if !shape.send(self.own, self.peer, self.ethertype, self.link.transmit()) {
                    break;
                }
                sent += 1;
            }
            self.link.flush()?;
            let received =
                self.link.receive(BATCH, &mut |frame, _| answered += u64::from(is_reply(frame)))?;
            if received > 0 {
                spins = 0;
                continue;
            }
            spins += 1;
            if spins == 1 {
                last = Instant::now();
            } else if spins.is_multiple_of(SPINS) && last.elapsed() > LOST_AFTER {
                if sent >= count {
                    break;
                }
                // What is missing is lost: take it out of the window and go on.
                sent = answered;
            }
            std::hint::spin_loop();
        }
        Ok((answered, start.elapsed()))
    }
}

impl Target {
    /// One trial of single exchanges of `echo`, recorded in `samples`.
    pub fn echo_trial(&mut self, echo: Echo, count: u64, samples: &mut Samples) -> Result<(), MeasureError> {
        self.bare_trial(count, samples, |bare| bare.once(echo))
    }

    /// One trial of exchanges, made by `exchange` one at a time and recorded in `samples`.
    pub(super) fn bare_trial(
        &mut self,
        count: u64,
        samples: &mut Samples,
        mut exchange: impl FnMut(&mut Bare<'_>) -> Result<Option<u64>, LinkError>,
    ) -> Result<(), MeasureError> {
        let mut bare = Bare::new(self.port.link(), self.peer, self.ethertype);
        bare.wake()?;
        for _ in 0..count {
            match exchange(&mut bare)? {
                Some(ns) => samples.record_ns(ns),
                // What comes late must not answer for the next.
                None => bare.wake()?,
            }
        }
        Ok(())
    }

    /// One trial of pipelined exchanges. `payload` is the line data each shape stands for.
    pub fn echo_stream_trial(
        &mut self,
        shapes: &[(Echo, usize)],
        count: u64,
        depth: u64,
    ) -> Result<(u64, u64, Duration), MeasureError> {
        let mut bare = Bare::new(self.port.link(), self.peer, self.ethertype);
        bare.wake()?;
        let echoes: Vec<Echo> = shapes.iter().map(|s| s.0).collect();
        let (answered, took) = bare.pipelined(&echoes, count, depth)?;
        let payload: usize = shapes.iter().map(|s| s.1).sum();
        Ok((answered, answered * payload as u64 / shapes.len() as u64, took))
    }
}

/// A rate from a count, bytes and the time they took.
pub fn rate(operations: u64, bytes: u64, took: Duration, bounce_ns: Option<f64>) -> ThroughputTrial {
    let seconds = took.as_secs_f64().max(1e-9);
    ThroughputTrial { bounce_ns, ops_per_s: operations as f64 / seconds, bytes_per_s: bytes as f64 / seconds }
}
