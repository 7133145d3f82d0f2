//! Who is connected, and who has to go when there is no room: decided without I/O.
//!
//! A connection is receiving while a request is on its way in, busy while the manager works on one (which includes waiting
//! for news, what nodes do most of the time), and idle in between. Whoever takes too long to send a request goes; and where
//! there is no room for a new connection, somebody goes who is not busy: a node that is served is never among them. Where
//! nodes show certificates, others may have a part of all connections busy at a time, so that there is always one to be
//! had for a node.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

/// How long a request may take to arrive, head and body.
pub const RECEIVE_MAX: Duration = Duration::from_secs(10);
/// Who has been receiving for less than this only goes where nobody else does.
const GRACE_MS: u64 = 1000;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// A request is on its way in, or the first one is waited for.
    Receiving,
    /// Nothing is asked at present.
    Idle,
    /// The manager is at it.
    Busy,
}

#[derive(Debug)]
struct Connection<K> {
    peer: Option<IpAddr>,
    /// Who is at the other end has shown who it is: it goes after all that have not.
    known: bool,
    phase: Phase,
    since_ms: u64,
    /// A request of it is being answered that counts among those of strangers.
    counts: bool,
    end: K,
}

/// The connections there are; `K` is what ends one.
#[derive(Debug)]
pub struct Connections<K> {
    total_max: usize,
    per_peer_max: usize,
    /// Requests of strangers that may be answered at a time.
    strangers_max: usize,
    strangers: usize,
    next: u64,
    all: HashMap<u64, Connection<K>>,
    /// Those that are not busy, by phase and time: of strangers, and of those that are known.
    by_age: [BTreeSet<(Phase, u64, u64)>; 2],
    peers: HashMap<IpAddr, BTreeSet<u64>>,
}

/// What becomes of a new connection.
#[derive(Debug)]
pub enum Admission<K> {
    /// It may stay, under this number; whoever is given here has to go for it.
    Stays(u64, Option<K>),
    /// Its peer has as many as one may have, and all of them are busy.
    TooMany(K),
}

impl<K> Connections<K> {
    /// None yet, and at most so many; of one peer, at most `per_peer_max`.
    pub fn new(total_max: usize, per_peer_max: usize) -> Self {
        let (all, peers) = (HashMap::new(), HashMap::new());
        let (strangers_max, strangers) = (usize::MAX, 0);
        let by_age = Default::default();
        Self { total_max, per_peer_max, strangers_max, strangers, next: 0, all, by_age, peers }
    }

    /// A quarter of the connections is for those that show who they are, and for those that are about to.
    pub fn with_room_for_known(mut self) -> Self {
        self.strangers_max = self.total_max - self.total_max.div_ceil(4);
        self
    }

    /// A request begins that is to be answered. Whether it may be: too many of strangers are being answered, else.
    pub fn begins(&mut self, id: u64) -> bool {
        let Some(connection) = self.all.get_mut(&id) else { return true };
        if connection.known || connection.peer.is_none() || connection.counts {
            return true;
        }
        if self.strangers >= self.strangers_max {
            return false;
        }
        connection.counts = true;
        self.strangers += 1;
        true
    }

    /// Whether there is room for one more, if need be in somebody's place.
    pub fn has_room(&self) -> bool {
        self.all.len() < self.total_max || self.by_age.iter().any(|some| !some.is_empty())
    }

    /// Somebody connected; `peer` is none for who is on this machine beyond doubt. To be asked only if there is
    /// [room](Self::has_room).
    pub fn admit(&mut self, peer: Option<IpAddr>, end: K, now_ms: u64) -> Admission<K> {
        let peer = peer.map(network);
        let mut evicted = None;
        let own = peer.and_then(|peer| self.peers.get(&peer)).filter(|own| own.len() >= self.per_peer_max);
        if let Some(own) = own {
            // Whoever shares an address with a node does not push the node out.
            let age = |id: &u64| Some((self.all.get(id)?.known, self.age_of(*id)?));
            let Some((_, (.., id))) = own.iter().filter_map(age).min() else {
                return Admission::TooMany(end);
            };
            evicted = self.remove(id);
        } else if self.all.len() >= self.total_max {
            evicted = self.evict(now_ms);
        }
        self.next += 1;
        let id = self.next;
        if let Some(peer) = peer {
            self.peers.entry(peer).or_default().insert(id);
        }
        let phase = Phase::Receiving;
        let connection = Connection { peer, known: false, phase, since_ms: now_ms, counts: false, end };
        self.all.insert(id, connection);
        self.by_age[0].insert((Phase::Receiving, now_ms, id));
        Admission::Stays(id, evicted)
    }

