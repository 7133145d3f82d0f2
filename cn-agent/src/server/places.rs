//! How many connections there may be at a time: of all users, and of one. Root and the agent's own user have room that
//! nobody else takes. Who has a connection too many waits for a place, and only so many wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::caller::Caller;

/// What a connection is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is there at all.
    Waits,
    /// Questions, each answered at once.
    Asks,
    /// It owns a mapped region, for as long as it likes.
    Owns,
}

/// How many there may be of a kind.
struct Limits {
    /// Of all users but root and the agent's.
    all: usize,
    /// Of one of them.
    one: usize,
    /// Of root and the agent's user, besides.
    kept: usize,
}

impl Kind {
    fn limits(self) -> Limits {
        match self {
            Kind::Waits => Limits { all: 4096, one: 1024, kept: 2048 },
            Kind::Asks => Limits { all: 128, one: 32, kept: 64 },
            Kind::Owns => Limits { all: 1024, one: 512, kept: 1024 },
        }
    }
}

/// The places taken, by kind and user; of root and the agent's user together under no user.
type Taken = BTreeMap<(Kind, Option<u32>), usize>;

/// The places there are; copies are one.
#[derive(Clone, Debug, Default)]
pub struct Places {
    taken: Arc<Mutex<Taken>>,
    given_back: Arc<Notify>,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    key: (Kind, Option<u32>),
}

impl Place {
    /// How many places for questions its user may have.
    pub fn limit(&self) -> usize {
        let Limits { one, kept, .. } = Kind::Asks.limits();
        if self.key.1.is_some() { one } else { kept }
    }
}

impl Places {
    /// A place for a connection of `caller`.
    ///
    /// # Errors
    /// How many there may be, where there is none left.
    pub fn take(&self, kind: Kind, caller: Caller) -> Result<Place, usize> {
        self.take_for(kind, caller.limited())
    }

    /// The same, as soon as there is one.
    pub async fn wait(&self, kind: Kind, caller: Caller) -> Place {
        loop {
            let given_back = self.given_back.notified();
            tokio::pin!(given_back);
            given_back.as_mut().enable();
            match self.take(kind, caller) {
                Ok(place) => return place,
                Err(_) => given_back.await,
            }
        }
    }

    /// The same for a user; none: who has all rights.
    fn take_for(&self, kind: Kind, user: Option<u32>) -> Result<Place, usize> {
        let Limits { all, one, kept } = kind.limits();
        let mut taken = self.lock();
        let of_user = taken.get(&(kind, user)).copied().unwrap_or(0);
        if user.is_none() && of_user >= kept {
            return Err(kept);
        }
        if user.is_some() {
            let others = taken.iter().filter(|((of, user), _)| *of == kind && user.is_some());
            if of_user >= one {
                return Err(one);
            }
            if others.map(|(_, count)| count).sum::<usize>() >= all {
                return Err(all);
            }
        }
        *taken.entry((kind, user)).or_default() += 1;
        Ok(Place { places: self.clone(), key: (kind, user) })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
            }
        }
        drop(taken);
        self.places.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_room_for_others_and_all_leave_room_for_root() {
        let (places, limits) = (Places::default(), Kind::Asks.limits());
        let take = |user| places.take_for(Kind::Asks, user);
        let mut first: Vec<Place> = (0..limits.one).map(|_| take(Some(1)).unwrap()).collect();
        assert_eq!(take(Some(1)).unwrap_err(), limits.one);
        assert!(take(Some(2)).is_ok());
        let others: Vec<Place> = (2..5)
            .flat_map(|user| (0..limits.one).map(move |_| user))
            .map(|user| take(Some(user)).unwrap())
            .collect();
        assert_eq!(others.len() + first.len(), limits.all);
        assert_eq!(take(Some(9)).unwrap_err(), limits.all, "there are too many users");
        let root: Vec<Place> = (0..limits.kept).map(|_| take(None).unwrap()).collect();
        assert_eq!(take(None).unwrap_err(), limits.kept);
        assert!(places.take_for(Kind::Owns, Some(1)).is_ok(), "another kind");
        first.pop();
        assert!(take(Some(9)).is_ok());
        drop((first, others, root));
        assert!(places.lock().is_empty());
    }
}
