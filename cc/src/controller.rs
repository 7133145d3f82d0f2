//! The six phases of the paper's congestion control (III.D, Fig. 3).
//!
//! ```text
//!                     t4 without pause                 t6 without pause
//!        +----------> (a) Stable Running <------------------------------------+
//!        |                 |         \                                        |
//!        | five            | pause    \ t4                                    |
//!        | speed-ups       v           v                                      |
//!        |            (b) PFC       (e) Increment     --pause-->  (f) Increment Guessing
//!        |             Response <-+     Exploration                           |
//!        |                 |  |   |     +1 Gbit/s each t5                     |
//!        |              t1 |  +---+ pause: halve again   (b) <-----pause------+
//!        |                 v
//!        +----------- (c) Fast Recovery <------ t1 --- (d) Fast Recovery - PFC Response
//!                      (CR+TR)/2 each t3 -----pause---->   CR x 3/4 at each further pause
//! ```
//!
//! CR is the current rate, TR the target rate of recovery. For points that the paper leaves open, this module has these
//! rules:
//!
//! - In every phase, a pause within t2 of the last one that counted is a duplicate.
//! - CR never exceeds the link's rate and never falls below a floor.
//! - The first speed-up and the first increment come one interval after their phase began.
//! - A pause before the first increment of (e) lowers nothing.
//! - When (e) has reached the link's rate, it makes no further increments.
//!
//! A bare pause is an 802.1Qbb frame that does not name the node that caused it. It may be forged: any station on the
//! cable can send a million of them. Bare pauses count like others, within two bounds: they cannot lower CR below a
//! floor of their own, and after a span in which they counted, they are ignored for an equally long span, so that the
//! rate recovers.

use core::time::Duration;

use crate::BitsPerSecond;

/// Phase of the controller; each doc begins with the paper's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// a: no congestion seen.
    Stable,
    /// b: the rate was halved; waits until no pause has come for t1.
    PfcResponse,
    /// c: halves the distance to the target rate at each step.
    FastRecovery,
    /// d: a pause came during recovery, so the target rate was too high.
    RecoveryPfcResponse,
    /// e: raises the rate step by step to find unused bandwidth.
    IncrementExploration,
    /// f: a pause came during exploration; a second one would show congestion and lead to (b).
    IncrementGuessing,
}

impl Phase {
    /// All phases, in the paper's order of letters.
    pub const ALL: [Phase; 6] = [
        Phase::Stable,
        Phase::PfcResponse,
        Phase::FastRecovery,
        Phase::RecoveryPfcResponse,
        Phase::IncrementExploration,
        Phase::IncrementGuessing,
    ];

    /// Letter of the phase in the paper, `a` to `f`.
    pub fn letter(self) -> char {
        (b'a' + self as u8) as char
    }
}

/// Times and rates of a controller; names as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time without a further pause after which phase (b) or (d) ends.
    pub t1: Duration,
    /// A pause less than this time after the last one that counted is a duplicate.
    pub t2: Duration,
    /// Interval between two speed-ups in phase (c).
    pub t3: Duration,
    /// Time without a pause after which phase (a) ends, and (e) begins to explore.
    pub t4: Duration,
    /// Interval between two increments in phase (e).
    pub t5: Duration,
    /// Time without a further pause after which phase (f) ends, and (a) begins.
    pub t6: Duration,
    /// Rate of the link: the initial and the highest value of the current rate (CR).
    pub link: BitsPerSecond,
    /// Lowest value of the current rate (CR).
    pub floor: BitsPerSecond,
    /// Step by which phase (e) raises the rate: the paper's 1 Gbit/s on a link of 100 Gbit/s, so 1 % of the link's rate
    /// on other links.
    pub increment: BitsPerSecond,
    /// Number of speed-ups after which phase (c) ends.
    pub speed_ups: u32,
    /// Lowest current rate (CR) to which [bare pauses](Controller::on_bare_pause) can lower it.
    pub bare_floor: BitsPerSecond,
    /// Time from the first bare pause in which [bare pauses](Controller::on_bare_pause) count. Afterwards they are
    /// ignored for the same time. Zero: no bare pause ever counts.
    pub bare_span: Duration,
}

