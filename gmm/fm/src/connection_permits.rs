//! Limit of simultaneous connections, and the choice of the connection that makes room for another one. The module does
//! no I/O; the time is an argument.
//!
//! Silent clients stay connected as long as there is room. If there is none, the connection that has been silent
//! longest is closed, if it has been silent for [`YIELD_AFTER`]. In any case, a client whose address has fewer
//! connections than another address replaces a connection of the address with the most connections. So neither clients
//! that never disconnect nor a client that opens connections at any rate can keep other clients out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxloe_permits::{Permits, Policy, Unused};
use tokio::sync::Notify;

/// Silence after which a client may be disconnected to make room for another.
pub const YIELD_AFTER: Duration = Duration::from_secs(10);

/// Permits of the open connections, by number of the connection. Each has a signal that makes the connection
/// close.
#[derive(Debug)]
pub struct ConnectionPermits(Permits<IpAddr, Arc<Notify>, Instant>);

impl ConnectionPermits {
    /// Creates permits for at most `max` connections, none of which is open.
    pub fn new(max: usize) -> Self {
        Self(Permits::new(Policy { crowds: true, ..Policy::at_most(max) }))
    }

    /// Takes a permit for a connection from `peer`. Returns the connection's number, and the signal on which
    /// the connection has to close. `None` if there is no room and no connection can be closed.
    pub fn take(&mut self, peer: IpAddr, now: Instant) -> Option<(u64, Arc<Notify>)> {
        let leave = Arc::new(Notify::new());
        let (number, evicted) = self.0.take(Some(peer), silent_since(now), Arc::clone(&leave), now).ok()?;
        if let Some((_, evicted)) = evicted {
            // `notify_one` stores the signal if the connection is not waiting for it at the moment.
            evicted.notify_one();
        }
        Some((number, leave))
    }

    /// Marks the connection as busy with a request: it does not count as silent.
    pub fn busy(&mut self, number: u64) {
        self.0.set(number, None);
    }

    /// Marks the connection's request as answered: its silence begins at `now`.
    pub fn silent(&mut self, number: u64, now: Instant) {
        self.0.set(number, silent_since(now));
    }

    pub fn leave(&mut self, number: u64) {
        self.0.remove(number);
    }
}

/// Returns the permit state of a connection whose silence begins at `now`.
fn silent_since(now: Instant) -> Option<Unused<Instant>> {
    Some(Unused { class: 0, rank: 0, from: now + YIELD_AFTER })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_notified(leave: &Notify) -> bool {
        let is_notified = leave.notified();
        let mut is_notified = std::pin::pin!(is_notified);
        is_notified.as_mut().enable()
    }

    #[test]
    fn the_longest_idle_client_is_displaced_after_a_minimum() {
        let (mut places, start) = (ConnectionPermits::new(2), Instant::now());
        let (first, leave_first) = places.take(peer(1), start).unwrap();
        let (_, leave_second) = places.take(peer(1), start + Duration::from_secs(1)).unwrap();
        assert!(
            places.take(peer(1), start + Duration::from_secs(2)).is_none(),
            "neither was silent for long"
        );
        places.busy(first);
        places.silent(first, start + Duration::from_secs(3));
        assert!(places.take(peer(1), start + YIELD_AFTER).is_none());
        let later = start + Duration::from_secs(1) + YIELD_AFTER;
        let (third, _) = places.take(peer(1), later).expect("the second has been silent for long");
        assert!(is_notified(&leave_second) && !is_notified(&leave_first));
        places.busy(first);
        places.busy(third);
        assert!(places.take(peer(1), later + 9 * YIELD_AFTER).is_none(), "both are being answered");
        places.leave(third);
        assert!(places.take(peer(1), later).is_some());
    }

    #[test]
    fn who_has_fewer_connections_takes_a_place_from_who_has_most() {
        let (mut places, now) = (ConnectionPermits::new(4), Instant::now());
        let (_, leave_other) = places.take(peer(2), now).unwrap();
        let crowd: Vec<_> = (0..3).map(|_| places.take(peer(1), now).unwrap()).collect();
        assert!(places.take(peer(1), now).is_none());
        assert!(places.take(peer(3), now).is_some());
        assert_eq!(crowd.iter().filter(|(_, leave)| is_notified(leave)).count(), 1);
        assert!(!is_notified(&leave_other));
        assert!(places.take(peer(2), now).is_none(), "two and two are no crowd");
    }
}
