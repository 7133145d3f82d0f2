//! A pause of this end, which is no silence of the memory node (R8).

use core::time::Duration;

use crate::time::Time;

/// The last time in which the requester was not polled although it was due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    pub end: Time,
    /// Length of this pause and of earlier ones for which the same answers were due.
    pub length: Duration,
}

impl Pause {
    /// Length of the pauses, as far as is known, of a requester to which answers are due since `since`.
    pub fn beyond(&self, since: Time) -> Duration {
        if since <= self.end { self.length } else { Duration::ZERO }
    }
}
