//! Admission and eviction of connections, decided without I/O.
//!
//! A connection is receiving while a request arrives, busy while the server works on a request (which
//! includes a long poll, the usual state of a node's connection), and idle in between. A request that takes
//! too long to arrive ends its connection. If there is no room for a new connection, a connection that is not
//! busy is evicted; a node that is being served never is. If nodes show certificates, only a part of all
//! connections may be busy without a certificate, so that room for a node always remains.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use cxloe_permits::{Permits, Policy, Unused};

/// Maximum time for a request to arrive, head and body.
pub const RECEIVE_MAX: Duration = Duration::from_secs(10);
/// Time in milliseconds for which a receiving connection is evicted only if no other can be.
const GRACE_MS: u64 = 1000;
/// Classes of connections: those of peers without a certificate are evicted first.
const STRANGER: u8 = 0;
const KNOWN: u8 = 1;
/// Ranks of connections that are not busy.
const RECEIVING: u8 = 0;
const IDLE: u8 = 1;

/// Connections of a server; `K` is a handle that ends one connection. Times are in milliseconds.
#[derive(Debug)]
pub struct Connections<K> {
    permits: Permits<IpAddr, K, u64>,
    /// Ids of the connections whose peer has shown a certificate.
    known: BTreeSet<u64>,
    /// Ids of busy connections without a certificate, and their maximum number.
    strangers: BTreeSet<u64>,
    strangers_max: usize,
}

impl<K> Connections<K> {
    /// Makes an empty set for at most `total_max` connections, of which one peer may have `per_peer_max`.
    pub fn new(total_max: usize, per_peer_max: usize) -> Self {
        let policy = Policy { each: per_peer_max, early: true, ..Policy::at_most(total_max) };
        let (known, strangers) = (BTreeSet::new(), BTreeSet::new());
        Self { permits: Permits::new(policy), known, strangers, strangers_max: usize::MAX }
    }

    /// Reserves a quarter of the `total_max` connections for peers that show a certificate or are in the TLS handshake.
    pub fn with_room_for_known(mut self, total_max: usize) -> Self {
        self.strangers_max = total_max - total_max.div_ceil(4);
        self
    }

    /// Counts a request that begins. Returns false if the request must be refused, because too many requests of peers
    /// without a certificate are being answered.
    pub fn begins(&mut self, id: u64) -> bool {
        // The limit does not apply to processes of this machine, to peers with a certificate, and to requests that are
        // counted already.
        if self.permits.peer(id).is_none() || self.known.contains(&id) || self.strangers.contains(&id) {
            return true;
        }
        self.strangers.len() < self.strangers_max && self.strangers.insert(id)
    }

    /// True if one more connection can be admitted, if need be by an eviction.
    pub fn has_room(&self) -> bool {
        // Any time will do: if no other connection can be evicted, one that is within its grace time is.
        self.permits.has_room(0)
    }

    /// Admits a connection; `peer` is `None` for a process of this machine. Returns the id of the connection, and the
    /// handle of the connection evicted for it.
    ///
    /// # Errors
    /// Returns the handle `end` if the limit of this peer or of all peers is reached, and all connections
    /// that count towards that limit are busy.
    pub fn admit(&mut self, peer: Option<IpAddr>, end: K, now_ms: u64) -> Result<(u64, Option<K>), K> {
        let receiving = Unused { class: STRANGER, rank: RECEIVING, from: now_ms.saturating_add(GRACE_MS) };
        let taken = self.permits.take(peer.map(network), Some(receiving), end, now_ms);
        let (id, evicted) = taken.map_err(|full| full.end)?;
        Ok((id, evicted.map(|evicted| self.forget(evicted))))
    }

    /// Removes the connection that is to be evicted: one that has been receiving for long, else the one that has been
    /// idle for longest, else one that has just begun to receive.
    pub fn evict(&mut self, now_ms: u64) -> Option<K> {
        let evicted = self.permits.evict(now_ms)?;
        Some(self.forget(evicted))
    }

    /// Removes the connections whose request takes too long to arrive; returns their handles.
    pub fn expire(&mut self, now_ms: u64) -> Vec<K> {
        // A receiving connection is due `GRACE_MS` after its request began to arrive.
        let due = (now_ms.saturating_add(GRACE_MS)).checked_sub(RECEIVE_MAX.as_millis() as u64);
        let expired = due.map(|due| self.permits.expire(RECEIVING, due)).unwrap_or_default();
        expired.into_iter().map(|expired| self.forget(expired)).collect()
    }

