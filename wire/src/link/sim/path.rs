//! A path: what lies between two ports, in one direction.

use std::time::Duration;

use super::super::fate::{Fate, Fates, FaultCounters, Faults};
use super::super::random::Random;
use crate::frame::Mac;
use crate::time::Time;

/// Frames a path can hold back at once.
const HELD_MAX: usize = 64;

/// How frames of one direction travel. Bandwidth belongs to ports ([`PortConfig`](super::PortConfig)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// From the last bit sent to the frame's arrival.
    pub delay: Duration,
    /// Up to this much is added to each frame's delay, evenly distributed. Jitter does not reorder: who is
    /// late holds up those behind.
    pub jitter: Duration,
    /// What goes wrong. [`Faults::gap`] and [`Faults::hold`] count and time what is held back, as on a real
    /// link.
    pub faults: Faults,
}

/// A perfect path of 500 ns: a few metres of cable and a fast switch.
impl Default for Path {
    fn default() -> Self {
        Path { delay: Duration::from_nanos(500), jitter: Duration::ZERO, faults: Faults::NONE }
    }
}

/// A frame held back.
struct Held {
    frame: Vec<u8>,
    after: u64,
    deadline: Time,
}

/// A path in use.
pub(super) struct PathState {
    pub config: Path,
    /// Set for this pair, not by default.
    pub own: bool,
    pub cut: bool,
    pub counters: FaultCounters,
    fates: Fates,
    jitter: Random,
    passed: u64,
    last_arrival: Time,
    held: Vec<Held>,
}

impl PathState {
    /// A path from `from` to `to` in the network of `seed`.
    pub fn new(config: Path, seed: u64, from: Mac, to: Mac) -> Self {
        let pair = Random::part(seed, from.to_u64()).bits() ^ to.to_u64();
        PathState {
            config,
            own: false,
            cut: false,
            counters: FaultCounters::default(),
            fates: Fates::new(config.faults, Random::part(pair, 1)),
            jitter: Random::part(pair, 2),
            passed: 0,
            last_arrival: Time::ZERO,
            held: Vec::new(),
        }
    }

    pub fn set(&mut self, config: Path) {
        self.config = config;
        self.fates.set_faults(config.faults);
    }

    /// The fate of the next frame, and when it arrives if its last bit leaves at `sent`.
    pub fn next(&mut self, len: usize, sent: Time) -> (Fate, Time) {
        let fate = self.fates.next(len);
        self.counters.count(&fate);
        self.passed += 1;
        let jitter = self.jitter.below(self.config.jitter.as_nanos() as u64 + 1);
        let arrival = sent + self.config.delay + Duration::from_nanos(jitter);
        if fate.lost.is_none() && !fate.held {
            self.last_arrival = self.last_arrival.max(arrival);
            return (fate, self.last_arrival);
        }
        (fate, arrival)
    }

    pub fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX
    }

    /// Holds a frame back that would have arrived at `arrival`; returns until when at the latest.
    pub fn hold(&mut self, frame: Vec<u8>, arrival: Time) -> Time {
        let Faults { gap, hold, .. } = self.config.faults;
        let deadline = arrival + hold;
        self.held.push(Held { frame, after: self.passed + u64::from(gap), deadline });
        self.counters.reordered += 1;
        deadline
    }

    /// Takes a frame that enough others have passed, or whose time is over at `now`.
    pub fn release(&mut self, now: Time) -> Option<Vec<u8>> {
        let due = self.held.iter().position(|h| h.after <= self.passed || h.deadline <= now)?;
        Some(self.held.remove(due).frame)
    }

    /// The arrival of a frame that ends its being held back at `at`, behind those that overtook it.
    pub fn rejoin(&mut self, at: Time) -> Time {
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}
