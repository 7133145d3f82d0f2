//! Slots for clients, as many as the agent has ports. Each user may take a share of the slots, and some slots
//! are reserved for root and the agent's own user.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cxloe_cn_core::user_shares::{RESERVE, ShareReached, SharedResource, check};

type Counter = Arc<AtomicUsize>;

/// Reason for refusing a client a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// All slots open to this user are taken. Carries the total number of slots, free or not.
    Full(usize),
    /// The user has as many slots as one user may take.
    Share(ShareReached),
}

/// The slots of an agent; clones share the counts.
#[derive(Clone, Debug)]
pub struct ClientSlots {
    limit: usize,
    share: usize,
    all: Counter,
    /// Number of slots taken by users other than root and the agent's user.
    others: Counter,
    users: Arc<Mutex<BTreeMap<u32, Counter>>>,
}

/// Slot for one client. Dropping it frees the slot, on any thread and without waiting.
#[derive(Debug)]
pub struct ClientSlot([Option<Counter>; 3]);

impl ClientSlots {
    /// Returns `limit` slots, of which each user may take `share`.
    pub fn new(limit: usize, share: usize) -> ClientSlots {
        ClientSlots {
            limit,
            share,
            all: Counter::default(),
            others: Counter::default(),
            users: Arc::default(),
        }
    }

    /// Takes a slot for a client of `user`; `None` stands for root and the agent's user, who have no share.
    ///
    /// # Errors
    /// [`NoSlot::Share`] if the user has taken its share, [`NoSlot::Full`] if no slot is left for this user.
    pub fn take(&self, user: Option<u32>) -> Result<ClientSlot, NoSlot> {
        let full = NoSlot::Full(self.limit);
        let mut slot = ClientSlot([const { None }; 3]);
        // The check of the share and the increment of the count are one step under this lock. On a refusal, dropping
        // `slot` reverses the increments already made.
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(uid) = user {
            // Users without a client are removed, so that the map does not grow.
            users.retain(|_, taken| taken.load(Ordering::Relaxed) > 0);
            let taken = users.entry(uid).or_default();
            let had = taken.load(Ordering::Relaxed) as u64;
            check(SharedResource::Ports, user, self.share as u64, had, 1).map_err(NoSlot::Share)?;
            slot.0[0] = take(taken, usize::MAX);
            slot.0[1] = Some(take(&self.others, self.limit - self.limit / RESERVE).ok_or(full)?);
        }
        slot.0[2] = Some(take(&self.all, self.limit).ok_or(full)?);
        Ok(slot)
    }
}

fn take(taken: &Counter, limit: usize) -> Option<Counter> {
    let more = |count| (count < limit).then_some(count + 1);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
    Some(Arc::clone(taken))
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        for taken in self.0.iter().flatten() {
            taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_leave_places_to_each_other_and_to_root() {
        let slots = ClientSlots::new(16, 5);
        let mut first: Vec<_> = (0..5).map(|_| slots.take(Some(1)).unwrap()).collect();
        assert!(
            matches!(slots.take(Some(1)), Err(NoSlot::Share(reached)) if reached.uid == 1 && reached.limit == 5)
        );
        let others: Vec<_> = [2, 2, 2, 2, 2, 3, 3, 3, 3].map(|user| slots.take(Some(user)).unwrap()).into();
        // 14 of 16 slots are taken; the last two are reserved for root.
        assert_eq!(slots.take(Some(3)).unwrap_err(), NoSlot::Full(16));
        let root: Vec<_> = (0..2).map(|_| slots.take(None).unwrap()).collect();
        assert_eq!(slots.take(None).unwrap_err(), NoSlot::Full(16));
        first.pop();
        assert!(slots.take(Some(1)).is_ok() && slots.take(None).is_ok());
        drop((first, others, root));
        let all: Vec<_> = (0..16).map(|_| slots.take(None).unwrap()).collect();
        assert_eq!(slots.take(Some(4)).unwrap_err(), NoSlot::Full(16));
        drop(all);
        // A refusal must leave no count behind.
        assert_eq!([&slots.all, &slots.others].map(|taken| taken.load(Ordering::Relaxed)), [0, 0]);
        assert!(slots.users.lock().unwrap().values().all(|taken| taken.load(Ordering::Relaxed) == 0));
    }
}
