//! A pause of this process, as on a suspended host. It must not count as silence of the memory node (R8).

use core::time::Duration;

use crate::time::Time;

/// Last time span in which the requester was not polled although it was due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    pub end: Time,
    /// Total length of this pause and of earlier ones during which the same answers were due.
    pub length: Duration,
}

impl Pause {
    /// Returns the length of the pauses that fall into the wait for answers due since `since`.
    pub fn beyond(&self, since: Time) -> Duration {
        if since <= self.end { self.length } else { Duration::ZERO }
    }
}
