//! Impairments: faults of the network in single frames, drawn from a seed.
//!
//! [`Faults`] has the frequency of each fault; [`Impairments`] draws one [`Impairment`] for each frame. The
//! fault injector and the simulated network both apply them, so that one description of a bad network means
//! the same in both. Each frame takes the same number of random numbers, whatever its impairment and length.
//! So the impairment of the n-th frame depends only on the seed and n.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cxloe_wire::random::{Probability, ProbabilityError, Random};

/// Kinds and frequencies of faults in one direction.
///
/// Written as `name=value`, separated by commas, in any order; an option left out has its default:
/// `drop=1%,dup=0.1%,reorder=0.5%,gap=3,hold=1ms,corrupt=0.01%,burst=0.1%/20%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// `drop`: a frame is lost, independently of the others.
    pub drop: Probability,
    /// `dup`: a frame arrives twice.
    pub duplicate: Probability,
    /// `reorder`: a frame is held back while later ones overtake it.
    pub reorder: Probability,
    /// `gap`: number of frames that overtake a held-back frame.
    pub gap: u32,
    /// `hold`: maximum time for which a frame is held back if too few frames follow.
    pub hold: Duration,
    /// `corrupt`: one to four neighbouring bits of a frame are inverted.
    pub corrupt: Probability,
    /// `burst`: losses that come in bursts.
    pub burst: Option<Burst>,
}

/// Losses in bursts, after Gilbert (1960) and Elliott (1963): a direction is in a good state or in a bad one.
/// It may change state at each frame, with the given probabilities, and loses frames only in the bad state.
///
/// Written `enter/leave` or `enter/leave/loss`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Probability, at each frame, of a change from the good state to the bad one.
    pub enter: Probability,
    /// Probability, at each frame, of a change back to the good state. The mean length of a burst is 1/leave
    /// frames.
    pub leave: Probability,
    /// Probability that a frame is lost in the bad state; 1 (Gilbert's model) if left out.
    pub loss: Probability,
}

impl Faults {
    /// No faults: every frame arrives once, in order and undamaged.
    pub const NONE: Faults = Faults {
        drop: Probability::NEVER,
        duplicate: Probability::NEVER,
        reorder: Probability::NEVER,
        gap: 3,
        hold: Duration::from_millis(1),
        corrupt: Probability::NEVER,
        burst: None,
    };

    /// Whether no fault can occur.
    pub fn is_none(&self) -> bool {
        let never = |p: Probability| p == Probability::NEVER;
        never(self.drop)
            && never(self.duplicate)
            && never(self.reorder)
            && never(self.corrupt)
            && self.burst.is_none_or(|b| never(b.enter) || never(b.loss))
    }

    /// Sets the option `name` to `value`. Returns `Ok(false)` if there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, FaultsError> {
        let wrong =
            |why: &'static str| FaultsError::Value { name: name.to_owned(), value: value.to_owned(), why };
        let p = || {
            value
                .parse::<Probability>()
                .map_err(|why| FaultsError::Probability { name: name.to_owned(), why })
        };
        match name {
            "drop" => self.drop = p()?,
            "dup" => self.duplicate = p()?,
            "reorder" => self.reorder = p()?,
            "corrupt" => self.corrupt = p()?,
            "gap" => self.gap = value.parse().map_err(|_| wrong("write a number of frames, as in gap=3"))?,
            "hold" => {
                self.hold = humantime::parse_duration(value)
                    .map_err(|_| wrong("write a time with its unit, as in hold=1ms"))?
            }
            "burst" => self.burst = Some(value.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults { drop, duplicate, reorder, gap, hold, corrupt, burst } = self;
        let hold = humantime::format_duration(*hold);
        write!(f, "drop={drop},dup={duplicate},reorder={reorder},gap={gap},hold={hold},corrupt={corrupt}")?;
        if let Some(Burst { enter, leave, loss }) = burst {
            write!(f, ",burst={enter}/{leave}/{loss}")?;
        }
        Ok(())
    }
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Faults::NONE;
        for (name, value) in pairs(text) {
            if !faults.set(name, value?)? {
                return Err(FaultsError::Name(name.to_owned()));
            }
        }
        Ok(faults)
    }
}

impl FromStr for Burst {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let p = |t: &str| t.parse().map_err(|why| FaultsError::Probability { name: "burst".to_owned(), why });
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [enter, leave] => Ok(Burst { enter: p(enter)?, leave: p(leave)?, loss: Probability::ALWAYS }),
            [enter, leave, loss] => Ok(Burst { enter: p(enter)?, leave: p(leave)?, loss: p(loss)? }),
            _ => Err(FaultsError::Value {
                name: "burst".to_owned(),
                value: text.to_owned(),
                why: "write enter/leave or enter/leave/loss, as in burst=0.1%/20%",
            }),
        }
    }
}

