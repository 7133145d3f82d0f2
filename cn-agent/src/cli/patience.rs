//! Waiting for what is about to be there. A region that was made a moment ago is with its owner's agent a moment later, and
//! the agent's session with a memory node it has not spoken to before a moment after that; a command that is typed, or run
//! by a script, in between waits for it instead of failing.

use std::thread;
use std::time::{Duration, Instant};

/// How long a command waits for a region to be attached and its memory nodes to be connected.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long is still waited.
#[derive(Debug, Clone, Copy)]
pub struct Patience(Instant);

impl Patience {
    /// From now on.
    pub fn begin() -> Self {
        Self(Instant::now() + ATTACH_TIMEOUT)
    }

    /// Waits a little. `false`, at once: long enough was waited.
    pub fn again(self) -> bool {
        let going_on = Instant::now() < self.0;
        if going_on {
            thread::sleep(POLL_INTERVAL);
        }
        going_on
    }
}
