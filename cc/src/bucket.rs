//! Token bucket: limits a sender to a rate, but lets a burst of bytes leave at once after idle time.

use core::time::Duration;

use crate::BitsPerSecond;

/// One bit in the unit of the token level: bits times nanoseconds per second, so that no rate is rounded.
const UNIT: u128 = 1_000_000_000;

#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: BitsPerSecond,
    /// Tokens in [`UNIT`]s of a bit; negative while a large request is paid off.
    level: i128,
    capacity: i128,
    filled_at: Duration,
}

impl TokenBucket {
    /// Makes a full bucket that holds `burst` bytes and fills at `rate`.
    pub fn new(rate: BitsPerSecond, burst: u64, now: Duration) -> TokenBucket {
        let capacity = i128::from(burst) * 8 * UNIT as i128;
        // A rate of 0 would divide by zero in `ready`.
        TokenBucket { rate: rate.max(1), level: capacity, capacity, filled_at: now }
    }

    pub fn set_rate(&mut self, rate: BitsPerSecond, now: Duration) {
        self.fill(now);
        self.rate = rate.max(1);
    }

    #[inline]
    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled_at).as_nanos();
        self.filled_at = self.filled_at.max(now);
        let room = self.capacity.abs_diff(self.level);
        self.level += passed.saturating_mul(u128::from(self.rate)).min(room) as i128;
    }

    /// Drops the tokens saved up, and clears any debt.
    pub fn empty(&mut self, now: Duration) {
        self.fill(now);
        self.level = 0;
    }

    /// Checks that a request may leave: the bucket has tokens left. The request's size does not matter.
    /// Otherwise a request larger than the bucket could never leave; instead, its debt delays the next
    /// request.
    ///
    /// # Errors
    /// Returns the time of the next attempt that can succeed.
    #[inline]
    pub fn ready(&mut self, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        if self.level > 0 {
            return Ok(());
        }
        let wait = (-self.level) as u128 / u128::from(self.rate) + 1;
        Err(now + Duration::from_nanos(wait.min(u128::from(u64::MAX)) as u64))
    }

    /// Takes tokens for `bytes` on the wire: a request's own size or its response's, whichever is larger
    /// (R13).
    #[inline]
    pub fn charge(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * 8 * UNIT as i128;
    }

    /// Takes tokens for `bytes`, unless the bucket is empty.
    ///
    /// # Errors
    /// As for [`ready`](Self::ready).
    #[inline]
    pub fn take(&mut self, bytes: u64, now: Duration) -> Result<(), Duration> {
        self.ready(now)?;
        self.charge(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GBIT;

    /// Sends frames of `bytes` as fast as the bucket allows until `until`; returns the bytes sent.
    fn drain(bucket: &mut TokenBucket, bytes: u64, until: Duration) -> u64 {
        let (mut now, mut sent) = (Duration::ZERO, 0);
        while now < until {
            match bucket.take(bytes, now) {
                Ok(()) => sent += bytes,
                Err(again) => {
                    assert!(again > now, "the time to come back lies ahead");
                    now = again;
                }
            }
        }
        sent
    }

    #[test]
    fn keeps_the_rate_whatever_the_frame_size() {
        for (rate, bytes) in [(10 * GBIT, 60), (100 * GBIT, 1514), (GBIT, 9014), (3_333_333, 93)] {
            let mut bucket = TokenBucket::new(rate, 4096, Duration::ZERO);
            let span = Duration::from_millis(if rate < GBIT { 1000 } else { 10 });
            let sent = drain(&mut bucket, bytes, span) as f64;
            let allowed = rate as f64 / 8.0 * span.as_secs_f64() + 4096.0 + bytes as f64;
            assert!(sent <= allowed, "{sent} of at most {allowed} at {rate}");
            assert!(sent > (allowed - 4096.0 - bytes as f64) * 0.99, "{sent} of {allowed} at {rate}");
        }
    }

    #[test]
    fn an_idle_time_allows_one_burst() {
        let mut bucket = TokenBucket::new(GBIT, 1000, Duration::ZERO);
        while bucket.take(100, Duration::ZERO).is_ok() {}
        let later = Duration::from_secs(5);
        let burst = (0..100).take_while(|_| bucket.take(100, later).is_ok()).count();
        assert_eq!(burst, 10);
    }

    #[test]
    fn a_new_rate_counts_from_its_time() {
        let mut bucket = TokenBucket::new(8 * GBIT, 1, Duration::ZERO);
        assert!(bucket.take(1001, Duration::ZERO).is_ok());
        bucket.set_rate(4 * GBIT, Duration::from_nanos(500));
        // 500 bytes were paid off at 8 Gbit/s, the other 500 take 1000 ns at 4 Gbit/s.
        let again = bucket.take(1, Duration::from_nanos(500)).unwrap_err();
        assert_eq!(again, Duration::from_nanos(1501));
    }
}
