//! Limits of concurrent connections: of all users together, and of each user. Root and the agent's own user have a
//! reserve. A connection beyond a limit waits, and the number of waiting connections is limited, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_permits::{Permits, Policy};
use tokio::sync::Notify;

use super::caller::Caller;

/// State of a connection; each state has limits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// The connection waits for a request, or for admission.
    Waits,
    /// The connection sends requests that are answered at once.
    Asks,
    /// The connection owns a mapped region, for an unlimited time.
    Owns,
}

struct ConnectionLimits {
    /// Limit for all users together, without root and the agent's user.
    all: usize,
    /// Limit for each user other than root and the agent's user.
    one: usize,
    /// Separate limit for root and the agent's user together.
    kept: usize,
}

impl ConnectionState {
    fn limits(self) -> ConnectionLimits {
        match self {
            ConnectionState::Waits => ConnectionLimits { all: 4096, one: 1024, kept: 2048 },
            ConnectionState::Asks => ConnectionLimits { all: 128, one: 32, kept: 64 },
            ConnectionState::Owns => ConnectionLimits { all: 1024, one: 512, kept: 1024 },
        }
    }
}

/// Permits of connections in one state: `kept` for root and the agent's user, `others` for all other users.
#[derive(Debug)]
struct ConnectionCounts {
    others: Permits<u32, (), ()>,
    kept: Permits<u32, (), ()>,
}

impl ConnectionCounts {
    fn new(kind: ConnectionState) -> ConnectionCounts {
        let ConnectionLimits { all, one, kept } = kind.limits();
        let others = Permits::new(Policy { each: one, ..Policy::at_most(all) });
        ConnectionCounts { others, kept: Permits::new(Policy::at_most(kept)) }
    }

    /// Permits among which connections of `user` count; `None` is root or the agent's user.
    fn of(&mut self, user: Option<u32>) -> &mut Permits<u32, (), ()> {
        if user.is_some() { &mut self.others } else { &mut self.kept }
    }
}

/// Counts of connections by state; clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionPermits {
    taken: Arc<Mutex<BTreeMap<ConnectionState, ConnectionCounts>>>,
    given_back: Arc<Notify>,
}

/// Permit of one counted connection; the connection is no longer counted when this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    places: ConnectionPermits,
    kind: ConnectionState,
    user: Option<u32>,
    id: u64,
}

impl ConnectionPermit {
    /// Limit of connections in state [`ConnectionState::Asks`] for the user of this connection.
    pub fn limit(&self) -> usize {
        let ConnectionLimits { one, kept, .. } = ConnectionState::Asks.limits();
        if self.user.is_some() { one } else { kept }
    }
}

impl ConnectionPermits {
    /// Counts a connection of `caller` in state `kind`.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn take(&self, kind: ConnectionState, caller: Caller) -> Result<ConnectionPermit, usize> {
        self.take_for(kind, caller.limited())
    }

    /// Like [`take`](Self::take), but waits until the count is below the limit.
    pub async fn wait(&self, kind: ConnectionState, caller: Caller) -> ConnectionPermit {
        loop {
            let given_back = self.given_back.notified();
            tokio::pin!(given_back);
            // Registered before the attempt to take a permit, so that a permit returned between the two wakes this
            // task.
            given_back.as_mut().enable();
            match self.take(kind, caller) {
                Ok(place) => return place,
                Err(_) => given_back.await,
            }
        }
    }

    /// Counts a connection of `user`; `None` is root or the agent's user.
    fn take_for(&self, kind: ConnectionState, user: Option<u32>) -> Result<ConnectionPermit, usize> {
        let mut taken = self.lock();
        let permits = taken.entry(kind).or_insert_with(|| ConnectionCounts::new(kind)).of(user);
        let (id, _) = permits.take(user, None, (), ()).map_err(|full| full.limit)?;
        Ok(ConnectionPermit { places: self.clone(), kind, user, id })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionState, ConnectionCounts>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(taken) = self.places.lock().get_mut(&self.kind) {
            taken.of(self.user).remove(self.id);
        }
        self.places.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_room_for_others_and_all_leave_room_for_root() {
        let (places, limits) = (ConnectionPermits::default(), ConnectionState::Asks.limits());
        let take = |user| places.take_for(ConnectionState::Asks, user);
        let mut first: Vec<ConnectionPermit> = (0..limits.one).map(|_| take(Some(1)).unwrap()).collect();
        assert_eq!(take(Some(1)).unwrap_err(), limits.one);
        assert!(take(Some(2)).is_ok());
        let others: Vec<ConnectionPermit> = (2..5)
            .flat_map(|user| (0..limits.one).map(move |_| user))
            .map(|user| take(Some(user)).unwrap())
            .collect();
        assert_eq!(others.len() + first.len(), limits.all);
        assert_eq!(take(Some(9)).unwrap_err(), limits.all, "there are too many users");
        let root: Vec<ConnectionPermit> = (0..limits.kept).map(|_| take(None).unwrap()).collect();
        assert_eq!(take(None).unwrap_err(), limits.kept);
        assert!(places.take_for(ConnectionState::Owns, Some(1)).is_ok(), "another kind");
        first.pop();
        assert!(take(Some(9)).is_ok());
        drop((first, others, root));
        let left =
            places.lock().values().map(|counts| counts.others.count() + counts.kept.count()).sum::<usize>();
        assert_eq!(left, 0);
    }
}
