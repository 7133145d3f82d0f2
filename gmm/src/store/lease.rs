//! How long a manager may speak for its store. One that has the store to itself may for ever; one that leads by a lease
//! may until the lease could have ended, and has to look before each answer. The clock is the one that goes on while the
//! machine sleeps, so that a manager that was stopped or suspended finds its time over when it wakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, sleep included.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux has this clock");
    Duration::from(now).as_millis().try_into().unwrap_or(u64::MAX)
}

/// The right to speak for a store. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// Over at this time of [`boot_ms`]; `None`: never.
    until_ms: Option<Arc<AtomicU64>>,
}

impl Lease {
    /// One that never ends.
    pub fn for_ever() -> Self {
        Self::default()
    }

    /// One that ends at `until_ms` of [`boot_ms`] unless it is extended.
    pub(crate) fn until(until_ms: u64) -> Self {
        Self { until_ms: Some(Arc::new(AtomicU64::new(until_ms))) }
    }

    /// Whether it holds at this moment.
    pub fn holds(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long it still holds; zero when it is over.
    pub fn remaining(&self) -> Duration {
        match &self.until_ms {
            None => Duration::MAX,
            Some(until) => Duration::from_millis(until.load(Ordering::SeqCst).saturating_sub(boot_ms())),
        }
    }

    /// Makes it end at `until_ms`. One that is over stays over: whoever saw that has acted on it.
    ///
    /// Returns whether it holds.
    pub(crate) fn extend(&self, until_ms: u64) -> bool {
        if let Some(until) = &self.until_ms {
            let now_ms = boot_ms();
            let longer = |held: u64| (held > now_ms).then(|| held.max(until_ms));
            return until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer).is_ok();
        }
        true
    }

    /// Ends it now.
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
