//! Pauses between tries: longer each time, so that nobody is flooded, and of random length, so that nodes that failed
//! together do not come back together.

use std::time::Duration;

/// How long to wait after a failure. The default goes from 200 ms to 5 s.
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
    /// Pauses of `min` after the first failure, twice as long after each further one, `max` at the most.
    pub fn new(min: Duration, max: Duration) -> Self {
        Backoff { min, max, next: min }
    }

    /// The pause after another failure: between half of what it may be and all of it.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.max);
        pause
    }

    /// There was a success: the next pause is a first one.
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