/// Splits a text into `name=value` parts; skips empty parts.
pub fn pairs(text: &str) -> impl Iterator<Item = (&str, Result<&str, FaultsError>)> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| match part.split_once('=') {
        Some((name, value)) => (name.trim(), Ok(value.trim())),
        None => (part, Err(FaultsError::NoValue(part.to_owned()))),
    })
}

/// Reason why a text does not describe faults; the message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// An unknown name.
    #[error(
        "no fault option named `{0}`: there are drop, dup, reorder, gap, hold, corrupt, burst; for a link also seed, dir"
    )]
    Name(String),
    /// A name without a value.
    #[error("fault option `{0}` has no value: write {0}=VALUE, as in drop=1%")]
    NoValue(String),
    /// The value is not a number from 0 to 1, or from 0% to 100%.
    #[error("fault option `{name}`: {why}")]
    Probability {
        /// Name of the option, as written.
        name: String,
        /// Reason why the value is not a probability.
        why: ProbabilityError,
    },
    /// The value is not a number, a time or a list of the required form.
    #[error("fault option `{name}` cannot be `{value}`: {why}")]
    Value {
        /// Name of the option, as written.
        name: String,
        /// Value of the option, as written.
        value: String,
        /// Values that the option permits, as text.
        why: &'static str,
    },
}

/// Impairment of one frame. A lost frame has no other impairment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Reason why the frame is lost; `None` if it arrives.
    pub lost: Option<Loss>,
    /// Bits of the frame to invert, if any.
    pub damage: Option<Damage>,
    /// Whether the frame is held back. Such a frame is never duplicated.
    pub delayed: bool,
    /// Whether the frame arrives twice; counted as two frames by the receiver.
    pub duplicated: bool,
}

/// Reason why a frame is lost; the two are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// An independent loss ([`Faults::drop`]).
    Single,
    /// A loss in the bad state of a [`Burst`].
    Burst,
}

/// Bits of a frame to invert: one to four neighbouring bits, which a CRC-32C always detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    first_bit: usize,
    bits: usize,
}

impl Damage {
    /// Inverts the bits; bits beyond the end of `frame` are left out.
    pub fn apply(self, frame: &mut [u8]) {
        for bit in self.first_bit..self.first_bit + self.bits {
            if let Some(byte) = frame.get_mut(bit / 8) {
                *byte ^= 0x80 >> (bit % 8);
            }
        }
    }
}

/// Draws the impairments of one direction's frames.
#[derive(Clone, Debug)]
pub struct Impairments {
    faults: Faults,
    random: Random,
    bad: bool,
}

impl Impairments {
    /// Makes a generator with the frequencies `faults`. A seeded `random` makes its impairments repeatable.
    pub fn new(faults: Faults, random: Random) -> Self {
        Impairments { faults, random, bad: false }
    }

    /// Frequencies that apply to the next frame.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Changes the frequencies from the next frame on. The sequence of random numbers continues.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        // The direction starts in the good state, even if the old frequencies had put it in the bad state.
        self.bad = false;
    }

    /// Draws the impairment of the next frame, which has `len` bytes.
    pub fn next(&mut self, len: usize) -> Impairment {
        let random = &mut self.random;
        let f = &self.faults;
        let single = random.chance(f.drop);
        let duplicated = random.chance(f.duplicate);
        let delayed = random.chance(f.reorder);
        let damaged = random.chance(f.corrupt);
        let place = random.bits();
        // Both numbers for bursts are always drawn, so that the option `burst` does not change the other
        // impairments.
        let burst = f.burst.unwrap_or(Burst {
            enter: Probability::NEVER,
            leave: Probability::ALWAYS,
            loss: Probability::NEVER,
        });
        let changes = random.chance(if self.bad { burst.leave } else { burst.enter });
        self.bad ^= changes;
        let in_burst = random.chance(burst.loss) && self.bad;

        let lost = match (single, in_burst) {
            (true, _) => Some(Loss::Single),
            (false, true) => Some(Loss::Burst),
            (false, false) => None,
        };
        if lost.is_some() {
            return Impairment { lost, ..Impairment::default() };
        }
        let damage = (damaged && len > 0).then(|| {
            let bits = 1 + (place & 3) as usize;
            let places = (len * 8 - bits + 1) as u128;
            Damage { first_bit: ((u128::from(place) * places) >> 64) as usize, bits }
        });
        Impairment { lost, damage, delayed, duplicated: duplicated && !delayed }
    }
}

