//! Orders of addresses, computed without a table, so that they take no memory whatever the number of lines.
//!
//! [`Scatter`] is a permutation from positions to places without a pattern that a prefetcher could follow. A
//! walk over all positions is therefore one cycle over all places, as the pointer chase needs, and the first
//! positions are a random choice of places, as the hot pages need.

use cxloe_wire::frame::PAGE_LINES;

use super::Share;
use cxloe_wire::random::Random;

/// Pseudo-random permutation of the numbers from 0 to 2^n - 1.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    bits: u32,
    keys: [u64; 3],
    /// Inverses modulo 2^64 of the keys, each made odd first.
    inverses: [u64; 3],
}

impl Scatter {
    /// Makes a permutation of `places` places.
    ///
    /// # Panics
    /// Panics if `places` is no power of two.
    pub fn new(places: u64, seed: u64) -> Scatter {
        assert!(places.is_power_of_two(), "{places} places");
        // Other draws from the same seed must not be related to this permutation.
        let mut draw = Random::new(seed ^ 0x5CA7);
        let keys = [draw.bits(), draw.bits(), draw.bits()];
        Scatter { bits: places.trailing_zeros(), keys, inverses: keys.map(|key| inverse(key | 1)) }
    }

    pub fn places(self) -> u64 {
        1 << self.bits
    }

    /// Returns the place of a position; positions beyond the last start again from 0.
    #[inline]
    pub fn place(self, position: u64) -> u64 {
        let mut at = position & self.mask();
        // Each step is invertible: an addition, a multiplication by an odd number, an xor of the upper half
        // into the lower.
        for key in self.keys {
            at = at.wrapping_add(key).wrapping_mul(key | 1) & self.mask();
            at ^= at >> self.half();
        }
        at
    }

    /// Returns the position of a place: the inverse of [`place`](Self::place), which gives the position of a
    /// line in a chain.
    #[inline]
    pub fn position(self, place: u64) -> u64 {
        let mut at = place & self.mask();
        for (key, inverse) in self.keys.into_iter().zip(self.inverses).rev() {
            at ^= at >> self.half();
            at = at.wrapping_mul(inverse).wrapping_sub(key) & self.mask();
        }
        at
    }

    fn mask(self) -> u64 {
        self.places() - 1
    }

    /// Returns the shift of the xor step in bits: at least half of the bits, so that the step is its own
    /// inverse.
    fn half(self) -> u32 {
        self.bits.div_ceil(2).max(1)
    }
}

/// Returns the inverse of `odd` modulo 2^64, by Newton's method; an odd number is its own inverse modulo 8,
/// and each of the five steps doubles the number of correct bits.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Generator of line indexes, in one of the orders that patterns use.
#[derive(Clone, Debug)]
pub enum Addresses {
    /// Consecutive lines, cyclically.
    Sequential { next: u64, lines: u64 },
    /// Lines in random order, uniformly distributed.
    Random { draw: Random, lines: u64 },
    /// Pages of which a few, scattered over all, are accessed much more often than the others.
    HotCold(HotCold),
    /// Pages chosen by Zipf's law, with ranks scattered over all pages.
    Zipf(Zipf),
}

#[derive(Clone, Debug)]
pub struct Zipf {
    draw: Random,
    pages: Scatter,
    /// One minus the exponent of the law.
    power: f64,
    /// Integral of the law's curve over all ranks, times `power`.
    whole: f64,
}

#[derive(Clone, Debug)]
pub struct HotCold {
    draw: Random,
    pages: Scatter,
    /// Number of hot pages. They are the places of the positions 0 to `hot` - 1.
    hot: u64,
    /// Number of accesses to hot pages among 2^32 accesses.
    heat: u64,
}

impl Addresses {
    /// Returns consecutive lines, beginning with the first.
    pub fn sequential(lines: u64) -> Addresses {
        Addresses::Sequential { next: 0, lines }
    }

    /// Returns lines in random order, uniformly distributed.
    pub fn random(lines: u64, seed: u64) -> Addresses {
        Addresses::Random { draw: Random::new(seed), lines }
    }

    /// Returns lines such that the share `heat` of the accesses goes to the share `hot` of the pages. `lines`
    /// is a power of two and at least two pages. At least one page is hot and at least one is not.
    pub(crate) fn hot_cold(lines: u64, hot: Share, heat: Share, seed: u64) -> Addresses {
        let pages = lines / PAGE_LINES as u64;
        Addresses::HotCold(HotCold {
            draw: Random::new(seed),
            pages: Scatter::new(pages, seed),
            hot: hot.of(pages).clamp(1, pages - 1),
            heat: heat.of(1 << 32),
        })
    }

    /// Returns lines in pages chosen by Zipf's law with this exponent, above 0 and below 1. `lines` is a
    /// power of two. The choice is by inverse sampling from the integral of the law's curve, without a table.
    pub fn zipf(lines: u64, exponent: f64, seed: u64) -> Addresses {
        let pages = lines / PAGE_LINES as u64;
        let power = 1.0 - exponent;
        let whole = (pages as f64 + 1.0).powf(power) - 1.0;
        Addresses::Zipf(Zipf { draw: Random::new(seed), pages: Scatter::new(pages, seed), power, whole })
    }

