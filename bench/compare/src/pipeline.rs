//! Reads that a client begins while earlier ones are in flight, for loads.

use std::time::Instant;

use super::error::PeerError;

/// Client that can have several reads in flight, each of them named by the number of its slot.
pub trait Pipeline {
    /// Begins to read a line; false if the peer has no room for a further request at present. The request may stay
    /// unsent until the next [`take`](Self::take), which sends all that were begun together.
    fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError>;

    /// Sends what was begun, and waits until lines arrive, but not beyond `until`. Passes slot and bytes of each to
    /// `arrived`. Looks for arrivals at least once, also if `until` has passed.
    fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError>;
}