impl Config {
    /// Uses the paper's times (V, Congestion Control) on a link of `link` bits per second.
    pub fn for_link(link: BitsPerSecond) -> Config {
        let us = Duration::from_micros;
        Config {
            t1: us(50),
            t2: us(10),
            t3: us(11),
            t4: us(200),
            t5: us(40),
            t6: us(20),
            link,
            floor: (link / 1000).max(1_000_000).min(link),
            increment: (link / 100).max(1),
            speed_ups: 5,
            bare_floor: (link / 8).max(1),
            bare_span: Duration::from_millis(10),
        }
    }
}

/// Decides the rate of one sender.
///
/// Call [`on_pause`](Self::on_pause) for each signal and [`poll`](Self::poll) when
/// [`deadline`](Self::deadline) has come; read [`rate`](Self::rate) after either.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    phase: Phase,
    current: BitsPerSecond,
    target: BitsPerSecond,
    /// Time at which the timer of the current phase expires.
    timer: Duration,
    last_pause: Option<Duration>,
    /// Time of the first bare pause (one that does not name its sender) of the current span; it decides when such
    /// pauses count.
    bare_since: Option<Duration>,
    /// Number of speed-ups or increments since the phase began.
    steps: u32,
    pauses: u64,
    duplicates: u64,
}

impl Controller {
    /// Makes a controller in phase (a), stable running, at the link's rate.
    pub fn new(config: Config, now: Duration) -> Controller {
        Controller::starting_at(config, config.link, now)
    }

    /// Makes a controller in phase (a), stable running, at `rate`, limited to the range from the floor to the link's
    /// rate.
    pub fn starting_at(config: Config, rate: BitsPerSecond, now: Duration) -> Controller {
        let current = rate.clamp(config.floor, config.link);
        Controller {
            config,
            phase: Phase::Stable,
            current,
            target: current,
            timer: now + config.t4,
            last_pause: None,
            bare_since: None,
            steps: 0,
            pauses: 0,
            duplicates: 0,
        }
    }

    /// Current rate to send at (CR).
    #[inline]
    pub fn rate(&self) -> BitsPerSecond {
        self.current
    }

