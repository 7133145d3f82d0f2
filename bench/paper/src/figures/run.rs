//! One simulated run: a sender that always has data, the wire, the FIFO, and the return path of the PFC
//! frames.
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

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threshold in entries above which PFC frames are sent.
    pub threshold: u32,
    /// Rate of the controller at the start.
    pub initial: BitsPerSecond,
    pub length: Duration,
    /// Time from the start of the run after which the final rate is averaged.
    pub settled: Duration,
    /// Seed of the times between the reader's stalls.
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct Run {
    /// Rate of the controller when it first became stable after a PFC frame, in bits per second; `None` if no
    /// PFC frame slowed the controller down, or if it never became stable again.
    pub first: Option<f64>,
    /// Rate of arrivals between [`Plan::settled`] and the end of the run, in bits per second.
    pub last: f64,
    pub pfc: u64,
    /// Maximum number of entries in the FIFO.
    pub peak: usize,
    /// Changes of the controller's rate, the first at 0: the time of each, and the rate from then on in bits
    /// per second.
    pub rates: Vec<(Duration, BitsPerSecond)>,
}

impl Run {
    /// Simulates the link of `model` as planned. The same arguments give the same result on every machine.
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
    /// Times at which PFC frames in flight reach the controller, earliest first.
    feedback: VecDeque<Ps>,
    /// Time at which the wire becomes free for the next slot.
    wire_free: Ps,
    /// Time at which the token bucket permits the next frame.
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
        // The bucket has room for two frames. Its times are rounded to nanoseconds, which sometimes delays a
        // frame; the next frame is then sent that much earlier.
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

    /// Processes the next event: a PFC frame at the controller, the controller's timer, or a frame to send.
    /// Returns false at the end of the run.
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

    /// Sets the bucket's rate to the controller's. The time at which the bucket permits the next frame is
    /// then computed again.
    fn adopt(&mut self, now: Ps) {
        let rate = self.controller.rate();
        if self.rates.last().is_some_and(|(_, last)| *last != rate) {
            self.rates.push((now.floor(), rate));
            self.bucket.set_rate(rate, now.floor());
            self.ready = now;
        }
    }

    /// Sends a frame if the bucket permits one; the frame occupies the wire for one slot time.
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
        // The controller keeps the rate for 200 us and then raises it every 40 us, so it is 30 Gbit/s until
        // 240 us.
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
        // The stall starts at 100 us. The entry that exceeds the threshold arrives 51 slots of 9.04 ns later,
        // plus or minus one slot.
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