    /// Marks a connection as receiving: a request begins to arrive.
    pub fn receives(&mut self, id: u64, now_ms: u64) {
        self.becomes(id, RECEIVING, now_ms.saturating_add(GRACE_MS));
    }

    /// Marks a connection as busy: its request has arrived completely.
    pub fn works(&mut self, id: u64) {
        self.permits.set(id, None);
    }

    /// Marks a connection as idle: its request is answered.
    pub fn rests(&mut self, id: u64, now_ms: u64) {
        self.becomes(id, IDLE, now_ms);
        self.strangers.remove(&id);
    }

    fn becomes(&mut self, id: u64, rank: u8, from: u64) {
        let class = if self.known.contains(&id) { KNOWN } else { STRANGER };
        self.permits.set(id, Some(Unused { class, rank, from }));
    }

    /// Records that the peer has shown a certificate.
    pub fn is_known(&mut self, id: u64) {
        if self.permits.has(id) && self.known.insert(id) {
            let unused = self.permits.unused(id);
            self.permits.set(id, unused.map(|unused| Unused { class: KNOWN, ..unused }));
        }
    }

    /// Removes a connection that has ended, and returns the handle of the connection.
    pub fn remove(&mut self, id: u64) -> Option<K> {
        let end = self.permits.remove(id)?;
        Some(self.forget((id, end)))
    }

    fn forget(&mut self, (id, end): (u64, K)) -> K {
        self.known.remove(&id);
        self.strangers.remove(&id);
        end
    }
}

