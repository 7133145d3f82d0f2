//! Repeatable randomness: a small generator with a fixed algorithm, so that a seed gives the same faults on
//! every machine and in every version.
//!
//! [`Random`] is SplitMix64 (Steele, Lea and Flood, 2014): a counter and a mixing function. It has 8 bytes of
//! state and takes about a nanosecond for a number. It serves fault injection and simulations; it is not fit
//! for keys, nor for session ids outside of simulations.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

/// Generator of random numbers that are the same in every run with the same seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Makes a generator whose numbers depend on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Makes the generator for part `label` of a run under `seed`. Each part has its own sequence of numbers, so a new
    /// part does not change the numbers that the existing parts draw.
    pub fn part(seed: u64, label: u64) -> Self {
        Random(mix(seed ^ mix(label.wrapping_add(GAMMA))))
    }

    /// Draws the next number, all 64 bits random.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Draws the next number in `0..bound` (0 if `bound` is 0), by multiply and shift: for the small bounds
    /// used here the bias is too small to observe.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Decides whether an event of this probability happens now. Draws exactly one number, also for 0 and 1,
    /// so that a changed probability does not shift the later numbers.
    #[inline]
    pub fn chance(&mut self, probability: Probability) -> bool {
        ((self.bits() >> 11) as f64) < probability.0 * (1u64 << 53) as f64
    }
}

// Increment and multipliers of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Probability from 0 (never) to 1 (always), written `0.5%` or `0.005`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// Error: the number or text is not a probability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a probability: write a number from 0 to 1, or from 0% to 100%")]
pub struct ProbabilityError(String);

impl Probability {
    /// Probability 0: the event never happens.
    pub const NEVER: Probability = Probability(0.0);
    /// Probability 1: the event always happens.
    pub const ALWAYS: Probability = Probability(1.0);

    /// Makes a probability.
    ///
    /// # Errors
    /// If `p` is outside `0.0..=1.0`.
    pub fn new(p: f64) -> Result<Self, ProbabilityError> {
        if (0.0..=1.0).contains(&p) { Ok(Probability(p)) } else { Err(ProbabilityError(p.to_string())) }
    }

    /// Returns the probability as a number from 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = ProbabilityError;

    fn from_str(text: &str) -> Result<Self, ProbabilityError> {
        let number = |t: &str| t.trim().parse::<f64>().ok();
        let p = match text.strip_suffix('%') {
            Some(percent) => number(percent).map(|p| p / 100.0),
            None => number(text),
        };
        p.and_then(|p| Self::new(p).ok()).ok_or_else(|| ProbabilityError(text.to_owned()))
    }
}

/// Shows the plain number, which parses back to the same value.
impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published sequence of SplitMix64 for seed 1234567.
    #[test]
    fn known_sequence() {
        let mut r = Random::new(1_234_567);
        let first: Vec<u64> = (0..5).map(|_| r.bits()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn chances() {
        let mut r = Random::new(1);
        assert!((0..1000).all(|_| r.chance(Probability::ALWAYS)));
        assert!((0..1000).all(|_| !r.chance(Probability::NEVER)));
        let tenth = Probability::new(0.1).unwrap();
        let hits = (0..100_000).filter(|_| r.chance(tenth)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
    }

    #[test]
    fn bounds() {
        let mut r = Random::new(2);
        assert_eq!(r.below(0), 0);
        let mut seen = [0usize; 7];
        for _ in 0..7_000 {
            seen[r.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1_200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn parts_differ() {
        assert_ne!(Random::part(1, 1).bits(), Random::part(1, 2).bits());
        assert_ne!(Random::part(1, 1).bits(), Random::part(2, 1).bits());
        assert_eq!(Random::part(1, 1), Random::part(1, 1));
    }

    #[test]
    fn probability_texts() {
        assert_eq!("1%".parse::<Probability>().unwrap().get(), 0.01);
        assert_eq!("0.25".parse::<Probability>().unwrap().get(), 0.25);
        assert_eq!("100%".parse::<Probability>().unwrap(), Probability::ALWAYS);
        for wrong in ["", "%", "101%", "-1", "1.5", "NaN", "one"] {
            assert!(wrong.parse::<Probability>().is_err(), "{wrong}");
        }
        assert!(Probability::new(f64::NAN).is_err());
    }
}
