//! Round-trip time of a path, and the time-out computed from it (the estimator of RFC 6298; R8).

use core::time::Duration;

/// Maximum number of doublings of a time-out.
const DOUBLINGS_MAX: u32 = 16;

/// Shortest wait before a probe, in nanoseconds. A shorter silence may only mean that a thread of the MN was
/// not running.
const PROBE_MIN_NS: u64 = 100_000;

/// Smoothed round-trip time and its variation. All streams of a session share one estimate, because they share the
/// path; each stream counts its own doublings of the time-out.
#[derive(Clone, Debug)]
pub struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
    initial_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl RoundTrip {
    /// Makes an estimator with the time-out `initial` before the first sample; later time-outs stay within
    /// `min` and `max`.
    pub fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        let ns = |d: Duration| d.as_nanos() as u64;
        RoundTrip {
            smoothed_ns: 0,
            variation_ns: 0,
            initial_ns: ns(initial),
            min_ns: ns(min),
            max_ns: ns(max),
        }
    }

    /// Adds a sample: nanoseconds from the transmission of a request to its answer. A request sent twice
    /// gives no sample, as its answer may belong to either transmission (R8).
    #[inline]
    pub fn sample(&mut self, rtt_ns: u64) {
        // 0 stands for "no sample yet".
        let rtt_ns = rtt_ns.max(1);
        if self.smoothed_ns == 0 {
            self.smoothed_ns = rtt_ns;
            self.variation_ns = rtt_ns / 2;
        } else {
            let deviation = self.smoothed_ns.abs_diff(rtt_ns);
            // Gains of RFC 6298: 1/4 for the variation, 1/8 for the smoothed value.
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + deviation / 4;
            self.smoothed_ns = (self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8).max(1);
        }
    }

    /// Smoothed round-trip time in nanoseconds; the initial time-out before the first sample.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        if self.smoothed_ns == 0 { self.initial_ns } else { self.smoothed_ns }
    }

    /// Whether there has been a sample.
    #[inline]
    pub(crate) fn is_measured(&self) -> bool {
        self.smoothed_ns != 0
    }

    /// Mean deviation of the samples from the smoothed value, in nanoseconds.
    #[inline]
    pub(crate) fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// Time-out for an answer after `expiries` consecutive time-outs, in nanoseconds.
    #[inline]
    pub fn timeout_ns(&self, expiries: u32) -> u64 {
        let base = if self.smoothed_ns == 0 {
            self.initial_ns
        } else {
            (self.smoothed_ns + 4 * self.variation_ns).max(self.min_ns)
        };
        base.saturating_mul(1 << expiries.min(DOUBLINGS_MAX)).min(self.max_ns)
    }

    /// Wait for an answer before a probe, in nanoseconds: two round trips and four variations, but at most
    /// the time-out. Before the first sample it equals the time-out.
    #[inline]
    pub fn probe_ns(&self) -> u64 {
        let silence = (2 * self.smoothed_ns + 4 * self.variation_ns).max(PROBE_MIN_NS);
        let timeout = self.timeout_ns(0);
        if self.smoothed_ns == 0 { timeout } else { silence.min(timeout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn follows_samples_and_backs_off() {
        let mut r = RoundTrip::new(10_000 * US, 100 * US, 50_000 * US);
        assert_eq!((r.timeout_ns(0), r.is_measured()), (10_000_000, false));
        for _ in 0..100 {
            r.sample(20_000);
        }
        assert!((19_900..=20_000).contains(&r.smoothed_ns()), "{}", r.smoothed_ns());
        assert_eq!(r.timeout_ns(0), 100_000, "the lower bound holds");
        assert_eq!(r.timeout_ns(1), 200_000);
        assert_eq!(r.timeout_ns(3), 800_000);
        assert_eq!(r.timeout_ns(20), 50_000_000, "the upper bound holds");
        for _ in 0..100 {
            r.sample(400_000);
        }
        assert!(r.timeout_ns(0) >= 399_000, "{}", r.timeout_ns(0));
    }

    #[test]
    fn variation_widens_the_timeout() {
        let mut r = RoundTrip::new(US, US, 50_000 * US);
        (0..200).for_each(|i| r.sample(if i % 2 == 0 { 10_000 } else { 30_000 }));
        assert!(r.variation_ns() > 5_000, "{}", r.variation_ns());
        assert!(r.timeout_ns(0) > 40_000, "{}", r.timeout_ns(0));
    }
}
