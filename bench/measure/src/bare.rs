//! Lower limits of latency: exchanges of frames over the port's own link without a session, one at a time and
//! with a full window.

use std::time::{Duration, Instant};

use cxloe_link::echo::{ECHO_BODY, Echo, is_reply};
use cxloe_link::{Link, LinkError};
use cxloe_wire::frame::Mac;

use super::{MeasureError, MeasuredRegion};
use crate::report::{Samples, ThroughputTrial};

/// Time after which an unanswered frame counts as lost: far above a round trip, even with a preempted peer.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// Maximum number of frames taken from the receive ring at once.
const BATCH: usize = 64;
/// Number of polls of an empty ring between two readings of the clock, which costs more than a poll.
const SPINS: u32 = 256;

/// Compute node's end of frame exchanges with the echo loop of a memory node.
pub struct Bare<'a> {
    link: &'a mut dyn Link,
    own: Mac,
    peer: Mac,
    ethertype: u16,
}

impl<'a> Bare<'a> {
    /// Prepares exchanges with `peer` over `link`, which is polled without sleeping.
    pub fn new(link: &'a mut dyn Link, peer: Mac, ethertype: u16) -> Self {
        Bare { own: link.info().mac, link, peer, ethertype }
    }

    /// Sends requests until the memory node's worker has entered its echo loop and answers; fails after 40
    /// lost requests.
    pub fn wake(&mut self) -> Result<(), MeasureError> {
        let echo = Echo { request_len: 60, reply_len: 60, replies: 1 };
        // The worker enters the loop at the first request, which may itself stay without an answer.
        for _ in 0..40 {
            if self.once(echo)?.is_some() {
                // Replies to the earlier, lost requests may still arrive; a later exchange must not count
                // them.
                while self.link.receive(BATCH, &mut |_, _| {})? > 0 {}
                return Ok(());
            }
        }
        Err(MeasureError::NoEcho(self.peer))
    }

    /// Makes one exchange and returns the time in nanoseconds until all replies have arrived, or `None` if
    /// one was lost.
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
            // Replies beyond the expected number belong to an earlier exchange that timed out.
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

    /// Makes one exchange and copies the payloads of the replies into `page`, one after the other, as a page
    /// fetch does. Returns the time in nanoseconds until the page is complete, or `None` if a reply was lost.
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

    /// Makes `count` exchanges with `depth` in flight, cycling through `shapes`. Returns the number of
    /// answered frames and the time for all of them. A lost frame is replaced by another one, except at the
    /// end.
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
                // The unanswered frames are lost. Others take their place in the window, so that the stream
                // continues.
                sent = answered;
            }
            std::hint::spin_loop();
        }
        Ok((answered, start.elapsed()))
    }
}

impl MeasuredRegion {
    /// Makes one trial of `count` single exchanges of `echo` and records each latency in `samples`.
    pub(crate) fn echo_trial(
        &mut self,
        echo: Echo,
        count: u64,
        samples: &mut Samples,
    ) -> Result<(), MeasureError> {
        self.bare_trial(count, samples, |bare| bare.once(echo))
    }

    /// Makes one trial of `count` calls of `exchange`, one at a time, and records the latencies in `samples`.
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
                // A late reply would count for the next exchange. `wake` discards such replies before its
                // return.
                None => bare.wake()?,
            }
        }
        Ok(())
    }

    /// Makes one trial of pipelined exchanges. Each shape comes with the number of line data bytes that it
    /// represents. Returns the numbers of answered frames and of line data bytes, and the time.
    pub(crate) fn echo_stream_trial(
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

/// Returns the rates of `operations` and `bytes` over the time `took`.
pub fn rate(operations: u64, bytes: u64, took: Duration, bounce_ns: Option<f64>) -> ThroughputTrial {
    let seconds = took.as_secs_f64().max(1e-9);
    ThroughputTrial { bounce_ns, ops_per_s: operations as f64 / seconds, bytes_per_s: bytes as f64 / seconds }
}