/// Number of frames with each kind of impairment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FaultCounters {
    /// Frames for which an impairment was drawn, even if the draw resulted in none.
    pub frames: u64,
    /// Frames lost independently of each other ([`Loss::Single`]).
    pub dropped: u64,
    /// Frames lost in the bad state ([`Loss::Burst`]).
    pub dropped_in_burst: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back, so that others overtook them.
    pub reordered: u64,
    /// Frames with inverted bits, which a receiver must detect by the trailer.
    pub corrupted: u64,
    /// Frames that passed without an impairment drawn for them, because no buffer was free to hold back or
    /// duplicate them.
    pub forgone: u64,
}

impl FaultCounters {
    /// Counts a frame, and its loss or damage. Delays and duplicates are counted by the code that applies them.
    pub fn count(&mut self, impairment: &Impairment) {
        self.frames += 1;
        match impairment.lost {
            Some(Loss::Single) => self.dropped += 1,
            Some(Loss::Burst) => self.dropped_in_burst += 1,
            None => {}
        }
        self.corrupted += u64::from(impairment.damage.is_some());
    }

    /// Number of frames lost, for either reason.
    pub fn lost(&self) -> u64 {
        self.dropped + self.dropped_in_burst
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn faults(text: &str) -> Faults {
        text.parse().unwrap()
    }

    fn impairments(text: &str, seed: u64, n: usize) -> Vec<Impairment> {
        let mut impairments = Impairments::new(faults(text), Random::new(seed));
        (0..n).map(|_| impairments.next(89)).collect()
    }

    #[test]
    fn texts() {
        let f = faults("drop=1%, dup=0.1% ,reorder=0.5%,gap=7,hold=20us,corrupt=0.01%,burst=0.1%/20%");
        assert_eq!(f.drop.get(), 0.01);
        assert_eq!((f.gap, f.hold), (7, Duration::from_micros(20)));
        assert_eq!(f.burst.unwrap().loss, Probability::ALWAYS);
        assert_eq!(f.to_string().parse(), Ok(f));
        assert_eq!("".parse(), Ok(Faults::NONE));
        assert_eq!("drop".parse::<Faults>(), Err(FaultsError::NoValue("drop".into())));
        assert_eq!("loss=1%".parse::<Faults>(), Err(FaultsError::Name("loss".into())));
        for wrong in ["drop=2", "gap=-1", "hold=7", "burst=1%", "burst=1%/2%/3%/4%", "burst=a/b"] {
            assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_happens_without_faults() {
        assert!(Faults::NONE.is_none());
        assert!(impairments("", 3, 10_000).iter().all(|f| *f == Impairment::default()));
    }

    #[test]
    fn one_fault_draw_does_not_change_the_others() {
        let alone = impairments("dup=5%", 9, 5_000);
        let both = impairments("dup=5%,drop=5%,burst=1%/10%", 9, 5_000);
        assert!(both.iter().any(|f| f.lost.is_some()));
        for (a, b) in alone.iter().zip(&both).filter(|(_, b)| b.lost.is_none()) {
            assert_eq!(a.duplicated, b.duplicated);
        }
    }

    /// The mean length of a burst must be 1/leave, and the share of frames in bursts enter/(enter+leave).
    #[test]
    fn bursts_have_their_length() {
        let lost: Vec<bool> =
            impairments("burst=1%/25%", 5, 200_000).iter().map(|f| f.lost.is_some()).collect();
        let total = lost.iter().filter(|l| **l).count();
        let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
        let mean = total as f64 / bursts as f64;
        assert!((3.7..4.3).contains(&mean), "mean burst {mean}");
        let share = total as f64 / lost.len() as f64;
        assert!((0.034..0.043).contains(&share), "share {share}");
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_faults(seed: u64) {
            let text = "drop=3%,dup=3%,reorder=3%,corrupt=3%,burst=1%/20%/50%";
            prop_assert_eq!(impairments(text, seed, 500), impairments(text, seed, 500));
        }

        #[test]
        fn damage_changes_one_to_four_bits(seed: u64, len in 1usize..200) {
            let mut impairments = Impairments::new(faults("corrupt=1"), Random::new(seed));
            let mut frame = vec![0u8; len];
            impairments.next(len).damage.unwrap().apply(&mut frame);
            let changed: u32 = frame.iter().map(|b| b.count_ones()).sum();
            prop_assert!((1..=4).contains(&changed));
        }
    }
}
