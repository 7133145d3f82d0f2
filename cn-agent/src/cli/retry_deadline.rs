//! Waits for a region that is about to be attached. A new region reaches its owner's agent after a moment,
//! and the agent's session with a memory node that it has not used before takes another moment. A command
//! that a user or a script runs within that time waits instead of failing.

use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of a command for a region to be attached and its memory nodes to be connected.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a command repeats a failed operation.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time until which a command repeats a failed operation.
#[derive(Debug, Clone, Copy)]
pub struct RetryDeadline(Instant);

impl RetryDeadline {
    /// Starts a wait of [`ATTACH_TIMEOUT`].
    pub fn begin() -> Self {
        Self(Instant::now() + ATTACH_TIMEOUT)
    }

    /// Sleeps for one interval. Returns `false` at once after the deadline.
    pub fn again(self) -> bool {
        let going_on = Instant::now() < self.0;
        if going_on {
            thread::sleep(POLL_INTERVAL);
        }
        going_on
    }
}