/// Key of a peer: its IPv4 address, or the /64 of its IPv6 address, since a host can take any address in it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    fn stays(
        connections: &mut Connections<u32>,
        from: Option<IpAddr>,
        key: u32,
        now_ms: u64,
    ) -> (u64, Option<u32>) {
        connections.admit(from, key, now_ms).unwrap_or_else(|key| panic!("{key} was turned away"))
    }

    #[test]
    fn half_sent_requests_take_nobodys_place_who_is_served() {
        let mut connections = Connections::new(100, 60);
        // Connections of nodes, each busy with a long poll.
        let nodes: Vec<u64> = (0..30).map(|node| stays(&mut connections, peer(1), node, 0).0).collect();
        nodes.iter().for_each(|id| connections.works(*id));
        // Connections from many addresses that never finish a request.
        let mut gone = Vec::new();
        for stranger in 0..8300_u32 {
            assert!(connections.has_room());
            let (_, evicted) = stays(&mut connections, peer(2 + (stranger % 200) as u8), 1000 + stranger, 10);
            gone.extend(evicted);
        }
        assert!(gone.iter().all(|key| *key >= 1000), "a node had to go");
        assert_eq!(connections.permits.count(), 100);
        // Nodes connect and disconnect at the same time.
        for round in 0..50 {
            let now_ms = 2000 + round * 10;
            for id in &nodes {
                connections.rests(*id, now_ms);
                connections.receives(*id, now_ms);
                connections.works(*id);
            }
            let (id, evicted) = stays(&mut connections, peer(1), 500, now_ms);
            assert!(evicted.is_none_or(|key| key >= 1000), "round {round}: {evicted:?}");
            let (_, evicted) = stays(&mut connections, peer(9), 1000, now_ms);
            assert!(evicted.is_some_and(|key| key >= 1000), "round {round}: {evicted:?}");
            connections.works(id);
            connections.remove(id);
        }
        // All connections without a finished request expire.
        let expired = connections.expire(3000 + RECEIVE_MAX.as_millis() as u64);
        assert!(expired.iter().all(|key| *key >= 1000));
        assert_eq!(connections.permits.count(), nodes.len());
    }

    #[test]
    fn one_peer_has_its_share_and_makes_room_for_itself() {
        let mut connections = Connections::new(100, 3);
        let first = stays(&mut connections, peer(1), 1, 0).0;
        let second = stays(&mut connections, peer(1), 2, 1).0;
        let third = stays(&mut connections, peer(1), 3, 2).0;
        connections.works(first);
        connections.rests(second, 4);
        connections.works(third);
        let (fourth, evicted) = stays(&mut connections, peer(1), 4, 5);
        assert_eq!(evicted, Some(2), "who was idle goes");
        connections.works(fourth);
        assert_eq!(connections.admit(peer(1), 5, 7), Err(5), "all are busy");
        assert_eq!(stays(&mut connections, peer(2), 6, 8).1, None, "others are not concerned");
        assert_eq!(stays(&mut connections, None, 7, 8).1, None);
        connections.remove(first);
        assert_eq!(stays(&mut connections, peer(1), 8, 9).1, None);
        let six = |last: u16| Some(IpAddr::from([0x2001, 0xdb8, 0, 1, last, 0, 0, last]));
        for last in 0..3 {
            stays(&mut connections, six(last), 10, 10);
        }
        assert_eq!(stays(&mut connections, six(9), 11, 20).1, Some(10), "a network of IPv6 is one peer");
    }

    #[test]
    fn who_is_known_goes_after_all_strangers() {
        let mut connections = Connections::new(3, 3);
        let node = stays(&mut connections, peer(1), 1, 0).0;
        connections.is_known(node);
        connections.rests(node, 1);
        stays(&mut connections, peer(2), 2, 9000);
        stays(&mut connections, peer(3), 3, 9001);
        assert_eq!(connections.evict(9002), Some(2), "a stranger who has just come, and not an idle node");
        assert_eq!(connections.evict(9002), Some(3));
        connections.receives(node, 9003);
        assert_eq!(
            connections.expire(9003 + RECEIVE_MAX.as_millis() as u64),
            [1],
            "it takes too long all the same"
        );
        let node = stays(&mut connections, peer(1), 4, 0).0;
        connections.is_known(node);
        assert_eq!(connections.evict(0), Some(4), "there is nobody else");
    }

    #[test]
    fn busy_strangers_leave_room_for_nodes() {
        let mut connections = Connections::new(8, 8).with_room_for_known(8);
        let stays = |connections: &mut Connections<u32>, last, key| stays(connections, peer(last), key, 0).0;
        let strangers: Vec<u64> = (0..7).map(|key| stays(&mut connections, 1, key)).collect();
        let busy = strangers.iter().filter(|id| {
            let may = connections.begins(**id);
            if may {
                connections.works(**id);
            }
            may
        });
        assert_eq!(busy.count(), 6, "however many there are");
        // A node connects, shows its certificate in the handshake, and is answered.
        for key in 100..102 {
            assert!(connections.has_room());
            let node = stays(&mut connections, 2, key);
            connections.is_known(node);
            assert!(connections.begins(node));
            connections.works(node);
        }
        assert!(connections.begins(strangers[0]), "it has begun already");
        connections.rests(strangers[0], 3);
        let next = stays(&mut connections, 3, 200);
        assert!(connections.begins(next), "one stranger is answered, and another may ask");
        assert_eq!(connections.strangers.len(), 6, "the one that rested went for it");
        for id in strangers {
            connections.remove(id);
        }
        connections.remove(next);
        assert_eq!(connections.strangers.len(), 0);
    }

    #[test]
    fn a_stranger_at_a_nodes_address_does_not_displace_it() {
        let mut connections = Connections::new(100, 2);
        let node = stays(&mut connections, peer(1), 1, 0).0;
        connections.is_known(node);
        connections.rests(node, 1);
        stays(&mut connections, peer(1), 2, 500);
        assert_eq!(stays(&mut connections, peer(1), 3, 501).1, Some(2), "the stranger, who has just come");
    }

    #[test]
    fn who_goes_first() {
        let mut connections = Connections::new(3, 3);
        let idle = stays(&mut connections, peer(1), 1, 0).0;
        connections.rests(idle, 1);
        stays(&mut connections, peer(2), 2, 5000);
        stays(&mut connections, peer(3), 3, 5001);
        assert_eq!(connections.evict(5500), Some(1), "idle, for the others have just begun");
        assert_eq!(connections.evict(6500), Some(2), "who takes long");
        assert_eq!(connections.evict(5500), Some(3), "who has just begun, as there is nobody else");
        assert_eq!(connections.evict(9000), None);
        let busy = stays(&mut connections, peer(1), 1, 0).0;
        connections.works(busy);
        assert!(connections.expire(u64::MAX).is_empty());
        let full: Vec<u64> = (2..4).map(|last| stays(&mut connections, peer(last), 9, 0).0).collect();
        full.iter().for_each(|id| connections.works(*id));
        assert!(!connections.has_room());
    }
}
