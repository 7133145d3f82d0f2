//! Round-trip time and the time-out that follows from it (RFC 6298's estimator; R8).

use std::time::Duration;

/// Smoothed round-trip time, its variation, and the time-out with its back-off.
#[derive(Clone, Debug)]
pub struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
    /// Doublings since the last progress.
    backoff: u32,
    min: Duration,
    max: Duration,
    initial: Duration,
}

impl RoundTrip {
    /// An estimator whose time-out starts at `initial` and stays within `min` and `max`.
    pub fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        RoundTrip { smoothed_ns: 0, variation_ns: 0, backoff: 0, min, max, initial }
    }

    /// Takes the time from a request's only transmission to its answer.
    #[inline]
    pub fn sample(&mut self, rtt: Duration) {
        let rtt = (rtt.as_nanos() as u64).max(1);
        if self.smoothed_ns == 0 {
            self.smoothed_ns = rtt;
            self.variation_ns = rtt / 2;
        } else {
            let deviation = self.smoothed_ns.abs_diff(rtt);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + deviation / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + rtt / 8;
        }
    }

    /// The smoothed round-trip time; before the first sample, the initial time-out.
    #[inline]
    pub fn smoothed(&self) -> Duration {
        if self.smoothed_ns == 0 { self.initial } else { Duration::from_nanos(self.smoothed_ns) }
    }

    /// How far samples stray from it.
    pub fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation_ns)
    }

    /// How long to wait for an answer now.
    #[inline]
    pub fn timeout(&self) -> Duration {
        let base = if self.smoothed_ns == 0 {
            self.initial
        } else {
            Duration::from_nanos(self.smoothed_ns + 4 * self.variation_ns).max(self.min)
        };
        (base * (1 << self.backoff.min(16))).min(self.max)
    }

    /// An answer was waited for in vain.
    pub fn expired(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// An answer has arrived.
    #[inline]
    pub fn progressed(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn follows_samples_and_backs_off() {
        let mut r = RoundTrip::new(10_000 * US, 100 * US, 50_000 * US);
        assert_eq!(r.timeout(), 10_000 * US);
        for _ in 0..100 {
            r.sample(20 * US);
        }
        assert!(r.smoothed() >= 19 * US && r.smoothed() <= 20 * US);
        assert_eq!(r.timeout(), 100 * US, "the lower bound holds");
        r.expired();
        assert_eq!(r.timeout(), 200 * US);
        for _ in 0..20 {
            r.expired();
        }
        assert_eq!(r.timeout(), 50_000 * US, "the upper bound holds");
        r.progressed();
        assert_eq!(r.timeout(), 100 * US);
    }
}
