//! A path: what lies between two ports, in one direction.

use std::time::Duration;

use super::super::impairment::{FaultCounters, Faults, Impairment, Impairments};
use cxloe_wire::frame::Mac;
use cxloe_wire::random::{Probability, Random};
use cxloe_wire::time::Time;

/// Frames a path can hold back at once.
const DELAYED_MAX: usize = 64;
/// Copies a path can keep to deliver them late.
const LATE_MAX: usize = 256;
/// A late copy comes when this many frames have passed, a turn of the 16-bit sequence numbers, give or take
/// [`LATE_SPREAD`].
const LATE_AFTER: u64 = 1 << 16;
/// By how many frames a late copy may miss the whole turn, so that it meets numbers just answered, just
/// expected, and not yet sent.
const LATE_SPREAD: u64 = 600;

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
    /// That a copy of a frame is kept and delivered about 65 536 frames later, when 16-bit sequence numbers have
    /// turned over: by then the frame it was a copy of is long answered.
    pub late: Probability,
}

/// A perfect path of 500 ns: a few metres of cable and a fast switch.
impl Default for Path {
    fn default() -> Self {
        Path {
            delay: Duration::from_nanos(500),
            jitter: Duration::ZERO,
            faults: Faults::NONE,
            late: Probability::NEVER,
        }
    }
}

/// A frame held back.
struct Delayed {
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
    impairments: Impairments,
    jitter: Random,
    passed: u64,
    last_arrival: Time,
    delayed: Vec<Delayed>,
    lateness: Random,
    /// Copies kept, and after how many frames each is due.
    late: Vec<(u64, Vec<u8>)>,
    /// The least of those numbers.
    late_due: u64,
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
            impairments: Impairments::new(config.faults, Random::part(pair, 1)),
            jitter: Random::part(pair, 2),
            passed: 0,
            last_arrival: Time::ZERO,
            delayed: Vec::new(),
            lateness: Random::part(pair, 3),
            late: Vec::new(),
            late_due: u64::MAX,
        }
    }

    pub fn set(&mut self, config: Path) {
        self.config = config;
        self.impairments.set_faults(config.faults);
    }

    /// The impairment of the next frame, and when it arrives if its last bit leaves at `sent`.
    pub fn next(&mut self, len: usize, sent: Time) -> (Impairment, Time) {
        let impairment = self.impairments.next(len);
        self.counters.count(&impairment);
        self.passed += 1;
        let jitter = self.jitter.below(self.config.jitter.as_nanos() as u64 + 1);
        let arrival = sent + self.config.delay + Duration::from_nanos(jitter);
        if impairment.lost.is_none() && !impairment.delayed {
            self.last_arrival = self.last_arrival.max(arrival);
            return (impairment, self.last_arrival);
        }
        (impairment, arrival)
    }

    /// Whether a copy of the present frame is to be kept for later.
    #[inline]
    pub fn wants_late_copy(&mut self) -> bool {
        self.config.late > Probability::NEVER
            && self.lateness.chance(self.config.late)
            && self.late.len() < LATE_MAX
    }

    /// Keeps a copy of the present frame.
    pub fn keep_late(&mut self, copy: Vec<u8>) {
        let due = self.passed + LATE_AFTER - LATE_SPREAD + self.lateness.below(2 * LATE_SPREAD);
        self.late.push((due, copy));
        self.late_due = self.late_due.min(due);
    }

    /// Takes a copy whose time has come.
    #[inline]
    pub fn release_late(&mut self) -> Option<Vec<u8>> {
        if self.passed < self.late_due {
            return None;
        }
        let at = self.late.iter().position(|(due, _)| *due <= self.passed)?;
        let (_, copy) = self.late.swap_remove(at);
        self.late_due = self.late.iter().map(|(due, _)| *due).min().unwrap_or(u64::MAX);
        Some(copy)
    }

    pub fn has_room(&self) -> bool {
        self.delayed.len() < DELAYED_MAX
    }

    /// Holds a frame back that would have arrived at `arrival`; returns until when at the latest.
    pub fn hold(&mut self, frame: Vec<u8>, arrival: Time) -> Time {
        let Faults { gap, hold, .. } = self.config.faults;
        let deadline = arrival + hold;
        self.delayed.push(Delayed { frame, after: self.passed + u64::from(gap), deadline });
        self.counters.reordered += 1;
        deadline
    }

    /// Takes a frame that enough others have passed, or whose time is over at `now`.
    pub fn release(&mut self, now: Time) -> Option<Vec<u8>> {
        let due = self.delayed.iter().position(|h| h.after <= self.passed || h.deadline <= now)?;
        Some(self.delayed.remove(due).frame)
    }

    /// The arrival of a frame that ends its being held back at `at`, behind those that overtook it.
    pub fn rejoin(&mut self, at: Time) -> Time {
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}
