//! Path of the simulated network: from one port to another, in one direction.

use std::time::Duration;

use crate::impairment::{FaultCounters, Faults, Impairment, Impairments};
use cxloe_wire::frame::Mac;
use cxloe_wire::random::{Probability, Random};
use cxloe_wire::time::Time;

/// Maximum number of frames that a path holds back at once.
const DELAYED_MAX: usize = 64;
/// Maximum number of late copies that a path keeps.
const LATE_MAX: usize = 256;
/// Number of frames after which a late copy is delivered: one period of the 16-bit sequence numbers, plus or
/// minus [`LATE_SPREAD`].
const LATE_AFTER: u64 = 1 << 16;
/// Maximum deviation of a late copy from that period, in frames. So the 16-bit number in the copy may be one that was
/// just answered, has just expired, or has not been sent yet.
const LATE_SPREAD: u64 = 600;

/// Delay and faults of one direction. Bandwidth is a property of ports ([`PortConfig`](super::PortConfig)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Time from the last bit sent to the arrival of the frame.
    pub delay: Duration,
    /// Maximum random addition to each frame's delay, evenly distributed. Jitter does not reorder: a late
    /// frame delays those after it.
    pub jitter: Duration,
    /// Faults on this path, including the [`Faults::gap`] and [`Faults::hold`] of frames held back.
    pub faults: Faults,
    /// Probability that a copy of a frame is delivered about 65 536 frames later, when the 16-bit sequence
    /// numbers have wrapped and the frame itself was answered long ago.
    pub late: Probability,
}

/// No faults, and a delay of 500 ns: a few metres of cable and a fast switch.
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

struct Delayed {
    frame: Vec<u8>,
    after: u64,
    deadline: Time,
}

pub(super) struct PathState {
    pub config: Path,
    /// True if the path was set for this pair of ports, and is not the default one.
    pub own: bool,
    pub cut: bool,
    pub counters: FaultCounters,
    impairments: Impairments,
    jitter: Random,
    passed: u64,
    last_arrival: Time,
    delayed: Vec<Delayed>,
    lateness: Random,
    /// Late copies, each with the number of the frame at which it is due.
    late: Vec<(u64, Vec<u8>)>,
    /// Smallest number in `late`, so that the usual case costs one comparison.
    late_due: u64,
}

impl PathState {
    /// Makes the path from `from` to `to` in the network with this seed. Its random numbers depend on nothing
    /// else.
    pub fn new(config: Path, seed: u64, from: Mac, to: Mac) -> Self {
        let pair = Random::part(seed, from.to_u64()).bits() ^ to.to_u64();
        PathState {
            config,
            own: false,
            cut: false,
            counters: FaultCounters::default(),
            // Separate random sequences, so that one option does not change what another draws.
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

    /// Draws the impairment of the next frame, and computes its arrival time if its last bit leaves at
    /// `sent`.
    pub fn next(&mut self, len: usize, sent: Time) -> (Impairment, Time) {
        let impairment = self.impairments.next(len);
        self.counters.count(&impairment);
        self.passed += 1;
        let jitter = self.jitter.below(self.config.jitter.as_nanos() as u64 + 1);
        let arrival = sent + self.config.delay + Duration::from_nanos(jitter);
        if impairment.lost.is_none() && !impairment.delayed {
            // Jitter must not reorder frames.
            self.last_arrival = self.last_arrival.max(arrival);
            return (impairment, self.last_arrival);
        }
        (impairment, arrival)
    }

    /// Decides at random whether the path keeps a late copy of the current frame.
    #[inline]
    pub fn wants_late_copy(&mut self) -> bool {
        self.config.late > Probability::NEVER
            && self.lateness.chance(self.config.late)
            && self.late.len() < LATE_MAX
    }

    pub fn keep_late(&mut self, copy: Vec<u8>) {
        let due = self.passed + LATE_AFTER - LATE_SPREAD + self.lateness.below(2 * LATE_SPREAD);
        self.late.push((due, copy));
        self.late_due = self.late_due.min(due);
    }

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

    /// Holds back a frame that would have arrived at `arrival`. Returns the time at which it is released at
    /// the latest.
    pub fn hold(&mut self, frame: Vec<u8>, arrival: Time) -> Time {
        let Faults { gap, hold, .. } = self.config.faults;
        let deadline = arrival + hold;
        self.delayed.push(Delayed { frame, after: self.passed + u64::from(gap), deadline });
        self.counters.reordered += 1;
        deadline
    }

    /// Removes and returns a frame that enough others have overtaken, or whose deadline has passed.
    pub fn release(&mut self, now: Time) -> Option<Vec<u8>> {
        let due = self.delayed.iter().position(|h| h.after <= self.passed || h.deadline <= now)?;
        Some(self.delayed.remove(due).frame)
    }

    /// Arrival time of a held-back frame that is released at `at`: no earlier than the frames that overtook it.
    pub fn rejoin(&mut self, at: Time) -> Time {
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}
