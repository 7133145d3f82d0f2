//! Fault injector: a link that behaves like a bad network, in a repeatable way.
//!
//! [`FaultInjector`] wraps any link and loses, duplicates, delays, reorders and damages frames by its
//! [`FaultPlan`]: frames sent when they are committed, frames received before they are passed on. Each
//! direction has its own sequence of [`Impairments`], drawn from the plan's seed. So the same frames in the same order
//! get the same impairments in every run.
//!
//! A direction with faults costs a copy of each frame; without faults, frames are written and read in the slots of the
//! link below. Frames held back are kept in buffers allocated at the start, 64 for each direction. If all are in use, a
//! frame that should be held back passes ([`FaultCounters::forgone`]). A held frame is sent when enough other frames
//! have passed, or when its hold time is over. Every [`receive`](Link::receive), [`flush`](Link::flush) and
//! [`wait`](Link::wait) checks both conditions; a caller that sleeps on [`readiness`](Link::readiness) instead gets the
//! frame with its next call.

mod delay_queue;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use self::delay_queue::DelayQueue;
use super::{Link, LinkCounters, LinkError, OnFrame};
use crate::Clock;
pub use cxloe_net::impairment::{Burst, FaultCounters, Faults, FaultsError};
use cxloe_net::impairment::{Impairments, pairs};
use cxloe_net::pass_on;
use cxloe_wire::Transmit;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

/// Maximum number of frames held back in each direction.
const DELAYED_MAX: usize = 64;

/// Faults of each direction, and the seed of their random numbers.
///
/// Written like [`Faults`], with two more names: `seed=7`, and `dir=tx`, `dir=rx` or `dir=both`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Faults of the frames that this end sends.
    pub tx: Faults,
    /// Faults of the frames that this end receives.
    pub rx: Faults,
    /// Seed from which the impairments of both directions are drawn.
    pub seed: u64,
}

impl FromStr for FaultPlan {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Faults::NONE;
        let mut plan = FaultPlan::default();
        let (mut tx, mut rx) = (true, true);
        for (name, value) in pairs(text) {
            let value = value?;
            let wrong = |why| FaultsError::Value { name: name.to_owned(), value: value.to_owned(), why };
            match name {
                "seed" => {
                    plan.seed = value.parse().map_err(|_| wrong("write a whole number, as in seed=7"))?
                }
                "dir" => {
                    (tx, rx) = match value {
                        "both" => (true, true),
                        "tx" => (true, false),
                        "rx" => (false, true),
                        _ => return Err(wrong("write both, tx or rx")),
                    }
                }
                _ if faults.set(name, value)? => {}
                _ => return Err(FaultsError::Name(name.to_owned())),
            }
        }
        if tx {
            plan.tx = faults;
        }
        if rx {
            plan.rx = faults;
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultPlan { tx, rx, seed } = self;
        match (tx.is_none(), rx.is_none()) {
            _ if tx == rx => write!(f, "{tx},seed={seed},dir=both"),
            (_, true) => write!(f, "{tx},seed={seed},dir=tx"),
            (true, _) => write!(f, "{rx},seed={seed},dir=rx"),
            _ => write!(f, "tx: {tx}; rx: {rx}; seed={seed}"),
        }
    }
}

/// Faults of one direction, and the frames that it holds back.
struct Side {
    /// `None` if this direction has no faults.
    impairments: Option<Impairments>,
    passed: u64,
    delayed: DelayQueue,
    counters: FaultCounters,
}

impl Side {
    fn new(faults: Faults, random: Random, frame_max: usize) -> Self {
        let impairments = (!faults.is_none()).then(|| Impairments::new(faults, random));
        let places = if impairments.is_some() { DELAYED_MAX } else { 0 };
        Side {
            impairments,
            passed: 0,
            delayed: DelayQueue::new(places, frame_max),
            counters: FaultCounters::default(),
        }
    }

    /// Draws the impairment of `frame`, applies damage if that is drawn, and returns what to do with the
    /// frame.
    fn judge(&mut self, frame: &mut [u8], now: &dyn Fn() -> Time) -> Verdict {
        let Some(impairments) = &mut self.impairments else { return Verdict::Pass { twice: false } };
        let impairment = impairments.next(frame.len());
        self.passed += 1;
        self.counters.count(&impairment);
        if impairment.lost.is_some() {
            return Verdict::Gone;
        }
        if let Some(damage) = impairment.damage {
            damage.apply(frame);
        }
        if impairment.delayed {
            let (after, deadline) =
                (self.passed + u64::from(impairments.faults().gap), now() + impairments.faults().hold);
            if self.delayed.put(frame, after, deadline) {
                self.counters.reordered += 1;
                return Verdict::Gone;
            }
            self.counters.forgone += 1;
        }
        Verdict::Pass { twice: impairment.duplicated }
    }

