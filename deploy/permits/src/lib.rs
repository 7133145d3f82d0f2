//! # cxloe-permits: limits on connections, and the order of eviction
//!
//! Every server of a fabric limits the number of connections, in all and of each peer. Every open connection
//! has a permit. A connection in use keeps its permit; an unused connection yields its permit to a new one.
//! The connection of the lowest class yields first, within a class that of the lowest rank, then the one that
//! has been unused for longest. If no connection yields, the new one is refused.
//!
//! ```text
//!   a new connection --> Permits::take --> an id, and the connection that leaves for it; or the limit that is reached
//!   a change of use  --> Permits::set ---> in use, or unused from a time on
//! ```
//!
//! Used by the manager's and the daemons' HTTP, the FM API, the agent's socket, and the agent's block devices. Nothing
//! here does I/O; times are passed in.

use std::collections::{BTreeMap, BTreeSet};

/// Limits of the connections of a server, and the rule by which connections yield.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub all: usize,
    pub each: usize,
    /// True if an unused connection yields even before it is due ([`Unused::from`]), when no other connection yields.
    pub early: bool,
    /// True if a peer with the most connections gives up an unused one, due or not, to a peer with fewer connections.
    pub crowds: bool,
}

impl Policy {
    /// Policy for at most `all` connections: an unused connection yields to a new one only if it is due
    /// ([`Unused::from`]).
    pub fn at_most(all: usize) -> Policy {
        Policy { all, each: usize::MAX, early: false, crowds: false }
    }
}

/// State of an unused connection, by which the next one to yield to a new connection is chosen: the lowest class, then
/// the lowest rank, then the earliest due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unused<T> {
    /// Connections of a lower class yield first, due or not.
    pub class: u8,
    /// Within a class, due connections of a lower rank yield first.
    pub rank: u8,
    /// Time from which the connection is due: it may then yield whatever [`Policy::early`] is.
    pub from: T,
}

#[derive(Debug)]
struct Permit<P, E, T> {
    /// Peer whose number of connections is limited; `None`: only the limit of all connections applies.
    peer: Option<P>,
    /// State of an unused connection; `None`: the connection is in use.
    unused: Option<Unused<T>>,
    end: E,
}

/// Id of a new connection, with id and handle of the connection that was removed to make room for it.
pub type Admitted<E> = (u64, Option<(u64, E)>);

/// Refusal of a connection because a limit is reached.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<E> {
    /// Limit that is reached, in connections.
    pub limit: usize,
    pub end: E,
}

/// All connections of a server: `P` is a peer, `E` the handle that ends a connection, `T` a time.
#[derive(Debug)]
pub struct Permits<P, E, T> {
    policy: Policy,
    next: u64,
    all: BTreeMap<u64, Permit<P, E, T>>,
    /// Ids of unused connections, in order of due time, by class and rank.
    unused: BTreeMap<(u8, u8), BTreeSet<(T, u64)>>,
    peers: BTreeMap<P, BTreeSet<u64>>,
}