    /// Target rate of recovery (TR).
    pub fn target(&self) -> BitsPerSecond {
        self.target
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the number of pauses that counted, and the number ignored: duplicates, and bare pauses beyond
    /// their bounds.
    pub fn pauses(&self) -> (u64, u64) {
        (self.pauses, self.duplicates)
    }

    /// Time of the next [`poll`](Self::poll); [`Duration::MAX`] if only a pause can change anything.
    #[inline]
    pub fn deadline(&self) -> Duration {
        self.timer
    }

    /// Applies a pause of the sender's class, with quanta other than 0, that names its sender. Returns
    /// whether the pause counted.
    pub fn on_pause(&mut self, now: Duration) -> bool {
        self.poll(now);
        self.pause(now, self.config.floor)
    }

    /// Applies a pause of the sender's class, with quanta other than 0, that does not name its sender.
    /// Returns whether the pause counted.
    pub fn on_bare_pause(&mut self, now: Duration) -> bool {
        self.poll(now);
        let span = self.config.bare_span;
        let passed = self.bare_since.map(|since| now.saturating_sub(since));
        match passed {
            Some(passed) if passed < span => {}
            // After a span in which bare pauses counted, they are ignored for an equally long span.
            Some(passed) if passed < span * 2 => {
                self.duplicates += 1;
                return false;
            }
            _ => self.bare_since = Some(now),
        }
        if span.is_zero() || self.current <= self.config.bare_floor {
            self.duplicates += 1;
            return false;
        }
        self.pause(now, self.config.bare_floor.max(self.config.floor))
    }

    /// Applies a pause that may lower the rate to `floor`, not further. Returns whether the pause counted.
    fn pause(&mut self, now: Duration, floor: BitsPerSecond) -> bool {
        if self.last_pause.is_some_and(|last| now.saturating_sub(last) < self.config.t2) {
            self.duplicates += 1;
            return false;
        }
        self.last_pause = Some(now);
        self.pauses += 1;
        match self.phase {
            Phase::Stable | Phase::IncrementGuessing => {
                self.target = self.current;
                self.set_rate((self.current / 2).max(floor));
                self.enter(Phase::PfcResponse, now + self.config.t1);
            }
            Phase::PfcResponse => {
                self.set_rate((self.current / 2).max(floor));
                self.timer = now + self.config.t1;
            }
            Phase::FastRecovery => {
                self.target = (self.current / 8 * 7).max(floor);
                self.set_rate((self.current / 4 * 3).max(floor));
                self.enter(Phase::RecoveryPfcResponse, now + self.config.t1);
            }
            Phase::RecoveryPfcResponse => {
                self.set_rate((self.current / 4 * 3).max(floor));
                self.timer = now + self.config.t1;
            }
            Phase::IncrementExploration => {
                // Takes back the last increment, if one was made in this phase.
                if self.steps > 0 {
                    self.set_rate(self.current.saturating_sub(self.config.increment).max(floor));
                }
                self.enter(Phase::IncrementGuessing, now + self.config.t6);
            }
        }
        true
    }

    /// Applies all timers that have expired; may be called at any time. A late call still takes few steps:
    /// overdue increments are made in one step, and (e) stops at the link's rate.
    #[inline]
    pub fn poll(&mut self, now: Duration) {
        while now >= self.timer {
            self.expire(now);
        }
    }

    /// Handles the expired timer of the current phase. `now` is at or after `self.timer`.
    fn expire(&mut self, now: Duration) {
        let at = self.timer;
        match self.phase {
            Phase::Stable => self.enter(Phase::IncrementExploration, at + self.config.t5),
            Phase::PfcResponse | Phase::RecoveryPfcResponse => {
                self.enter(Phase::FastRecovery, at + self.config.t3);
            }
            Phase::FastRecovery => {
                self.set_rate(self.current / 2 + self.target / 2);
                self.steps += 1;
                if self.steps == self.config.speed_ups {
                    self.enter(Phase::Stable, at + self.config.t4);
                } else {
                    self.timer = at + self.config.t3;
                }
            }
            Phase::IncrementExploration => self.explore(now),
            Phase::IncrementGuessing => self.enter(Phase::Stable, at + self.config.t4),
        }
    }

    /// Makes the increments due by `now` in one step.
    fn explore(&mut self, now: Duration) {
        let missing = (self.config.link - self.current).div_ceil(self.config.increment.max(1));
        let t5 = self.config.t5.max(Duration::from_nanos(1));
        let due = 1 + (now - self.timer).as_nanos() / t5.as_nanos();
        let steps = u128::from(missing).min(due) as u64;
        self.set_rate(self.current.saturating_add(self.config.increment.saturating_mul(steps)));
        self.steps = self.steps.saturating_add(steps.min(u64::from(u32::MAX)) as u32);
        // At the link's rate no further increment is possible: only a pause changes the phase.
        self.timer = if self.current == self.config.link {
            Duration::MAX
        } else {
            self.timer + Duration::from_nanos((t5.as_nanos() as u64).saturating_mul(steps))
        };
    }

    fn enter(&mut self, phase: Phase, timer: Duration) {
        self.phase = phase;
        self.timer = timer;
        self.steps = 0;
    }

    fn set_rate(&mut self, rate: BitsPerSecond) {
        self.current = rate.clamp(self.config.floor, self.config.link);
    }
}

#[cfg(test)]
mod tests;
