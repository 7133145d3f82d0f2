//! Simulated time in whole picoseconds: at 100 Gbit/s a byte is 80 of them, so that no slot has to be rounded.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Picoseconds since the start of a run, or between two moments; up to 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ps(pub u64);

impl Ps {
    pub const ZERO: Ps = Ps(0);
    pub const NEVER: Ps = Ps(u64::MAX);

    /// The start of the nanosecond this lies in: the controller and the bucket count in those.
    pub fn floor(self) -> Duration {
        Duration::from_nanos(self.0 / 1000)
    }
}

/// [`Ps::NEVER`] where it is too long, [`Duration::MAX`] for one.
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
