//! The manager's clock: milliseconds since the Unix epoch at the start of the process, continued by the monotonic
//! clock. A correction of the wall clock thus does not make nodes appear silent, and does not turn time back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock that never goes back, whatever happens to the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch_ms: u64,
    started: Instant,
}

impl Clock {
    /// Starts a clock at the present time of the wall clock, which is not read again.
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { epoch_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), started: Instant::now() }
    }

    /// Returns this clock, moved forward to `at_ms` if it is behind.
    pub fn not_before(self, at_ms: u64) -> Self {
        Self { epoch_ms: self.epoch_ms.max(at_ms), ..self }
    }

    /// Present time, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.epoch_ms.saturating_add(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