impl<P: Ord + Clone, E, T: Ord + Copy> Permits<P, E, T> {
    pub fn new(policy: Policy) -> Self {
        let (all, unused, peers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { policy, next: 0, all, unused, peers }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn has(&self, id: u64) -> bool {
        self.all.contains_key(&id)
    }

    /// Peer of the connection `id`, if the connection has a permit.
    pub fn peer(&self, id: u64) -> Option<&P> {
        self.all.get(&id)?.peer.as_ref()
    }

    pub fn ends(&self) -> impl Iterator<Item = &E> {
        self.all.values().map(|permit| &permit.end)
    }

    /// Whether a connection of a peer below its limit would be admitted at `now`.
    pub fn has_room(&self, now: T) -> bool {
        self.all.len() < self.policy.all || self.least(now).is_some()
    }

    /// Admits a connection; `peer` is `None` if only the limit of all connections applies to it. Returns its id, and
    /// the connection that was removed to make room for it.
    ///
    /// # Errors
    /// A limit is reached, and no connection that counts in this limit yields.
    pub fn take(
        &mut self,
        peer: Option<P>,
        unused: Option<Unused<T>>,
        end: E,
        now: T,
    ) -> Result<Admitted<E>, Full<E>> {
        let of_peer = peer.as_ref().and_then(|peer| self.peers.get(peer));
        let (limit, leaver) = match of_peer.filter(|ids| ids.len() >= self.policy.each) {
            // A peer at its own limit gives up one of its own connections, never one of another peer.
            Some(ids) => (self.policy.each, Some(self.least_of(ids, now))),
            None if self.all.len() >= self.policy.all => {
                let in_crowd = || self.least_in_crowd(of_peer.map_or(0, BTreeSet::len));
                let crowd = self.policy.crowds.then(in_crowd).flatten();
                (self.policy.all, Some(crowd.or_else(|| self.least(now))))
            }
            None => (self.policy.all, None),
        };
        let evicted = match leaver {
            None => None,
            Some(None) => return Err(Full { limit, end }),
            Some(Some(id)) => self.remove(id).map(|end| (id, end)),
        };
        self.next += 1;
        let id = self.next;
        if let Some(peer) = peer.clone() {
            self.peers.entry(peer).or_default().insert(id);
        }
        self.all.insert(id, Permit { peer, unused: None, end });
        self.set(id, unused);
        Ok((id, evicted))
    }

    /// Records that a connection is in use (`None`) or unused; without effect if the connection has left.
    pub fn set(&mut self, id: u64, unused: Option<Unused<T>>) {
        let Some(permit) = self.all.get_mut(&id) else { return };
        if let Some(Unused { class, rank, from }) = std::mem::replace(&mut permit.unused, unused)
            && let Some(same) = self.unused.get_mut(&(class, rank))
        {
            same.remove(&(from, id));
        }
        if let Some(Unused { class, rank, from }) = unused {
            self.unused.entry((class, rank)).or_default().insert((from, id));
        }
    }

    /// State of an unused connection; `None` if the connection is in use or has left.
    pub fn unused(&self, id: u64) -> Option<Unused<T>> {
        self.all.get(&id)?.unused
    }

    /// Removes the connection that yields first. Returns its id and handle.
    pub fn evict(&mut self, now: T) -> Option<(u64, E)> {
        let id = self.least(now)?;
        self.remove(id).map(|end| (id, end))
    }

    /// Removes the unused connections of a rank, in every class, that became due at `from` or earlier; returns their
    /// ids and handles.
    pub fn expire(&mut self, rank: u8, from: T) -> Vec<(u64, E)> {
        let of_rank = self.unused.iter().filter(|((_, other), _)| *other == rank);
        let over = of_rank.flat_map(|(_, same)| same.iter().take_while(|(due, _)| *due <= from));
        let over: Vec<u64> = over.map(|(_, id)| *id).collect();
        over.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }

    /// Removes a connection that ended; returns its handle.
    pub fn remove(&mut self, id: u64) -> Option<E> {
        self.set(id, None);
        let permit = self.all.remove(&id)?;
        if let Some(peer) = permit.peer
            && let Some(ids) = self.peers.get_mut(&peer)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.peers.remove(&peer);
            }
        }
        Some(permit.end)
    }

    /// Returns the connection that yields first: the first one that is due, by class and rank. With [`Policy::early`],
    /// an unused connection of a lower class comes before it, due or not. The search takes one look-up for each class
    /// and rank, however many connections there are.
    fn least(&self, now: T) -> Option<u64> {
        let firsts = self.unused.iter().filter_map(|((class, _), same)| Some((*class, *same.first()?)));
        let mut early = None;
        for (class, (from, id)) in firsts {
            // `early` is of a lower class, so it yields first, even though it is not due.
            if early.is_some_and(|(of_class, _)| of_class != class) {
                break;
            }
            if from <= now {
                return Some(id);
            }
            if self.policy.early {
                early.get_or_insert((class, id));
            }
        }
        early.map(|(_, id)| id)
    }

    /// Connection among `ids` that yields first.
    fn least_of(&self, ids: &BTreeSet<u64>, now: T) -> Option<u64> {
        let unused = ids.iter().filter_map(|id| Some((self.all.get(id)?.unused?, *id)));
        let may = unused.filter(|(unused, _)| self.policy.early || unused.from <= now);
        may.min_by_key(|(unused, id)| (unused.class, unused.from > now, *unused, *id)).map(|(_, id)| id)
    }

    /// Returns the connection that yields first among those of the peers with the most connections. `own` is the number
    /// of connections of the peer that requests another one; `None` if one more would give this peer at least as many
    /// as those have.
    fn least_in_crowd(&self, own: usize) -> Option<u64> {
        let most = self.peers.values().map(BTreeSet::len).max().filter(|most| own + 1 < *most)?;
        let crowded = self.peers.values().filter(|ids| ids.len() == most).flatten();
        let unused = crowded.filter_map(|id| Some((self.all.get(id)?.unused?, *id)));
        unused.min().map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused(class: u8, rank: u8, from: u64) -> Option<Unused<u64>> {
        Some(Unused { class, rank, from })
    }

    /// Admits a connection of `peer`; returns the handle of the connection that was removed to make room for it.
    fn take(
        permits: &mut Permits<u8, &'static str, u64>,
        peer: u8,
        unused: Option<Unused<u64>>,
        end: &'static str,
        now: u64,
    ) -> Result<Option<&'static str>, usize> {
        let taken = permits.take(Some(peer), unused, end, now);
        taken.map(|(_, evicted)| evicted.map(|(_, end)| end)).map_err(|full| full.limit)
    }

