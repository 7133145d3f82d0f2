//! Clock that I/O code reads; the state machines get the time as an argument.

use cxloe_wire::time::Time;

/// Monotonic clock, counted from its creation. Reads the processor's time-stamp counter if that runs at a
/// constant rate, which takes a few nanoseconds; otherwise the operating system's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    start: u64,
    /// Nanoseconds that 2^[`TICKS_LOG2`] ticks of the time-stamp counter take; 0 if the operating system's
    /// clock is used.
    scale: u64,
}

/// Base-2 logarithm of the number of ticks from which the scale is computed. So many ticks take some minutes, so that
/// the scale's error is below a nanosecond per minute.
const TICKS_LOG2: u32 = 40;

impl Clock {
    /// Makes a clock that starts at 1 ns, so that [`Time::ZERO`] is always in the past.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        // `quanta` uses the counter only if it is reliable. If it does, a raw value of `quanta` lies between two
        // readings of the counter.
        let counts_ticks = counter().is_some_and(|before| {
            let raw = clock.raw();
            counter().is_some_and(|after| (before..=after).contains(&raw))
        });
        let scale = if counts_ticks { clock.delta_as_nanos(0, 1 << TICKS_LOG2) } else { 0 };
        Clock { clock, start, scale }
    }

    /// Returns the current time, in nanoseconds since about the clock's creation.
    // `quanta::Clock::now` is not used, because it makes three nested calls, and each read of a line reads
    // the clock twice.
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

/// Reads the time-stamp counter. Returns `None` on processors for which that is not implemented.
#[inline(always)]
fn counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "an instruction reads the time-stamp counter")]
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

    /// The clock must advance like the operating system's clock.
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