    /// Returns the index of the next line to access.
    #[inline]
    pub(crate) fn next_line(&mut self) -> u64 {
        match self {
            Addresses::Sequential { next, lines } => {
                let line = *next;
                *next = if line + 1 == *lines { 0 } else { line + 1 };
                line
            }
            Addresses::Random { draw, lines } => draw.below(*lines),
            Addresses::Zipf(Zipf { draw, pages, power, whole }) => {
                let uniform = (draw.bits() >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = (uniform * *whole + 1.0).powf(1.0 / *power) as u64;
                pages.place(rank.clamp(1, pages.places()) - 1) * PAGE_LINES as u64
                    + draw.below(PAGE_LINES as u64)
            }
            Addresses::HotCold(HotCold { draw, pages, hot, heat }) => {
                let position = if draw.below(1 << 32) < *heat {
                    draw.below(*hot)
                } else {
                    *hot + draw.below(pages.places() - *hot)
                };
                pages.place(position) * PAGE_LINES as u64 + draw.below(PAGE_LINES as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_walk_over_all_positions_is_one_cycle_over_all_lines() {
        for bits in [0, 1, 2, 3, 7, 10, 15, 16] {
            for seed in [0, 1, 99] {
                let order = Scatter::new(1 << bits, seed);
                let successor: HashMap<u64, u64> =
                    (0..1 << bits).map(|t| (order.place(t), order.place(t + 1))).collect();
                assert_eq!(successor.len(), 1 << bits, "every line names one other");
                assert!((0..1 << bits).all(|t| order.position(order.place(t)) == t));
                let start = order.place(0);
                let (mut at, mut steps) = (successor[&start], 1);
                while at != start {
                    (at, steps) = (successor[&at], steps + 1);
                    assert!(steps <= 1 << bits);
                }
                assert_eq!(steps, 1 << bits, "{bits} bits, seed {seed}");
            }
        }
    }

    #[test]
    fn no_step_of_the_walk_is_common() {
        let order = Scatter::new(1 << 14, 7);
        let mut steps = HashMap::<u64, u32>::new();
        for t in 0..1 << 14 {
            let step = order.place(t + 1).wrapping_sub(order.place(t)) & ((1 << 14) - 1);
            *steps.entry(step).or_default() += 1;
        }
        let most = steps.values().max().unwrap();
        assert!(*most < 64, "one step in {} is the same", (1 << 14) / most);
    }

    #[test]
    fn in_order_and_around() {
        let mut lines = Addresses::sequential(3);
        let drawn: Vec<u64> = (0..7).map(|_| lines.next_line()).collect();
        assert_eq!(drawn, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn random_lines_are_all_lines_equally_often() {
        let mut lines = Addresses::random(64, 5);
        let mut seen = [0_u32; 64];
        (0..64_000).for_each(|_| seen[lines.next_line() as usize] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }

    #[test]
    fn hot_pages_get_their_share_and_are_as_many_as_said() {
        const PAGES: u64 = 256;
        let mut lines =
            Addresses::hot_cold(PAGES * PAGE_LINES as u64, Share::percent(12.5), Share::percent(90.0), 3);
        let mut seen = vec![0_u32; PAGES as usize];
        const DRAWS: u32 = 200_000;
        (0..DRAWS).for_each(|_| seen[lines.next_line() as usize / PAGE_LINES] += 1);
        seen.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = seen[..32].iter().sum();
        assert!((0.89..0.91).contains(&(f64::from(hot) / f64::from(DRAWS))), "{hot} of {DRAWS}");
        // By the two shares, a hot page is accessed 63 times as often as a cold one.
        assert!(seen[31] > 20 * seen[32], "{} and {}", seen[31], seen[32]);
        assert!(seen[255] > 0, "cold pages are wanted too");
    }

    #[test]
    fn pages_by_zipfs_law_have_the_weight_of_their_rank() {
        const PAGES: u64 = 1024;
        const DRAWS: u32 = 400_000;
        let mut lines = Addresses::zipf(PAGES * PAGE_LINES as u64, 0.99, 3);
        let mut seen = vec![0_u32; PAGES as usize];
        (0..DRAWS).for_each(|_| seen[lines.next_line() as usize / PAGE_LINES] += 1);
        let order = Scatter::new(PAGES, 3);
        let of_rank = |rank: u64| f64::from(seen[order.place(rank - 1) as usize]) / f64::from(DRAWS);
        let weight: f64 = (1..=PAGES).map(|rank| (rank as f64).powf(-0.99)).sum();
        let tenth: f64 = (1..=PAGES / 10).map(of_rank).sum();
        let law: f64 = (1..=PAGES / 10).map(|rank| (rank as f64).powf(-0.99)).sum::<f64>() / weight;
        assert!((tenth - law).abs() < 0.05, "{tenth} of the accesses, {law} by the law");
        assert!(of_rank(1) > 5.0 * of_rank(10) && of_rank(10) > 5.0 * of_rank(100), "each by its rank");
        assert!(seen.iter().all(|count| *count > 0), "every page is wanted");
    }

    #[test]
    fn hot_pages_lie_apart() {
        let pages = Scatter::new(1024, 11);
        let mut hot: Vec<u64> = (0..64).map(|position| pages.place(position)).collect();
        hot.sort_unstable();
        let neighbours = hot.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(neighbours < 16, "{neighbours} of 64 are next to each other: {hot:?}");
    }
}