    /// Takes out who can go most easily: who has been sending a request for long, then who has been idle for longest, then
    /// who has just begun to send.
    pub fn evict(&mut self, now_ms: u64) -> Option<K> {
        let id = self.by_age.iter().find_map(|by_age| {
            let receiving = by_age.first().filter(|(phase, since, _)| {
                *phase == Phase::Receiving && since.saturating_add(GRACE_MS) <= now_ms
            });
            let idle = || by_age.range((Phase::Idle, 0, 0)..).next();
            receiving.or_else(idle).or(by_age.first()).map(|(.., id)| *id)
        })?;
        self.remove(id)
    }

    /// Takes out those that take too long to send a request.
    pub fn expire(&mut self, now_ms: u64) -> Vec<K> {
        let limit = RECEIVE_MAX.as_millis() as u64;
        let mut expired = Vec::new();
        for kind in 0..self.by_age.len() {
            while let Some((Phase::Receiving, since, id)) = self.by_age[kind].first().copied()
                && since.saturating_add(limit) <= now_ms
            {
                expired.extend(self.remove(id));
            }
        }
        expired
    }

    /// A request begins to arrive.
    pub fn receives(&mut self, id: u64, now_ms: u64) {
        self.becomes(id, Phase::Receiving, now_ms);
    }

    /// A request is there as a whole.
    pub fn works(&mut self, id: u64, now_ms: u64) {
        self.becomes(id, Phase::Busy, now_ms);
    }

    /// A request is answered.
    pub fn rests(&mut self, id: u64, now_ms: u64) {
        self.becomes(id, Phase::Idle, now_ms);
        if let Some(connection) = self.all.get_mut(&id) {
            self.strangers -= usize::from(std::mem::take(&mut connection.counts));
        }
    }

    fn becomes(&mut self, id: u64, phase: Phase, now_ms: u64) {
        let Some(connection) = self.all.get_mut(&id) else { return };
        let by_age = &mut self.by_age[usize::from(connection.known)];
        by_age.remove(&(connection.phase, connection.since_ms, id));
        (connection.phase, connection.since_ms) = (phase, now_ms);
        if phase != Phase::Busy {
            by_age.insert((phase, now_ms, id));
        }
    }

    /// Who is at the other end has shown who it is.
    pub fn is_known(&mut self, id: u64) {
        let Some(connection) = self.all.get_mut(&id).filter(|connection| !connection.known) else { return };
        connection.known = true;
        let age = (connection.phase, connection.since_ms, id);
        if self.by_age[0].remove(&age) {
            self.by_age[1].insert(age);
        }
    }

    fn age_of(&self, id: u64) -> Option<(Phase, u64, u64)> {
        let connection = self.all.get(&id).filter(|connection| connection.phase != Phase::Busy)?;
        Some((connection.phase, connection.since_ms, id))
    }

    /// A connection ended. Returns what would have ended it.
    pub fn remove(&mut self, id: u64) -> Option<K> {
        let connection = self.all.remove(&id)?;
        self.strangers -= usize::from(connection.counts);
        self.by_age[usize::from(connection.known)].remove(&(connection.phase, connection.since_ms, id));
        if let Some(peer) = connection.peer
            && let Some(own) = self.peers.get_mut(&peer)
        {
            own.remove(&id);
            if own.is_empty() {
                self.peers.remove(&peer);
            }
        }
        Some(connection.end)
    }
}

