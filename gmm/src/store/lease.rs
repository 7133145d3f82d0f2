//! Time for which a manager may use its store. A manager with its own store may use it without limit. A manager that
//! leads by a lease may use it until the lease could have ended, and checks that before each answer. The clock is
//! CLOCK_BOOTTIME, which includes suspension, so that a manager that was stopped or suspended finds its lease over when
//! it resumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine's start, including suspension.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux has this clock");
    Duration::from(now).as_millis().try_into().unwrap_or(u64::MAX)
}

/// The right to use a store for a limited time. Clones share the time.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// End of the lease, as a time of [`boot_ms`]; `None`: no end.
    until_ms: Option<Arc<AtomicU64>>,
}

impl Lease {
    /// A lease that never ends.
    pub fn for_ever() -> Self {
        Self::default()
    }

    /// A lease that ends at the time `until_ms` of [`boot_ms`], unless it is extended.
    pub(crate) fn until(until_ms: u64) -> Self {
        Self { until_ms: Some(Arc::new(AtomicU64::new(until_ms))) }
    }

    pub fn holds(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Time until the end of the lease; zero after it.
    pub fn remaining(&self) -> Duration {
        match &self.until_ms {
            None => Duration::MAX,
            Some(until) => Duration::from_millis(until.load(Ordering::SeqCst).saturating_sub(boot_ms())),
        }
    }

    /// Moves the end to `until_ms`. A lease that has ended is not extended: callers that saw its end have acted on it.
    ///
    /// Returns true if the lease holds.
    pub(crate) fn extend(&self, until_ms: u64) -> bool {
        if let Some(until) = &self.until_ms {
            let now_ms = boot_ms();
            let longer = |held: u64| (held > now_ms).then(|| held.max(until_ms));
            return until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer).is_ok();
        }
        true
    }

    /// Ends the lease at once, for all clones.
    pub(crate) fn end(&self) {
        if let Some(until) = &self.until_ms {
            until.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_stays_over() {
        let lease = Lease::until(boot_ms() + 60_000);
        let seen = lease.clone();
        assert!(seen.holds() && lease.extend(boot_ms() + 120_000));
        assert!(seen.remaining() > Duration::from_secs(60));
        assert!(
            lease.extend(boot_ms() + 1000) && seen.remaining() > Duration::from_secs(60),
            "never shortened"
        );
        lease.end();
        assert!(!seen.holds() && !lease.extend(boot_ms() + 1000) && !seen.holds());
    }

    #[test]
    fn without_a_lease_it_never_ends() {
        let lease = Lease::for_ever();
        lease.end();
        assert!(lease.holds() && lease.extend(0) && lease.holds());
    }
}
