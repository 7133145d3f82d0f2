//! Order of reads and writes in an exact proportion.

use std::fmt;
use std::str::FromStr;

/// Ratio of reads to writes, written like the mixes of Intel's Memory Latency Checker, for example 3:1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    reads: u32,
    writes: u32,
}

/// Error for a text that is no ratio.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no mix; write reads, writes, or so many reads to so many writes, for example 3:1 (up to 1000 of each)"
)]
pub struct MixError(String);

impl Mix {
    pub const READS: Mix = Mix { reads: 1, writes: 0 };

    /// Returns the share of reads among the accesses, 0 to 1.
    #[cfg(test)]
    pub(crate) fn read_share(self) -> f64 {
        f64::from(self.reads) / f64::from(self.reads + self.writes)
    }

    /// Returns the name in results, such as `3to1`, which has no character that file names or expressions
    /// reserve.
    pub fn label(self) -> String {
        self.to_string().replace(':', "to")
    }

    /// Returns a generator of reads and writes in this proportion.
    pub fn turns(self) -> Turns {
        Turns { mix: self, credit: 0 }
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Mix, MixError> {
        let mix = match text {
            "reads" | "all-reads" => Some(Mix::READS),
            "writes" | "all-writes" => Some(Mix { reads: 0, writes: 1 }),
            _ => text.split_once(':').and_then(|(reads, writes)| {
                Some(Mix { reads: reads.parse().ok()?, writes: writes.parse().ok()? })
            }),
        };
        mix.filter(|m| (1..=1000).contains(&m.reads.max(m.writes))).ok_or_else(|| MixError(text.to_owned()))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reads, self.writes) {
            (_, 0) => f.write_str("reads"),
            (0, _) => f.write_str("writes"),
            (reads, writes) => write!(f, "{reads}:{writes}"),
        }
    }
}

/// Generator of reads and writes: exact after each round of `reads + writes` accesses, and evenly spread
/// within a round.
#[derive(Clone, Debug)]
pub struct Turns {
    mix: Mix,
    /// Reads due but not yet issued, in units of 1 / (`reads` + `writes`) of a read.
    credit: u32,
}

impl Turns {
    #[inline]
    pub fn reads(&mut self) -> bool {
        let whole = self.mix.reads + self.mix.writes;
        self.credit += self.mix.reads;
        let reads = self.credit >= whole;
        if reads {
            self.credit -= whole;
        }
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_exact_in_every_round() {
        for (text, reads, writes) in
            [("reads", 1, 0), ("writes", 0, 1), ("1:1", 1, 1), ("2:1", 2, 1), ("3:1", 3, 1), ("5:7", 5, 7)]
        {
            let mix: Mix = text.parse().unwrap();
            assert_eq!(mix.to_string(), text);
            let mut turns = mix.turns();
            for round in 0..50 {
                let read = (0..reads + writes).filter(|_| turns.reads()).count();
                assert_eq!(read, reads, "{text}, round {round}");
            }
            assert!((mix.read_share() - reads as f64 / (reads + writes) as f64).abs() < 1e-12);
        }
    }

    #[test]
    fn turns_are_spread() {
        let mut turns = "1:1".parse::<Mix>().unwrap().turns();
        let drawn: Vec<bool> = (0..6).map(|_| turns.reads()).collect();
        assert_eq!(drawn, [false, true, false, true, false, true]);
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for text in ["", "0:0", "1", "a:b", "1:", ":1", "-1:2", "2000:1", "1:1:1"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }
}
