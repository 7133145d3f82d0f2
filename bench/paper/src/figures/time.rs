//! Simulated time in whole picoseconds. At 100 Gbit/s a byte takes 80 ps, so that the time of a slot needs no
//! rounding.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Picoseconds since the start of a run, or between two times; at most 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ps(pub u64);

impl Ps {
    pub const ZERO: Ps = Ps(0);
    pub const NEVER: Ps = Ps(u64::MAX);

    /// Returns the time rounded down to a nanosecond, the unit in which the controller and the token bucket
    /// count.
    pub fn floor(self) -> Duration {
        Duration::from_nanos(self.0 / 1000)
    }
}

/// Converts a duration; [`Duration::MAX`] and durations beyond the range become [`Ps::NEVER`].
impl From<Duration> for Ps {
    fn from(time: Duration) -> Ps {
        Ps(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000))
    }
}

impl Add for Ps {
    type Output = Ps;

    fn add(self, other: Ps) -> Ps {
        Ps(self.0.saturating_add(other.0))
    }
}

impl Sub for Ps {
    type Output = Ps;

    fn sub(self, other: Ps) -> Ps {
        Ps(self.0 - other.0)
    }
}