    #[test]
    fn the_lowest_class_goes_first_then_the_lowest_rank_then_the_longest_unused() {
        let mut permits = Permits::new(Policy::at_most(5));
        for (end, standing) in [
            ("in use", None),
            ("high class", unused(1, 0, 0)),
            ("high rank", unused(0, 1, 1)),
            ("short", unused(0, 0, 9)),
            ("long", unused(0, 0, 2)),
        ] {
            assert_eq!(take(&mut permits, 1, standing, end, 0), Ok(None));
        }
        for expected in ["long", "short", "high rank", "high class"] {
            assert!(permits.has_room(10));
            assert_eq!(take(&mut permits, 1, None, "new", 10), Ok(Some(expected)));
        }
        assert_eq!(take(&mut permits, 1, None, "new", 10), Err(5), "all are in use");
        assert!(!permits.has_room(10));
        assert_eq!((permits.count(), permits.ends().filter(|end| **end == "new").count()), (5, 4));
    }

    #[test]
    fn a_connection_yields_when_it_is_due_and_earlier_only_if_it_may_and_no_other_does() {
        for early in [false, true] {
            let mut permits = Permits::new(Policy { early, ..Policy::at_most(2) });
            assert_eq!(take(&mut permits, 1, unused(0, 0, 20), "not due", 0), Ok(None));
            assert_eq!(take(&mut permits, 1, unused(0, 1, 10), "due", 0), Ok(None));
            assert_eq!(take(&mut permits, 1, None, "in use", 10), Ok(Some("due")));
            let expected = if early { Ok(Some("not due")) } else { Err(2) };
            assert_eq!(permits.has_room(10), early);
            assert_eq!(take(&mut permits, 1, None, "in use", 10), expected);
        }
        let mut permits = Permits::new(Policy { early: true, ..Policy::at_most(2) });
        take(&mut permits, 1, unused(1, 0, 0), "due, of a higher class", 0).unwrap();
        take(&mut permits, 1, unused(0, 0, 9), "not due", 0).unwrap();
        assert_eq!(take(&mut permits, 1, None, "new", 5), Ok(Some("not due")));
    }

    #[test]
    fn a_peer_at_its_limit_makes_room_for_itself_alone() {
        let mut permits = Permits::new(Policy { each: 2, early: true, ..Policy::at_most(9) });
        take(&mut permits, 2, unused(0, 0, 0), "other", 0).unwrap();
        take(&mut permits, 1, None, "in use", 0).unwrap();
        take(&mut permits, 1, unused(0, 0, 7), "own", 0).unwrap();
        assert_eq!(take(&mut permits, 1, None, "new", 1), Ok(Some("own")));
        assert_eq!(take(&mut permits, 1, None, "new", 1), Err(2));
        assert!(permits.take(None, None, "without a limit of its own", 1).is_ok());
        let (id, _) = permits.take(Some(3), None, "third", 1).unwrap();
        assert_eq!((permits.peer(id), permits.has(id)), (Some(&3), true));
        assert_eq!((permits.remove(id), permits.remove(id), permits.peer(id)), (Some("third"), None, None));
    }

    #[test]
    fn a_crowd_yields_to_a_peer_with_fewer_connections() {
        let mut permits = Permits::new(Policy { crowds: true, ..Policy::at_most(4) });
        take(&mut permits, 2, unused(0, 0, 50), "other", 0).unwrap();
        for _ in 0..3 {
            take(&mut permits, 1, unused(0, 0, 60), "crowd", 0).unwrap();
        }
        assert_eq!(take(&mut permits, 1, None, "crowd", 1), Err(4));
        assert_eq!(take(&mut permits, 3, unused(0, 0, 70), "few", 1), Ok(Some("crowd")));
        assert_eq!(take(&mut permits, 2, None, "other", 1), Err(4), "two and two are no crowd");
        assert_eq!(take(&mut permits, 2, None, "other", 55), Ok(Some("other")), "it is due");
    }

    #[test]
    fn what_is_unused_for_too_long_is_removed_in_every_class() {
        let mut permits = Permits::new(Policy::at_most(9));
        for (end, standing) in [
            ("long", unused(0, 0, 1)),
            ("known, long", unused(1, 0, 2)),
            ("short", unused(0, 0, 8)),
            ("other rank", unused(0, 1, 0)),
            ("in use", None),
        ] {
            take(&mut permits, 1, standing, end, 0).unwrap();
        }
        let expired: Vec<_> = permits.expire(0, 2).into_iter().map(|(_, end)| end).collect();
        assert_eq!(expired, ["long", "known, long"]);
        assert_eq!(permits.count(), 3);
        assert_eq!(permits.evict(9).map(|(_, end)| end), Some("short"));
        let (id, _) = permits.take(None, None, "now unused", 9).unwrap();
        permits.set(id, unused(0, 0, 9));
        permits.set(id, None);
        assert_eq!(permits.evict(9).map(|(_, end)| end), Some("other rank"));
        assert_eq!(permits.evict(9), None, "the rest is in use");
    }
}
