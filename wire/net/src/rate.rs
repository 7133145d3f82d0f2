//! Rates of a wire, and the time that a frame takes at a rate.
//!
//! At 100 Gbit/s a short frame takes 6.7 ns. So times are kept in picoseconds here: rounding to nanoseconds
//! would be off by several percent. [`RatedWire`] models a wire that carries one frame after the other.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use cxloe_wire::frame::{MIN_FRAME, WIRE_OVERHEAD};
use cxloe_wire::time::Time;

/// Rate of a wire in bits per second, including preambles and gaps, like the speed of an Ethernet port.
/// Written `100Mbit/s`, `10Gbit`, `125MB/s` (decimal prefixes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(NonZeroU64);

/// Error: the text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rate: write a number above 0 and its unit, for example 100Mbit/s, 25Gbit/s or 125MB/s"
)]
pub struct RateError(String);

impl Rate {
    /// Makes a rate of `bits` per second; `None` for 0.
    pub const fn bits_per_s(bits: u64) -> Option<Rate> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Rate(bits)),
            None => None,
        }
    }

    /// Makes a rate of `n` Gbit/s.
    ///
    /// # Panics
    /// If `n` is 0.
    pub const fn gbit_per_s(n: u32) -> Rate {
        match Self::bits_per_s(n as u64 * 1_000_000_000) {
            Some(rate) => rate,
            None => panic!("a rate of 0 carries nothing"),
        }
    }

    /// Returns the rate in bits per second.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Time in picoseconds that `bytes` bytes take on the wire.
    pub(crate) const fn picoseconds(self, bytes: usize) -> u64 {
        (bytes as u128 * 8_000_000_000_000 / self.0.get() as u128) as u64
    }
}

cxloe_wire::spelled!(Rate);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.get();
        let (unit, name) = match bits {
            b if b.is_multiple_of(1_000_000_000) => (1_000_000_000, "Gbit/s"),
            b if b.is_multiple_of(1_000_000) => (1_000_000, "Mbit/s"),
            b if b.is_multiple_of(1_000) => (1_000, "kbit/s"),
            _ => (1, "bit/s"),
        };
        write!(f, "{}{name}", bits / unit)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = || RateError(text.to_owned());
        let plain = text.trim().strip_suffix("/s").unwrap_or(text.trim());
        let digits = plain.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
        let (number, unit) = plain.split_at(digits);
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit = unit.trim_start();
        let (prefix, scale) = match unit.strip_suffix("bit") {
            Some(prefix) => (prefix, 1.0),
            None => (unit.strip_suffix('B').ok_or_else(error)?, 8.0),
        };
        let prefix = match prefix {
            "" => 1.0,
            "k" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            "T" => 1e12,
            _ => return Err(error()),
        };
        Rate::bits_per_s((number * scale * prefix) as u64).ok_or_else(error)
    }
}

/// Model of a wire that carries one frame after the other at a fixed rate.
#[derive(Clone, Debug)]
pub struct RatedWire {
    rate: Rate,
    free_ps: u64,
}

impl RatedWire {
    /// Makes a wire that can carry its first frame at once.
    pub fn new(rate: Rate) -> Self {
        RatedWire { rate, free_ps: 0 }
    }

    /// Rate at which this wire carries frames.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Queues a frame of `len` bytes on the wire. Returns the time at which its last bit has been sent.
    pub fn carry(&mut self, len: usize, now: Time) -> Time {
        // Ethernet pads short frames.
        let bytes = len.max(MIN_FRAME) + WIRE_OVERHEAD;
        self.free_ps = self.free_ps.max(now.0.saturating_mul(1_000)) + self.rate.picoseconds(bytes);
        Time(self.free_ps.div_ceil(1_000))
    }

    /// Time from `now` until all queued frames have been sent.
    pub fn backlog(&self, now: Time) -> Duration {
        Time(self.free_ps.div_ceil(1_000)).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, bits) in [
            ("100Mbit/s", 100_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("125MB/s", 1_000_000_000),
            ("1 kbit/s", 1_000),
            ("9600bit/s", 9_600),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().get(), bits, "{text}");
        }
        for wrong in ["", "0Gbit/s", "10", "Gbit/s", "1Xbit/s", "-1Gbit/s", "1..2Gbit", "Gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        for text in ["100Gbit/s", "100Mbit/s", "1500kbit/s", "9600bit/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }

    /// A frame of 60 bytes and 24 bytes of overhead takes 6.72 ns at 100 Gbit/s. A hundred such frames must
    /// take 672 ns, not 700.
    #[test]
    fn a_line_adds_up_below_a_nanosecond() {
        let mut line = RatedWire::new(Rate::gbit_per_s(100));
        assert_eq!(line.carry(10, Time(1_000)), Time(1_007));
        let mut last = Time::ZERO;
        for _ in 1..100 {
            last = line.carry(60, Time(1_000));
        }
        assert_eq!(last, Time(1_672));
        assert_eq!(line.backlog(Time(1_500)), Duration::from_nanos(172));
        assert_eq!(line.backlog(Time(2_000)), Duration::ZERO);
        assert_eq!(line.carry(60, Time(5_000)), Time(5_007));
    }
}