/// Who counts as one peer: an address; of IPv6, a network, whose addresses anybody in it can take.
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
        match connections.admit(from, key, now_ms) {
            Admission::Stays(id, evicted) => (id, evicted),
            Admission::TooMany(key) => panic!("{key} was turned away"),
        }
    }

    #[test]
    fn half_sent_requests_take_nobodys_place_who_is_served() {
        let mut connections = Connections::new(100, 60);
        // Nodes that wait for news.
        let nodes: Vec<u64> = (0..30).map(|node| stays(&mut connections, peer(1), node, 0).0).collect();
        nodes.iter().for_each(|id| connections.works(*id, 1));
        // Strangers from many addresses, who never finish a request.
        let mut gone = Vec::new();
        for stranger in 0..8300_u32 {
            assert!(connections.has_room());
            let (_, evicted) = stays(&mut connections, peer(2 + (stranger % 200) as u8), 1000 + stranger, 10);
            gone.extend(evicted);
        }
        assert!(gone.iter().all(|key| *key >= 1000), "a node had to go");
        assert_eq!(connections.all.len(), 100);
        // Nodes come and go on all the time.
        for round in 0..50 {
            let now_ms = 2000 + round * 10;
            for id in &nodes {
                connections.rests(*id, now_ms);
                connections.receives(*id, now_ms);
                connections.works(*id, now_ms + 1);
            }
            let (id, evicted) = stays(&mut connections, peer(1), 500, now_ms);
            assert!(evicted.is_none_or(|key| key >= 1000), "round {round}: {evicted:?}");
            let (_, evicted) = stays(&mut connections, peer(9), 1000, now_ms);
            assert!(evicted.is_some_and(|key| key >= 1000), "round {round}: {evicted:?}");
            connections.works(id, now_ms + 1);
            connections.remove(id);
        }
        // And the rest is gone when its time is over.
        let expired = connections.expire(3000 + RECEIVE_MAX.as_millis() as u64);
        assert!(expired.iter().all(|key| *key >= 1000));
        assert_eq!(connections.all.len(), nodes.len());
    }

    #[test]
    fn one_peer_has_its_share_and_makes_room_for_itself() {
        let mut connections = Connections::new(100, 3);
        let first = stays(&mut connections, peer(1), 1, 0).0;
        let second = stays(&mut connections, peer(1), 2, 1).0;
        let third = stays(&mut connections, peer(1), 3, 2).0;
        connections.works(first, 3);
        connections.rests(second, 4);
        connections.works(third, 4);
        let (fourth, evicted) = stays(&mut connections, peer(1), 4, 5);
        assert_eq!(evicted, Some(2), "who was idle goes");
        connections.works(fourth, 6);
        assert!(matches!(connections.admit(peer(1), 5, 7), Admission::TooMany(5)), "all are busy");
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
        let mut connections = Connections::new(8, 8).with_room_for_known();
        let stays = |connections: &mut Connections<u32>, last, key| stays(connections, peer(last), key, 0).0;
        let strangers: Vec<u64> = (0..7).map(|key| stays(&mut connections, 1, key)).collect();
        let busy = strangers.iter().filter(|id| {
            let may = connections.begins(**id);
            if may {
                connections.works(**id, 1);
            }
            may
        });
        assert_eq!(busy.count(), 6, "however many there are");
        // A node is there, is known after its handshake, and is answered.
        for key in 100..102 {
            assert!(connections.has_room());
            let node = stays(&mut connections, 2, key);
            connections.is_known(node);
            assert!(connections.begins(node));
            connections.works(node, 2);
        }
        assert!(connections.begins(strangers[0]), "it has begun already");
        connections.rests(strangers[0], 3);
        let next = stays(&mut connections, 3, 200);
        assert!(connections.begins(next), "one stranger is answered, and another may ask");
        assert_eq!(connections.strangers, 6, "the one that rested went for it");
        for id in strangers {
            connections.remove(id);
        }
        connections.remove(next);
        assert_eq!(connections.strangers, 0);
    }

    #[test]
    fn a_stranger_at_a_nodes_address_does_not_push_it_out() {
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
        connections.works(busy, 0);
        assert!(connections.expire(u64::MAX).is_empty());
        let full: Vec<u64> = (2..4).map(|last| stays(&mut connections, peer(last), 9, 0).0).collect();
        full.iter().for_each(|id| connections.works(*id, 1));
        assert!(!connections.has_room());
    }
}
