//! Pacer of a sender: the controller sets the rate, the token bucket the time of the next request.
//!
//! At the link's rate the wire itself is the limit, and a request costs one comparison. Below the link's
//! rate, each call applies the rate changes that have come due since the last call, each at its due time. So
//! a pacer needs no timer.

use core::time::Duration;

use crate::{BitsPerSecond, Config, Controller, Phase, TokenBucket};

/// Limits the requests of one sender to one receiver.
#[derive(Clone, Debug)]
pub struct Pacer {
    controller: Controller,
    bucket: TokenBucket,
    link: BitsPerSecond,
    /// True while the rate is below the link's rate.
    limiting: bool,
    delayed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacerStatus {
    /// Phase of the congestion control.
    pub phase: Phase,
    /// Current rate of requests (CR), in bits per second on the wire.
    pub rate: BitsPerSecond,
    /// Target rate of recovery (TR), in bits per second on the wire.
    pub target: BitsPerSecond,
    /// Number of pause signals that changed the phase or the rate.
    pub pauses: u64,
    /// Number of pause signals ignored: too soon after the previous one, or bare ones beyond their bounds.
    pub duplicates: u64,
    /// Number of attempts to send that had to wait for tokens.
    pub delayed: u64,
}

impl Pacer {
    /// Makes a pacer that starts at the link's rate. After idle time below that rate, `burst` bytes may leave
    /// at once.
    pub fn new(config: Config, burst: u64, now: Duration) -> Pacer {
        Pacer {
            controller: Controller::new(config, now),
            bucket: TokenBucket::new(config.link, burst, now),
            link: config.link,
            limiting: false,
            delayed: 0,
        }
    }

    /// Checks that a request may leave now.
    ///
    /// # Errors
    /// Returns the time of the next attempt that can succeed.
    #[inline]
    pub fn ready(&mut self, now: Duration) -> Result<(), Duration> {
        if !self.limiting {
            return Ok(());
        }
        self.ready_below_link(now)
    }

    fn ready_below_link(&mut self, now: Duration) -> Result<(), Duration> {
        self.catch_up(now);
        if !self.limiting {
            return Ok(());
        }
        let ready = self.bucket.ready(now);
        self.delayed += u64::from(ready.is_err());
        // The next change may raise the rate, so the request may leave before the bucket's time.
        ready.map_err(|at| at.min(self.controller.deadline()))
    }

    /// Takes tokens for `bytes` on the wire (R13): for a request that was sent, or for a retransmission,
    /// which does not ask [`ready`](Self::ready) first.
    #[inline]
    pub fn charge(&mut self, bytes: u64) {
        if self.limiting {
            self.bucket.charge(bytes);
        }
    }

    /// Applies a pause of this sender's class that names its sender. Returns whether the pause counted.
    pub fn on_pause(&mut self, now: Duration) -> bool {
        self.catch_up(now);
        let counted = self.controller.on_pause(now);
        self.adopt_rate(now);
        counted
    }

    /// Applies a pause of this sender's class that does not name its sender. It may be forged, so its effect
    /// is bounded. Returns whether the pause counted.
    pub fn on_bare_pause(&mut self, now: Duration) -> bool {
        self.catch_up(now);
        let counted = self.controller.on_bare_pause(now);
        if counted {
            self.adopt_rate(now);
        }
        counted
    }

    /// Returns the status after all rate changes due by `now`.
    pub fn status(&mut self, now: Duration) -> PacerStatus {
        self.catch_up(now);
        let (pauses, duplicates) = self.controller.pauses();
        PacerStatus {
            phase: self.controller.phase(),
            rate: self.controller.rate(),
            target: self.controller.target(),
            pauses,
            duplicates,
            delayed: self.delayed,
        }
    }

    fn catch_up(&mut self, now: Duration) {
        while self.limiting && self.controller.deadline() <= now {
            let at = self.controller.deadline();
            self.controller.poll(at);
            self.adopt_rate(at);
        }
        self.controller.poll(now);
    }

    fn adopt_rate(&mut self, now: Duration) {
        let rate = self.controller.rate();
        let limiting = rate < self.link;
        if limiting && !self.limiting {
            // No tokens may be saved up from the time at the link's rate: they would let a burst leave into
            // congestion.
            self.bucket.empty(now);
        }
        self.limiting = limiting;
        self.bucket.set_rate(rate, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GBIT;

    const US: Duration = Duration::from_micros(1);

    fn pacer() -> Pacer {
        Pacer::new(Config::for_link(100 * GBIT), 4096, Duration::ZERO)
    }

    /// Sends frames of 125 bytes (one takes 1 us at 1 Gbit/s) whenever allowed; returns the number of frames.
    fn send(pacer: &mut Pacer, from: Duration, until: Duration) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < until {
            match pacer.ready(now) {
                Ok(()) => {
                    pacer.charge(125);
                    sent += 1;
                }
                Err(again) => {
                    assert!(again > now, "the time to come back lies ahead");
                    now = again;
                }
            }
        }
        sent
    }

    #[test]
    fn nothing_waits_at_the_links_rate() {
        let mut pacer = pacer();
        for i in 0..10_000 {
            assert_eq!(pacer.ready(i * US / 1000), Ok(()));
            pacer.charge(1_000_000);
        }
    }

    #[test]
    fn a_pause_halves_what_leaves() {
        let mut pacer = pacer();
        assert!(pacer.on_pause(100 * US));
        // 50 Gbit/s for t1 = 50 us: 50 frames a microsecond.
        let sent = send(&mut pacer, 100 * US, 150 * US);
        assert!((2_499..=2_501).contains(&sent), "{sent}");
        let status = pacer.status(150 * US);
        assert_eq!((status.phase, status.rate, status.pauses), (Phase::FastRecovery, 50 * GBIT, 1));
        assert!(status.delayed > 0);
    }

    /// A pacer that is called rarely has the same state, tokens included, as one that is called all the time.
    #[test]
    fn catching_up_misses_nothing() {
        let (mut asked, mut left_alone) = (pacer(), pacer());
        for p in [&mut asked, &mut left_alone] {
            p.on_pause(10 * US);
            p.charge(1_000_000);
        }
        let first = |p: &mut Pacer, step: Duration| {
            let mut now = 10 * US;
            while p.ready(now).is_err() {
                now += step;
            }
            now
        };
        let (fine, coarse) = (first(&mut asked, US), first(&mut left_alone, 70 * US));
        assert!(fine <= coarse && coarse < fine + 70 * US, "{fine:?} and {coarse:?}");
        assert_eq!(asked.status(coarse), PacerStatus { delayed: asked.delayed, ..left_alone.status(coarse) });
    }

    #[test]
    fn left_alone_it_lets_go() {
        let mut pacer = pacer();
        for i in 0..6 {
            pacer.on_pause(i * 20 * US);
        }
        assert!(pacer.status(120 * US).rate < 4 * GBIT);
        pacer.charge(100_000);
        assert!(pacer.ready(121 * US).is_err());
        let later = Duration::from_secs(1);
        assert_eq!(pacer.ready(later), Ok(()));
        assert_eq!(pacer.status(later).rate, 100 * GBIT);
        pacer.charge(u64::MAX / 16);
        assert_eq!(pacer.ready(later), Ok(()), "no tokens are counted at the link's rate");
    }
}
