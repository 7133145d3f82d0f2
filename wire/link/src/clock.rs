//! The clock that shells read and hand down to what decides.

use cxloe_wire::time::Time;

/// The machine's monotonic clock, counted from the moment it was made. Reads the processor's time-stamp counter
/// where that is invariant, which takes a few nanoseconds, else asks the operating system.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    start: u64,
}

impl Clock {
    /// A clock that reads 1 ns now (so that [`Time::ZERO`] is always in the past).
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Clock { clock, start }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Time {
        Time(self.clock.delta_as_nanos(self.start, self.clock.raw()) + 1)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
