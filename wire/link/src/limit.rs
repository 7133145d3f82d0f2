//! Rate limit: a link that sends no faster than a given wire, so that slow links can be tested on a fast
//! machine.
//!
//! [`RateLimit`] keeps the time at which all committed frames would have left a wire of its [`Rate`]. While
//! that time is further ahead than the length of the queue, [`slot`](Transmit::slot) lends no slot, as with a
//! full transmit ring. A committed frame is sent at once: the rate is limited, but single frames are not
//! delayed, and a burst as long as the queue passes at full speed. Receiving is not limited.

use std::time::Duration;

use super::{Link, LinkCounters, LinkError, OnFrame};
use crate::Clock;
use cxloe_net::pass_on;
use cxloe_net::rate::RatedWire;
pub use cxloe_net::rate::{Rate, RateError};
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

/// State of the rate limit: the modelled wire, the slot that is lent, and the number of slots refused.
struct Gate {
    line: RatedWire,
    queue: Duration,
    lent: Option<usize>,
    refused: u64,
    /// Set if the last slot was refused. Then `wait` ends at the time when the next slot can be lent.
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

/// Wraps a link and limits its transmit rate; see the [module](self).
pub struct RateLimit<L> {
    inner: L,
    gate: Gate,
}

impl<L: Link> RateLimit<L> {
    /// Limits `inner` to `rate`. Slots are refused while the frames on the wire would take longer than
    /// `queue`. With zero, a slot is lent only after the previous frame has left.
    pub fn new(inner: L, rate: Rate, queue: Duration) -> Self {
        let clock = Clock::new();
        Self::with_now(inner, rate, queue, move || clock.now())
    }

    /// [`RateLimit::new`] with the time read from `now`, for a simulation.
    pub fn with_now(inner: L, rate: Rate, queue: Duration, now: impl Fn() -> Time + Send + 'static) -> Self {
        let gate = Gate {
            line: RatedWire::new(rate),
            queue,
            lent: None,
            refused: 0,
            waiting: false,
            now: Box::new(now),
        };
        RateLimit { inner, gate }
    }

    /// Rate of the modelled wire, preambles and gaps included.
    pub fn rate(&self) -> Rate {
        self.gate.line.rate()
    }

    /// Earliest time, from `now` on, at which the rate permits the next slot.
    pub(crate) fn next_slot(&self, now: Time) -> Time {
        now + self.gate.line.backlog(now).saturating_sub(self.gate.queue)
    }

    /// Link below the limit, with its own counters.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

/// Transmit side for frames sent during `receive`, which are limited too.
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
    pass_on!(self => self.inner; info holds has_unsent flush readiness sleep_max reopened);

    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        let gate = &mut self.gate;
        self.inner
            .receive(budget, &mut |frame, transmit| on_frame(frame, &mut Answers { gate, inner: transmit }))
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    /// Ends early if a slot was refused and can be lent now.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let timeout = if self.gate.waiting {
            let now = (self.gate.now)();
            timeout.min(self.next_slot(now).since(now))
        } else {
            timeout
        };
        if timeout.is_zero() { Ok(()) } else { self.inner.wait(timeout) }
    }

    /// Counters of the link below. Slots refused because of the rate are added to [`LinkCounters::tx_full`].
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

    /// A sender that uses every slot must send at the rate, after a burst as long as the queue.
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
        // 476 + 24 bytes take 4 us at 1 Gbit/s: 250 frames in a millisecond, and 3 more that fill the queue
        // of 10 us.
        assert_eq!(first_burst, 3);
        assert!((250..=253).contains(&sent), "{sent}");
        assert_eq!(link.counters().tx_frames, sent);
        assert_eq!(link.counters().tx_full, 1_000);
    }

    /// Frames sent during `receive` must be limited too.
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
