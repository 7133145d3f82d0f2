//! One run: a sender with always something to send, the wire, the FIFO, and the way back of the PFC frames.
//!
//! ```text
//!   Controller --rate--> TokenBucket --> wire, a slot at a time --> Fifo --> reader
//!        ^                                                            |
//!        '------------------- PFC, feedback delay later --------------'
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use cxloe_cc::{BitsPerSecond, Controller, Phase, TokenBucket};

use super::fifo::Fifo;
use super::model::Model;
use super::time::Ps;

/// What a run is about.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// PFC frames are sent above this many entries.
    pub threshold: u32,
    /// The rate the controller starts at, in bits per second.
    pub initial: BitsPerSecond,
    /// How long the link runs.
    pub length: Duration,
    /// The final rate is averaged from here to the end.
    pub settled: Duration,
    /// Decides when the reader stalls.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Run {
    /// The controller's rate when it first became stable after a PFC frame, in bits per second; none if it never
    /// had to slow down, or never recovered.
    pub first: Option<f64>,
    /// Bits of slots that arrived between [`Plan::settled`] and the end, per second.
    pub last: f64,
    /// PFC frames sent.
    pub pfc: u64,
    /// The most entries in the FIFO at once.
    pub peak: usize,
    /// The controller's rate from each time on, the first one from 0.
    pub rates: Vec<(Duration, BitsPerSecond)>,
}

impl Run {
    /// Runs the link of `model` as planned. The same arguments give the same result everywhere.
    pub fn new(model: &Model, plan: &Plan) -> Run {
        let mut link = Simulation::new(model, plan);
        while link.step() {}
        link.finish()
    }
}

struct Simulation<'m> {
    model: &'m Model,
    plan: Plan,
    end: Ps,
    settled: Ps,
    controller: Controller,
    bucket: TokenBucket,
    fifo: Fifo,
    /// When PFC frames under way reach the controller.
    feedback: VecDeque<Ps>,
    /// When the wire can take the next slot.
    wire_free: Ps,
    /// When the bucket may let the next frame go.
    ready: Ps,
    slot: Ps,
    congested: bool,
    first: Option<f64>,
    settled_slots: u64,
    pfc: u64,
    rates: Vec<(Duration, BitsPerSecond)>,
}

impl<'m> Simulation<'m> {
    fn new(model: &'m Model, plan: &Plan) -> Simulation<'m> {
        let controller = Controller::starting_at(model.controller(), plan.initial, Duration::ZERO);
        // Room for two frames: whole nanoseconds make one late now and then, and the next makes up for it.
        let bucket = TokenBucket::new(controller.rate(), 2 * model.slot_bytes, Duration::ZERO);
        Simulation {
            model,
            plan: *plan,
            end: plan.length.into(),
            settled: plan.settled.into(),
            rates: vec![(Duration::ZERO, controller.rate())],
            controller,
            bucket,
            fifo: Fifo::new(model, plan.threshold, plan.seed),
            feedback: VecDeque::new(),
            wire_free: Ps::ZERO,
            ready: Ps::ZERO,
            slot: model.slot(),
            congested: false,
            first: None,
            settled_slots: 0,
            pfc: 0,
        }
    }

    /// Does what comes next; false at the end.
    fn step(&mut self) -> bool {
        let send = self.ready.max(self.wire_free);
        let heard = self.feedback.front().copied().unwrap_or(Ps::NEVER);
        let timer = Ps::from(self.controller.deadline());
        let now = send.min(heard).min(timer);
        if now >= self.end {
            return false;
        }
        if now == heard {
            self.feedback.pop_front();
            self.congested |= self.controller.on_pause(now.floor());
            self.adopt(now);
        } else if now == timer {
            self.controller.poll(now.floor());
            if self.congested && self.first.is_none() && self.controller.phase() == Phase::Stable {
                self.first = Some(self.controller.rate() as f64);
            }
            self.adopt(now);
        } else {
            self.send(now);
        }
        true
    }

    /// Changes the bucket's rate to the controller's, and asks again.
    fn adopt(&mut self, now: Ps) {
        let rate = self.controller.rate();
        if self.rates.last().is_some_and(|(_, last)| *last != rate) {
            self.rates.push((now.floor(), rate));
            self.bucket.set_rate(rate, now.floor());
            self.ready = now;
        }
    }

    /// Lets a frame go, if the bucket agrees. Its slot has passed the wire a slot's time later.
    fn send(&mut self, now: Ps) {
        match self.bucket.take(self.model.slot_bytes, now.floor()) {
            Err(again) => self.ready = again.into(),
            Ok(()) => {
                self.wire_free = now + self.slot;
                let arrived = self.wire_free;
                self.settled_slots += u64::from(arrived > self.settled && arrived <= self.end);
                if self.fifo.push(arrived) {
                    self.pfc += 1;
                    self.feedback.push_back(arrived + self.model.feedback.into());
                }
            }
        }
    }

    fn finish(self) -> Run {
        let bits = (self.settled_slots * self.model.slot_bytes * 8) as f64;
        Run {
            first: self.first,
            last: bits / (self.plan.length - self.plan.settled).as_secs_f64(),
            pfc: self.pfc,
            peak: self.fifo.peak(),
            rates: self.rates,
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cc::GBIT;

    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn plan(threshold: u32, initial: BitsPerSecond) -> Plan {
        Plan { threshold, initial, length: 1000 * US, settled: 100 * US, seed: 3 }
    }

    #[test]
    fn the_wire_is_full_at_the_links_rate() {
        let run = Run::new(&Model::default(), &plan(512, 100 * GBIT));
        assert!((99.95e9..100.05e9).contains(&run.last), "{}", run.last);
        assert_eq!((run.pfc, run.first, run.rates.len()), (0, None, 1));
    }

    #[test]
    fn below_it_the_bucket_sets_the_pace() {
        // 200 us of rest, and an increment each 40 us after it: 30 Gbit/s until 240 us.
        let plan = Plan { length: 240 * US, ..plan(512, 30 * GBIT) };
        let run = Run::new(&Model::default(), &plan);
        assert!((29.9e9..30.1e9).contains(&run.last), "{}", run.last);
        assert_eq!(run.rates, [(Duration::ZERO, 30 * GBIT)]);
    }

    #[test]
    fn a_pfc_frame_halves_the_rate_one_feedback_later() {
        let us = Duration::from_micros;
        let model = Model {
            window: 0,
            stall: us(1),
            stall_gap_min: us(100),
            stall_gap_max: us(100),
            repeat: us(50),
            ..Model::default()
        };
        // The stall starts at 100 us; the entry that is one too many comes 51 slots of 9.04 ns later or one sooner.
        let run = Run::new(&model, &plan(50, 100 * GBIT));
        let (at, rate) = run.rates[1];
        assert_eq!(rate, 50 * GBIT);
        let expected = Duration::from_nanos(100_000 + 1_000);
        let late = at - expected;
        assert!((450..480).contains(&late.as_nanos()), "{late:?}");
        assert!(run.pfc >= 1 && run.peak > 50);
    }

    #[test]
    fn the_same_plan_gives_the_same_run_and_another_seed_another() {
        let run = |seed| Run::new(&Model::default(), &Plan { seed, ..plan(50, 100 * GBIT) });
        assert_eq!(run(1).rates, run(1).rates);
        assert_ne!(run(1).rates, run(2).rates);
    }
}
