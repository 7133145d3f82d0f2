//! The clock that shells read and hand down to what decides.

use cxloe_wire::time::Time;

/// The machine's monotonic clock, counted from the moment it was made. Reads the processor's time-stamp counter
/// where that is invariant, which takes a few nanoseconds, else asks the operating system.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    start: u64,
    /// Nanoseconds of 2^[`TICKS_LOG2`] ticks of the time-stamp counter, where that is what the clock counts; else 0.
    scale: u64,
}

/// Ticks over which the scale is taken: some minutes, so that it is exact to less than a nanosecond in a minute.
const TICKS_LOG2: u32 = 40;

impl Clock {
    /// A clock that reads 1 ns now (so that [`Time::ZERO`] is always in the past).
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        let counts_ticks = counter().is_some_and(|before| {
            let raw = clock.raw();
            counter().is_some_and(|after| (before..=after).contains(&raw))
        });
        let scale = if counts_ticks { clock.delta_as_nanos(0, 1 << TICKS_LOG2) } else { 0 };
        Clock { clock, start, scale }
    }

    /// The time now.
    // The clock of the crate is three calls; a line read looks at it twice.
    #[inline]
    pub fn now(&self) -> Time {
        match counter() {
            Some(ticks) if self.scale != 0 => {
                let ticks = u128::from(ticks.saturating_sub(self.start));
                Time(((ticks * u128::from(self.scale)) >> TICKS_LOG2) as u64 + 1)
            }
            _ => Time(self.clock.delta_as_nanos(self.start, self.clock.raw()) + 1),
        }
    }
}

/// The time-stamp counter, on processors whose counter is read here.
#[inline(always)]
fn counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which changes nothing.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// However it is read, it goes as the machine's other clock does, and never back.
    #[test]
    fn goes_as_the_systems_clock() {
        let ours = Clock::new();
        for clock in [ours.clone(), Clock { scale: 0, ..ours }] {
            let (outer, first) = (Instant::now(), clock.now());
            let inner = Instant::now();
            std::thread::sleep(Duration::from_millis(20));
            let least = inner.elapsed();
            let (last, most) = (clock.now(), outer.elapsed());
            let passed = last - first;
            assert!(
                passed >= least.mul_f64(0.99) && passed <= most.mul_f64(1.01),
                "{least:?} {passed:?} {most:?}"
            );
        }
    }
}
