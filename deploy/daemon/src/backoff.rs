//! Pauses between attempts: longer after each failure, which limits the load on the peer, and random, so that nodes
//! that failed together do not retry together.

use std::time::Duration;

/// Pause after a failure; by default from 200 ms to 5 s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(Duration::from_millis(200), Duration::from_secs(5))
    }
}

impl Backoff {
    /// `min` bounds the pause after the first failure; the bound doubles with each further failure, up to `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Backoff { min, max, next: min }
    }

    /// Counts a failure and returns the pause to make: a random time between half of the current bound and all of it.
    pub fn pause(&mut self) -> Duration {
        // Random, so that nodes that failed together do not retry together.
        let pause = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.max);
        pause
    }

    /// Resets after a success: the next failure counts as the first.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        for round in 0..2 {
            for most in [100, 200, 350, 350] {
                let pause = backoff.pause();
                assert!(ms(most) / 2 <= pause && pause <= ms(most), "round {round}: {pause:?} of {most} ms");
            }
            backoff.reset();
        }
    }
}
