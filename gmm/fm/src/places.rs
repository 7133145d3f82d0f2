//! The connections there may be at a time, and who has to leave when there is no room for another: without I/O, told the
//! time.
//!
//! A client that is silent is not in anybody's way as long as there is room. When there is none, the one that has been
//! silent longest makes room, if it has been for [`YIELD_AFTER`]; and whoever comes from an address with fewer connections
//! than the address that has most takes a place from there in any case. So neither clients that forget to leave nor one
//! that opens connections as fast as it can lock the others out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a client has to be silent before another one may take its place.
pub const YIELD_AFTER: Duration = Duration::from_secs(10);

/// One connection's place.
#[derive(Debug)]
struct Place {
    peer: IpAddr,
    /// Since when nothing was asked of it that was not answered; `None`: it is being answered.
    silent_since: Option<Instant>,
    leave: Arc<Notify>,
}

/// The places of all connections.
#[derive(Debug)]
pub struct Places {
    max: usize,
    next: u64,
    taken: BTreeMap<u64, Place>,
}

impl Places {
    /// As many places, all free.
    pub fn new(max: usize) -> Self {
        Self { max, next: 0, taken: BTreeMap::new() }
    }

    /// Takes a place for a connection from `peer`: its number, and what tells it to leave. `None`: there is no room, and
    /// nobody has to make any.
    pub fn take(&mut self, peer: IpAddr, now: Instant) -> Option<(u64, Arc<Notify>)> {
        if self.taken.len() >= self.max {
            let leaver = self.who_leaves(peer, now)?;
            // A permit is kept for who is not waiting for it right now.
            self.taken.remove(&leaver)?.leave.notify_one();
        }
        let (number, leave) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.taken.insert(number, Place { peer, silent_since: Some(now), leave: Arc::clone(&leave) });
        Some((number, leave))
    }

    fn who_leaves(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let mut of_peer: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for place in self.taken.values() {
            *of_peer.entry(place.peer).or_default() += 1;
        }
        let most = of_peer.values().copied().max()?;
        let fewer = of_peer.get(&peer).copied().unwrap_or(0) + 1 < most;
        let silent = self.taken.iter().filter_map(|(number, place)| {
            let since = place.silent_since?;
            let crowded = fewer && of_peer.get(&place.peer) == Some(&most);
            let may = crowded || now.saturating_duration_since(since) >= YIELD_AFTER;
            may.then_some(((!crowded, since), *number))
        });
        silent.min().map(|(_, number)| number)
    }

    /// A request of this connection is being answered.
    pub fn busy(&mut self, number: u64) {
        self.set(number, None);
    }

    /// It was answered.
    pub fn silent(&mut self, number: u64, now: Instant) {
        self.set(number, Some(now));
    }

    fn set(&mut self, number: u64, silent_since: Option<Instant>) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.silent_since = silent_since;
        }
    }

    /// The connection is closed.
    pub fn leave(&mut self, number: u64) {
        self.taken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn told(leave: &Notify) -> bool {
        let told = leave.notified();
        let mut told = std::pin::pin!(told);
        told.as_mut().enable()
    }

    #[test]
    fn the_one_silent_longest_makes_room_once_it_has_been_for_a_while() {
        let (mut places, start) = (Places::new(2), Instant::now());
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
        assert!(told(&leave_second) && !told(&leave_first));
        places.busy(first);
        places.busy(third);
        assert!(places.take(peer(1), later + 9 * YIELD_AFTER).is_none(), "both are being answered");
        places.leave(third);
        assert!(places.take(peer(1), later).is_some());
    }

    #[test]
    fn who_has_fewer_connections_takes_a_place_from_who_has_most() {
        let (mut places, now) = (Places::new(4), Instant::now());
        let (_, leave_other) = places.take(peer(2), now).unwrap();
        let crowd: Vec<_> = (0..3).map(|_| places.take(peer(1), now).unwrap()).collect();
        assert!(places.take(peer(1), now).is_none());
        assert!(places.take(peer(3), now).is_some());
        assert_eq!(crowd.iter().filter(|(_, leave)| told(leave)).count(), 1);
        assert!(!told(&leave_other));
        assert!(places.take(peer(2), now).is_none(), "two and two are no crowd");
    }
}
