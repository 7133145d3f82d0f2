//! Time in the state machines: an argument of each call. No state machine reads a clock.
//!
//! The I/O code has a clock (`cxloe_link::Clock`) and passes `clock.now()`; the simulation passes virtual
//! time.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since an arbitrary start; monotonic, and in practice never wraps (584 years).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The arbitrary start; no clock returns an earlier time.
    pub const ZERO: Time = Time(0);

    /// Time that is `ms` milliseconds after the start.
    pub const fn from_millis(ms: u64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }

    /// Whole milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