    /// Adds a copy of `frame` to the held frames, to be sent as soon as possible, if a buffer is free.
    fn double(&mut self, frame: &[u8]) {
        match self.delayed.put(frame, 0, Time::ZERO) {
            true => self.counters.duplicated += 1,
            false => self.counters.forgone += 1,
        }
    }
}

enum Verdict {
    /// The frame was lost or is held back.
    Gone,
    Pass {
        twice: bool,
    },
}

/// Transmit direction: frames are written into `staged`, impaired when committed, and copied to the link
/// below.
struct Sender {
    side: Side,
    staged: Box<[u8]>,
    lent: Option<usize>,
    now: Box<dyn Fn() -> Time + Send>,
}

impl Sender {
    fn slot<'a>(&'a mut self, inner: &'a mut dyn Transmit, len: usize) -> Option<&'a mut [u8]> {
        if self.side.impairments.is_none() {
            return inner.slot(len);
        }
        // A slot is lent only if the link below has one too, so that the frame can be sent when it is committed.
        inner.slot(len)?;
        let slot = self.staged.get_mut(..len)?;
        self.lent = Some(len);
        Some(slot)
    }

    fn commit(&mut self, inner: &mut dyn Transmit) {
        if self.side.impairments.is_none() {
            return inner.commit();
        }
        let Some(len) = self.lent.take() else { return };
        let frame = &mut self.staged[..len];
        if let Verdict::Pass { twice } = self.side.judge(frame, &self.now) {
            if !send(inner, frame) {
                // A flush since the slot was lent has used the slot below for a held frame, so this frame waits for the
                // next one.
                let _ = self.side.delayed.put(frame, 0, Time::ZERO);
            }
            if twice {
                self.side.double(frame);
            }
        }
        self.release(inner);
    }

    /// Sends frames that are due, as many as there are slots for. Returns whether any was sent.
    fn release(&mut self, inner: &mut dyn Transmit) -> bool {
        let mut any = false;
        while let Some(mut held) = self.side.delayed.take_due(self.side.passed, &self.now) {
            if !send(inner, held.frame()) {
                self.side.delayed.put_back(held);
                break;
            }
            self.side.delayed.recycle(held);
            any = true;
        }
        any
    }
}

fn send(inner: &mut dyn Transmit, frame: &[u8]) -> bool {
    let Some(slot) = inner.slot(frame.len()) else { return false };
    slot.copy_from_slice(frame);
    inner.commit();
    true
}

/// Transmit side for frames sent during `receive`, which are impaired too.
struct Answers<'a> {
    sender: &'a mut Sender,
    inner: &'a mut dyn Transmit,
}

impl Transmit for Answers<'_> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sender.slot(self.inner, len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.steer(queue);
    }

    fn commit(&mut self) {
        self.sender.commit(self.inner);
    }
}

/// Wraps a link and impairs its frames; see the [module](self).
pub struct FaultInjector<L> {
    inner: L,
    sender: Sender,
    receiver: Side,
}

impl<L: Link> FaultInjector<L> {
    /// Wraps `inner` with the faults of `plan`. Held frames are timed by the machine's clock.
    pub fn new(inner: L, plan: &FaultPlan) -> Self {
        let clock = Clock::new();
        Self::with_now(inner, plan, move || clock.now())
    }

    /// [`FaultInjector::new`] with the time read from `now`, for a simulation.
    pub fn with_now(inner: L, plan: &FaultPlan, now: impl Fn() -> Time + Send + 'static) -> Self {
        let frame_max = inner.info().max_frame;
        let sender = Sender {
            side: Side::new(plan.tx, Random::part(plan.seed, 1), frame_max),
            staged: vec![0; frame_max].into_boxed_slice(),
            lent: None,
            now: Box::new(now),
        };
        let receiver = Side::new(plan.rx, Random::part(plan.seed, 2), frame_max);
        FaultInjector { inner, sender, receiver }
    }

