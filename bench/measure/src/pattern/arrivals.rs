//! Arrival times of accesses in an open loop: they do not depend on the progress of earlier accesses.

use cxloe_wire::random::Random;

/// Distribution of gaps between arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Spacing {
    /// Exponentially distributed gaps, as of independent clients.
    #[default]
    Poisson,
    /// Equal gaps.
    Even,
}

#[derive(Clone, Debug)]
pub struct Arrivals {
    spacing: Spacing,
    gap_ns: f64,
    at_ns: f64,
    draw: Random,
}

impl Arrivals {
    /// Starts a sequence with an average rate of `per_s` arrivals per second, which must be above zero.
    pub fn new(per_s: f64, spacing: Spacing, seed: u64) -> Arrivals {
        // The caller may use the same seed for the addresses of the accesses. The gaps must not depend on these
        // addresses, so another seed is derived here.
        let mut arrivals =
            Arrivals { spacing, gap_ns: 1e9 / per_s, at_ns: 0.0, draw: Random::new(seed ^ 0xA221) };
        arrivals.advance();
        arrivals
    }

    /// Returns the time of the present arrival, in nanoseconds from the start.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.at_ns as u64
    }

    #[inline]
    pub fn advance(&mut self) {
        let gaps = match self.spacing {
            Spacing::Even => 1.0,
            Spacing::Poisson => {
                // Of the drawn bits, 53 are used, the precision of a double. The addition excludes 0, whose
                // logarithm is infinite.
                let uniform = ((self.draw.bits() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
                -uniform.ln()
            }
        };
        self.at_ns += gaps * self.gap_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(spacing: Spacing, count: usize) -> Vec<f64> {
        let mut arrivals = Arrivals::new(1000.0, spacing, 1);
        let mut before = 0;
        (0..count)
            .map(|_| {
                let at = arrivals.next_ns();
                arrivals.advance();
                (at - std::mem::replace(&mut before, at)) as f64
            })
            .collect()
    }

    #[test]
    fn even_gaps_are_even() {
        assert!(gaps(Spacing::Even, 1000).iter().all(|gap| (gap - 1e6).abs() <= 1.0));
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_exponential_gaps() {
        let gaps = gaps(Spacing::Poisson, 100_000);
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((0.98e6..1.02e6).contains(&mean), "{mean}");
        let longer = |limit: f64| gaps.iter().filter(|gap| **gap > limit).count() as f64 / gaps.len() as f64;
        assert!((longer(1e6) - (-1.0_f64).exp()).abs() < 0.01, "{}", longer(1e6));
        assert!((longer(3e6) - (-3.0_f64).exp()).abs() < 0.005, "{}", longer(3e6));
    }
}
