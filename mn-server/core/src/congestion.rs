//! Congestion signals of a memory node: they make CNs slow down while the node's receive queue is too long.
//!
//! ```text
//!            more than `threshold` frames wait                        no more than half of it wait
//!   quiet --------------------------------------> pausing ---------------------------------------> quiet
//!            signal CNs and cable                  again each `repeat`          resume the cable
//! ```
//!
//! Signals go to the CNs with recent frames, by Congestion frames, which switches forward, and to the device
//! at the other end of the cable, by an 802.1Qbb frame, which no switch forwards. The controller of a CN
//! counts signals less than its time t2 apart as one, so that a CN affected by both slows down once. Only the
//! 802.1Qbb pause needs an end (quanta of 0): it stops the cable, while a CN speeds up again by itself.

use std::time::Duration;

use cxloe_wire::frame::PfcVector;
use cxloe_wire::time::Time;

/// Default of [`CongestionConfig::threshold`], in frames: half the receive ring, which leaves room for the
/// frames that CNs send before the signal reaches them.
pub const THRESHOLD_DEFAULT: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionConfig {
    /// Maximum number of frames in the receive queue without a signal; 0 switches the signals off.
    pub threshold: usize,
    /// Time between two signals while the queue remains too long.
    pub repeat: Duration,
    /// Length of the cable's pause, in quanta of 512 bit times.
    pub quanta: u16,
    /// PFC class of the fabric's frames, 0 to 7.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionSignals {
    Quiet,
    /// Ask every CN that sent a frame since `since` to slow down, and pause the cable.
    Pause {
        /// Time of the oldest frames that may be in the queue.
        since: Time,
    },
    /// End the pause of the cable. CNs get no signal for the end, because they speed up by themselves.
    Resume,
}

/// Decides when one receive queue is too long, and when it is short again.
#[derive(Clone, Debug)]
pub struct CongestionWatch {
    config: CongestionConfig,
    pausing: bool,
    told_at: Time,
}

/// Age of a CN's last frame above which the frame is no longer in the queue: at a million frames a second, the whole
/// queue is replaced in this time.
const RECENT: Duration = Duration::from_millis(1);

impl CongestionWatch {
    pub fn new(config: CongestionConfig) -> CongestionWatch {
        CongestionWatch { config, pausing: false, told_at: Time::ZERO }
    }

    /// Whether the queue was longer than the threshold and has not fallen to half of it since.
    pub(crate) fn is_pausing(&self) -> bool {
        self.pausing
    }

    /// Checks the queue and returns the signals to send; `holds` returns whether at least the given number of frames
    /// wait.
    #[inline]
    pub fn check(&mut self, mut holds: impl FnMut(usize) -> bool, now: Time) -> CongestionSignals {
        let threshold = self.config.threshold;
        if threshold == 0 {
            return CongestionSignals::Quiet;
        }
        if holds(threshold + 1) {
            return self.above(now);
        }
        // The pause ends only at half the threshold. Otherwise a queue whose length varies around the threshold would
        // start and end pauses all the time.
        if self.pausing && !holds(threshold / 2 + 1) {
            self.pausing = false;
            return CongestionSignals::Resume;
        }
        CongestionSignals::Quiet
    }

    #[cold]
    fn above(&mut self, now: Time) -> CongestionSignals {
        if self.pausing && now < self.told_at + self.config.repeat {
            return CongestionSignals::Quiet;
        }
        self.pausing = true;
        self.told_at = now;
        CongestionSignals::Pause { since: Time(now.0.saturating_sub(RECENT.as_nanos() as u64)) }
    }

    /// Content of the 802.1Qbb or Congestion frame that begins the pause.
    pub fn pause(&self) -> PfcVector {
        // Quanta of 0 would end the pause.
        self.vector(self.config.quanta.max(1))
    }

    /// Content of the 802.1Qbb frame that ends the pause.
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
            let told = match watch.check(|count| waiting >= count, at(us)) {
                CongestionSignals::Quiet => continue,
                CongestionSignals::Pause { since } => {
                    assert_eq!(since, Time(at(us).0 - 1_000_000));
                    "pause"
                }
                CongestionSignals::Resume => "resume",
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
        assert_eq!(watch.check(|_| true, at(0)), CongestionSignals::Quiet);
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