    #[cfg(test)]
    pub(crate) fn tx_faults(&self) -> FaultCounters {
        self.sender.side.counters
    }

    #[cfg(test)]
    pub(crate) fn rx_faults(&self) -> FaultCounters {
        self.receiver.counters
    }

    /// Link below the injector, with its own counters.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Sends held frames that are due, and flushes the link if there were any.
    fn release(&mut self) -> Result<(), LinkError> {
        if !self.sender.side.delayed.is_empty() && self.sender.release(self.inner.transmit()) {
            self.inner.flush()?;
        }
        Ok(())
    }
}

impl<L: Link> Transmit for FaultInjector<L> {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sender.slot(self.inner.transmit(), len)
    }

    fn steer(&mut self, queue: u8) {
        self.inner.transmit().steer(queue);
    }

    fn commit(&mut self) {
        self.sender.commit(self.inner.transmit());
    }
}

/// Passes the due frames of `side` to the receiver, until `handed` reaches `limit`.
fn hand_over_due(
    side: &mut Side,
    answers: &mut Answers<'_>,
    on_frame: &mut OnFrame<'_>,
    handed: &mut usize,
    limit: usize,
) {
    while *handed < limit {
        let Some(mut held) = side.delayed.take_due(side.passed, &answers.sender.now) else { break };
        on_frame(held.frame(), answers);
        side.delayed.recycle(held);
        *handed += 1;
    }
}

impl<L: Link> Link for FaultInjector<L> {
    pass_on!(self => self.inner; info holds has_unsent readiness sleep_max reopened);

    /// Takes at most `budget` frames from the link below. Fewer are passed on if some are lost or held back.
    fn receive(&mut self, budget: usize, on_frame: &mut OnFrame<'_>) -> Result<usize, LinkError> {
        self.release()?;
        let FaultInjector { inner, sender, receiver: side } = self;
        if side.impairments.is_none() {
            if sender.side.impairments.is_none() {
                return inner.receive(budget, on_frame);
            }
            return inner.receive(budget, &mut |frame, transmit| {
                on_frame(frame, &mut Answers { sender, inner: transmit });
            });
        }
        let (mut handed, mut taken) = (0, 0);
        while handed < budget && taken < budget {
            let mut answers = Answers { sender, inner: inner.transmit() };
            hand_over_due(side, &mut answers, on_frame, &mut handed, budget);
            // Half of the remaining budget is for new frames, the other half for duplicates and held frames.
            let ask = (budget - handed).div_ceil(2);
            let mut seen = 0;
            let got = inner.receive(ask, &mut |frame, transmit| {
                let mut answers = Answers { sender, inner: transmit };
                seen += 1;
                if let Verdict::Pass { twice } = side.judge(frame, &answers.sender.now) {
                    // The frame is copied before it is passed on, because the receiver may decrypt it in place.
                    if twice {
                        side.double(frame);
                    }
                    on_frame(frame, &mut answers);
                    handed += 1;
                }
                hand_over_due(side, &mut answers, on_frame, &mut handed, budget - (ask - seen));
            })?;
            taken += got;
            if got < ask {
                let mut answers = Answers { sender, inner: inner.transmit() };
                hand_over_due(side, &mut answers, on_frame, &mut handed, budget);
                break;
            }
        }
        Ok(handed)
    }

    fn transmit(&mut self) -> &mut dyn Transmit {
        self
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if !self.sender.side.delayed.is_empty() {
            self.sender.release(self.inner.transmit());
        }
        self.inner.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let due = |side: &Side| side.delayed.next_deadline(side.passed);
        // Frames that are due but found no slot are tried again after a short sleep, without spinning.
        let send = due(&self.sender.side).map(|at| at.since((self.sender.now)()).max(RING_FULL_SLEEP));
        let receive = due(&self.receiver).map(|at| at.since((self.sender.now)()));
        let timeout = [send, receive].into_iter().flatten().fold(timeout, Duration::min);
        if !timeout.is_zero() {
            self.inner.wait(timeout)?;
        }
        self.release()
    }

    /// Counters of the link below. They include received frames before the faults, and sent frames after the
    /// faults.
    fn counters(&mut self) -> LinkCounters {
        self.inner.counters()
    }
}

/// Sleep of [`Link::wait`] when a held frame is due but the ring below is full.
const RING_FULL_SLEEP: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
