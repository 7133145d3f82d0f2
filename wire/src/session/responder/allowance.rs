//! Limit on how often an expensive action may happen: a number of times at once, and a rate in the long run.

use core::time::Duration;

use crate::time::Time;

pub(super) struct Allowance {
    most: u32,
    interval: Duration,
    left: u32,
    /// Time of the last refill of `left`, in whole intervals.
    at: Time,
}

impl Allowance {
    /// Permits `most` actions at once, and one more after each `interval`.
    pub const fn new(most: u32, interval: Duration) -> Self {
        Self { most, interval, left: most, at: Time::ZERO }
    }

    /// Takes one action from the allowance. Returns `false` if none is left.
    pub fn take(&mut self, now: Time) -> bool {
        let nanos = self.interval.as_nanos().max(1) as u64;
        let back = (now - self.at).as_nanos() as u64 / nanos;
        if back > 0 {
            let all = u64::from(self.left).saturating_add(back);
            self.left = all.min(u64::from(self.most)) as u32;
            self.at = if all >= u64::from(self.most) { now } else { Time(self.at.0 + back * nanos) };
        }
        let granted = self.left > 0;
        self.left -= u32::from(granted);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_so_many_in_the_long_run() {
        let mut allowance = Allowance::new(4, Duration::from_millis(10));
        let taken = |allowance: &mut Allowance, now: u64| {
            (0..100).filter(|_| allowance.take(Time(now * 1_000_000))).count()
        };
        assert_eq!(taken(&mut allowance, 0), 4);
        assert_eq!(taken(&mut allowance, 9), 0);
        assert_eq!(taken(&mut allowance, 10), 1);
        assert_eq!(taken(&mut allowance, 35), 2, "20 and 30");
        assert_eq!(taken(&mut allowance, 40), 1, "the rest was not lost");
        assert_eq!(taken(&mut allowance, 1_000_000), 4);
        // No actions are added while the clock stands still or is set back.
        assert_eq!(taken(&mut allowance, 999_999), 0);
    }
}
