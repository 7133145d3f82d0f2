//! The rate limit: a link that sends no faster than a given wire, so that a test on a fast machine meets a
//! slow one.
//!
//! [`RateLimit`] keeps the time at which everything committed would have left a wire of its [`Rate`]. While
//! that lies further ahead than the queue it allows, [`slot`](Transmit::slot) lends nothing and the caller
//! holds back, as with a full transmit ring. What is let through leaves at once: the limit bounds the rate,
//! it does not delay single frames, and a burst as long as the queue passes undiminished. Receiving is not
//! limited.

use std::time::Duration;

use super::link::pass_on;
use super::rate::Line;
pub use super::rate::{Rate, RateError};
use super::{Link, LinkCounters, LinkError, OnFrame};
use crate::Clock;
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

/// The wire imitated, and what has been refused for its sake.
struct Gate {
    line: Line,
    queue: Duration,
    lent: Option<usize>,
    refused: u64,
    /// The last slot asked for was refused: `wait` ends when the next one can be had.
    waiting: bool,
    now: Box<dyn Fn() -> Time + Send>,
}

impl Gate {
    fn slot<'a>(&mut self, inner: &'a mut dyn Transmit, len: usize) -> Option<&'a mut [u8]> {
        self.waiting = self.line.backlog((self.now)()) > self.queue;
        if self.waiting {
            self.refused += 1;
            return None;
        }
        let slot = inner.slot(len)?;
        self.lent = Some(len);
        Some(slot)
    }

    fn commit(&mut self, inner: &mut dyn Transmit) {
        if let Some(len) = self.lent.take() {
            self.line.carry(len, (self.now)());
            inner.commit();
        }
    }
}

/// A link whose frames leave at a bounded rate, around any other link. See the [module](self).
pub struct RateLimit<L> {
    inner: L,
    gate: Gate,
}

impl<L: Link> RateLimit<L> {
    /// Bounds what leaves `inner` to `rate`, with a queue of `queue` (time at that rate) before
    /// back-pressure. Zero lends the next slot only when the frame before has left.
    pub fn new(inner: L, rate: Rate, queue: Duration) -> Self {
        let clock = Clock::new();
        Self::with_now(inner, rate, queue, move || clock.now())
    }

    /// As [`RateLimit::new`], with time read from `now`, which a simulation gives.
    pub fn with_now(inner: L, rate: Rate, queue: Duration, now: impl Fn() -> Time + Send + 'static) -> Self {
        let gate =
            Gate { line: Line::new(rate), queue, lent: None, refused: 0, waiting: false, now: Box::new(now) };
        RateLimit { inner, gate }
    }

    /// The rate.
    pub fn rate(&self) -> Rate {
        self.gate.line.rate()
    }

    /// When the next slot can be had, as far as the rate is concerned: at `now` or later.
    pub fn next_slot(&self, now: Time) -> Time {
        now + self.gate.line.backlog(now).saturating_sub(self.gate.queue)
    }

    /// The link beneath.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

/// The transmit side that frames answered from within `receive` go through.
struct Answers<'a> {
    gate: &'a mut Gate,
    inner: &'a mut dyn Transmit,
}

impl Transmit for Answers<'_> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.gate.slot(self.inner, len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.steer(queue);
    }

    fn commit(&mut self) {
        self.gate.commit(self.inner);
    }
}

impl<L: Link> Transmit for RateLimit<L> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.gate.slot(self.inner.transmit(), len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.transmit().steer(queue);
    }

    fn commit(&mut self) {
        self.gate.commit(self.inner.transmit());
    }
}

impl<L: Link> Link for RateLimit<L> {
    pass_on!(self => self.inner; info holds has_unsent flush readiness reopened);

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let gate = &mut self.gate;
        self.inner
            .receive(budget, &mut |frame, transmit| on_frame(frame, &mut Answers { gate, inner: transmit }))
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    /// Ends early when a slot was refused and can be had again.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let timeout = if self.gate.waiting {
            let now = (self.gate.now)();
            timeout.min(self.next_slot(now).since(now))
        } else {
            timeout
        };
        if timeout.is_zero() { Ok(()) } else { self.inner.wait(timeout) }
    }

    /// As the link beneath, with the slots refused for the rate among [`LinkCounters::tx_full`].
    fn counters(&mut self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.tx_full += self.gate.refused;
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{PortConfig, SimNetwork};
    use cxloe_wire::frame::Mac;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn frame(slot: &mut [u8]) {
        slot.fill(0);
        slot[..6].copy_from_slice(&B.0);
        slot[6..12].copy_from_slice(&A.0);
    }

    /// A sender that takes every slot it gets, for a millisecond of virtual time.
    #[test]
    fn bounds_the_rate_and_the_burst() {
        let net = SimNetwork::new(1);
        let _b = net.attach(B, PortConfig { fifo_capacity: 100_000, ..PortConfig::default() }).unwrap();
        let inner = net.attach(A, PortConfig::default()).unwrap();
        let clock = net.clone();
        let rate = Rate::gbit_per_s(1);
        let queue = Duration::from_micros(10);
        let mut link = RateLimit::with_now(inner, rate, queue, move || clock.now());
        let mut sent = 0u64;
        let mut first_burst = 0;
        for us in 0..1_000 {
            net.step(Time(us * 1_000));
            while let Some(slot) = link.transmit().slot(476) {
                frame(slot);
                link.transmit().commit();
                sent += 1;
            }
            link.flush().unwrap();
            if us == 0 {
                first_burst = sent;
                assert!(link.next_slot(Time(0)) > Time(0));
            }
        }
        // 476 + 24 bytes are 4 us at 1 Gbit/s: 250 in a millisecond, and the queue's 10 us ahead.
        assert_eq!(first_burst, 3);
        assert!((250..=253).contains(&sent), "{sent}");
        assert_eq!(link.counters().tx_frames, sent);
        assert_eq!(link.counters().tx_full, 1_000);
    }

    /// Answers written while receiving are bounded as well.
    #[test]
    fn bounds_answers() {
        let net = SimNetwork::new(1);
        let mut b = net.attach(B, PortConfig::default()).unwrap();
        let inner = net.attach(A, PortConfig::default()).unwrap();
        let clock = net.clone();
        let mut link = RateLimit::with_now(inner, Rate::gbit_per_s(1), Duration::ZERO, move || clock.now());
        for _ in 0..10 {
            let slot = b.transmit().slot(60).unwrap();
            slot.fill(0);
            slot[..6].copy_from_slice(&A.0);
            b.transmit().commit();
        }
        b.flush().unwrap();
        net.step(Time(1_000_000));
        let mut answered = 0;
        let received = link
            .receive(64, &mut |_, transmit| {
                if let Some(slot) = transmit.slot(60) {
                    frame(slot);
                    transmit.commit();
                    answered += 1;
                }
            })
            .unwrap();
        assert_eq!((received, answered), (10, 1));
    }
}
