//! When the receive queue says stop: the memory node's half of rate control.
//!
//! ```text
//!            more than `threshold` frames wait                        no more than half of it wait
//!   quiet --------------------------------------> pausing ---------------------------------------> quiet
//!            tell everyone                         tell again each `repeat`     let the cable go on
//! ```
//!
//! Told are the CNs whose frames make the queue, each by a Congestion frame, which crosses switches; and whoever is
//! at the other end of the cable, by an 802.1Qbb frame, which does not. A CN takes signals closer together than its
//! t2 for one, so that hearing both does no harm. Only the 802.1Qbb frame needs an end (quanta of 0): it stops the
//! cable, while a CN speeds up by itself.

use std::time::Duration;

use cxloe_wire::frame::PfcVector;
use cxloe_wire::time::Time;

/// Frames that may wait unless told otherwise: half the receive ring, so that what is on its way when the CNs hear
/// of it still finds room.
pub const THRESHOLD_DEFAULT: usize = 512;

/// When to say stop, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionConfig {
    /// Frames that may wait in the receive queue; 0: any number, nobody is ever told.
    pub threshold: usize,
    /// How often it is said again while the queue is long.
    pub repeat: Duration,
    /// How long the cable is to pause, in quanta of 512 bit times.
    pub quanta: u16,
    /// The PFC class of our frames, 0 to 7.
    pub class: u8,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        CongestionConfig {
            threshold: THRESHOLD_DEFAULT,
            repeat: Duration::from_micros(100),
            // 50 us at 10 Gbit/s, 5 us at 100 Gbit/s.
            quanta: 1000,
            class: 0,
        }
    }
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Quiet,
    /// To all who have sent since this time, and to the cable: pause.
    Pause {
        /// Those not heard of since then are not the cause.
        since: Time,
    },
    /// To the cable: go on.
    Resume,
}

/// Watches one receive queue.
#[derive(Clone, Debug)]
pub struct CongestionWatch {
    config: CongestionConfig,
    pausing: bool,
    told_at: Time,
}

/// Whose last frame is older is not among those whose frames wait: at a million frames a second, the queue is long
/// done with it.
const RECENT: Duration = Duration::from_millis(1);

impl CongestionWatch {
    /// A watch over a queue that is short.
    pub fn new(config: CongestionConfig) -> CongestionWatch {
        CongestionWatch { config, pausing: false, told_at: Time::ZERO }
    }

    /// Whether the queue is longer than it may be, as far as is known.
    pub fn is_pausing(&self) -> bool {
        self.pausing
    }

    /// Looks at the queue; `holds` says whether at least so many frames wait in it.
    #[inline]
    pub fn look(&mut self, mut holds: impl FnMut(usize) -> bool, now: Time) -> Verdict {
        let threshold = self.config.threshold;
        if threshold == 0 {
            return Verdict::Quiet;
        }
        if holds(threshold + 1) {
            return self.above(now);
        }
        if self.pausing && !holds(threshold / 2 + 1) {
            self.pausing = false;
            return Verdict::Resume;
        }
        Verdict::Quiet
    }

    #[cold]
    fn above(&mut self, now: Time) -> Verdict {
        if self.pausing && now < self.told_at + self.config.repeat {
            return Verdict::Quiet;
        }
        self.pausing = true;
        self.told_at = now;
        Verdict::Pause { since: Time(now.0.saturating_sub(RECENT.as_nanos() as u64)) }
    }

    /// The vector that says pause.
    pub fn pause(&self) -> PfcVector {
        self.vector(self.config.quanta.max(1))
    }

    /// The vector that says go on.
    pub fn resume(&self) -> PfcVector {
        self.vector(0)
    }

    fn vector(&self, quanta: u16) -> PfcVector {
        let class = self.config.class & 7;
        let mut vector = PfcVector { enabled: 1 << class, quanta: [0; 8] };
        vector.quanta[usize::from(class)] = quanta;
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn at(us: u64) -> Time {
        Time(10_000_000 + us * 1_000)
    }

    #[test]
    fn says_stop_once_in_a_while_and_go_on_once() {
        let config = CongestionConfig { threshold: 100, repeat: 50 * US, ..CongestionConfig::default() };
        let mut watch = CongestionWatch::new(config);
        let mut story = Vec::new();
        for (us, waiting) in [
            (0, 100),
            (1, 101),
            (20, 400),
            (51, 101),
            (60, 80),
            (70, 120),
            (101, 120),
            (110, 51),
            (120, 50),
            (121, 0),
        ] {
            let told = match watch.look(|count| waiting >= count, at(us)) {
                Verdict::Quiet => continue,
                Verdict::Pause { since } => {
                    assert_eq!(since, Time(at(us).0 - 1_000_000));
                    "pause"
                }
                Verdict::Resume => "resume",
            };
            story.push((us, told));
        }
        assert_eq!(story, [(1, "pause"), (51, "pause"), (101, "pause"), (120, "resume")]);
        assert!(!watch.is_pausing());
    }

    #[test]
    fn without_a_threshold_it_says_nothing() {
        let mut watch =
            CongestionWatch::new(CongestionConfig { threshold: 0, ..CongestionConfig::default() });
        assert_eq!(watch.look(|_| true, at(0)), Verdict::Quiet);
    }

    #[test]
    fn vectors_name_the_class_only() {
        let watch =
            CongestionWatch::new(CongestionConfig { class: 3, quanta: 7, ..CongestionConfig::default() });
        assert_eq!(
            (watch.pause().enabled, watch.pause().pause(3), watch.pause().pause(2)),
            (8, Some(7), None)
        );
        assert_eq!(watch.resume().pause(3), Some(0));
    }
}
