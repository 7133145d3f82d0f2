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
//!        |              t1 |  +---+ pause: half again    (b) <-----pause------+
//!        |                 v
//!        +----------- (c) Fast Recovery <------ t1 --- (d) Fast Recovery - PFC Response
//!                      (CR+TR)/2 each t3 -----pause---->   three quarters again at each pause
//! ```
//!
//! CR is the current rate, TR the target it recovers to. The paper leaves these points open: a pause within t2 of the
//! last one that counted is a duplicate in every phase; CR never exceeds the link's rate nor falls below a floor; the
//! first speed-up and the first increment come one interval after their phase began; a pause before the first increment
//! of (e) undoes nothing; (e) rests once it has reached the link's rate.
//!
//! A pause without a known sender, a bare 802.1Qbb frame, may be forged: any station at the cable can send a million of
//! them. Such pauses count as others do, within two bounds: none brings CR below a floor of their own, and after a span
//! in which they counted none does for as long again, so that the rate recovers.

use core::time::Duration;

use crate::BitsPerSecond;

/// A phase of the controller, with the paper's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// a: no congestion.
    Stable,
    /// b: rate halved; waits for the pauses to end.
    PfcResponse,
    /// c: halves the distance to the target rate at each step.
    FastRecovery,
    /// d: paused during recovery, since the target was too high.
    RecoveryPfcResponse,
    /// e: raises the rate step by step to find more room.
    IncrementExploration,
    /// f: paused after an increment; waits for another pause, which would show congestion (b).
    IncrementGuessing,
}

impl Phase {
    /// All phases, in the paper's order.
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
    /// Wait of (b) and (d) after the last pause.
    pub t1: Duration,
    /// A pause this soon after the last one that counted is a duplicate.
    pub t2: Duration,
    /// Interval of speed-ups in (c).
    pub t3: Duration,
    /// Duration of (a) before exploring.
    pub t4: Duration,
    /// Interval of increments in (e).
    pub t5: Duration,
    /// Wait of (f) for another pause.
    pub t6: Duration,
    /// Rate of the link: initial and highest CR.
    pub link: BitsPerSecond,
    /// Lowest CR.
    pub floor: BitsPerSecond,
    /// A step of (e): the paper's 1 Gbit/s at 100 Gbit/s, a hundredth of other links' rates.
    pub increment: BitsPerSecond,
    /// Speed-ups after which (c) is over.
    pub speed_ups: u32,
    /// Lowest CR that [bare pauses](Controller::on_bare_pause) can cause.
    pub bare_floor: BitsPerSecond,
    /// Span from the first bare pause on in which bare pauses count; for as long again after that, none counts. Zero:
    /// no bare pause counts.
    pub bare_span: Duration,
}

impl Config {
    /// The paper's times (V, Congestion Control) on a link of `link` bits per second.
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

/// The controller of one sender.
///
/// Call [`on_pause`](Self::on_pause) for each signal and [`poll`](Self::poll) when
/// [`deadline`](Self::deadline) has come; read [`rate`](Self::rate) after either.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    phase: Phase,
    current: BitsPerSecond,
    target: BitsPerSecond,
    /// End of the phase's timer.
    timer: Duration,
    last_pause: Option<Duration>,
    /// Start of the present span of bare pauses.
    bare_since: Option<Duration>,
    /// Speed-ups or increments since the phase began.
    steps: u32,
    pauses: u64,
    duplicates: u64,
}

impl Controller {
    /// Makes a controller in (a) at the link's rate.
    pub fn new(config: Config, now: Duration) -> Controller {
        Controller::starting_at(config, config.link, now)
    }

    /// Makes a controller in (a) at `rate`, limited to the range from the floor to the link's rate.
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

    /// Present rate to send at (CR).
    #[inline]
    pub fn rate(&self) -> BitsPerSecond {
        self.current
    }

    /// Target rate of recovery (TR).
    pub fn target(&self) -> BitsPerSecond {
        self.target
    }

    /// Phase since the last signal or expired timer.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of pauses that counted, and of those that did not: duplicates, and bare pauses out of their bounds.
    pub fn pauses(&self) -> (u64, u64) {
        (self.pauses, self.duplicates)
    }

    /// Time of the next [`poll`](Self::poll); [`Duration::MAX`] if only a pause changes anything.
    #[inline]
    pub fn deadline(&self) -> Duration {
        self.timer
    }

    /// Applies a pause of the sender's class, with quanta other than 0, from a known sender. Returns whether it
    /// counted.
    pub fn on_pause(&mut self, now: Duration) -> bool {
        self.poll(now);
        self.pause(now, self.config.floor)
    }

    /// Applies a pause of the sender's class, with quanta other than 0, without a known sender. Returns whether it
    /// counted.
    pub fn on_bare_pause(&mut self, now: Duration) -> bool {
        self.poll(now);
        let span = self.config.bare_span;
        let passed = self.bare_since.map(|since| now.saturating_sub(since));
        match passed {
            Some(passed) if passed < span => {}
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

    /// Applies a pause that may bring the rate down to `floor`.
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
                if self.steps > 0 {
                    self.set_rate(self.current.saturating_sub(self.config.increment).max(floor));
                }
                self.enter(Phase::IncrementGuessing, now + self.config.t6);
            }
        }
        true
    }

    /// Applies the timers that have expired; may be called at any time. A late call takes few steps: increments that
    /// are overdue are made at once, and (e) ends at the link's rate.
    #[inline]
    pub fn poll(&mut self, now: Duration) {
        while now >= self.timer {
            self.expire(now);
        }
    }

    /// Applies the end of the phase's timer at `self.timer`, a time not after `now`.
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

    /// Makes the increments due by `now`. At the link's rate nothing is left to explore until the next pause.
    fn explore(&mut self, now: Duration) {
        let missing = (self.config.link - self.current).div_ceil(self.config.increment.max(1));
        let t5 = self.config.t5.max(Duration::from_nanos(1));
        let due = 1 + (now - self.timer).as_nanos() / t5.as_nanos();
        let steps = u128::from(missing).min(due) as u64;
        self.set_rate(self.current.saturating_add(self.config.increment.saturating_mul(steps)));
        self.steps = self.steps.saturating_add(steps.min(u64::from(u32::MAX)) as u32);
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
