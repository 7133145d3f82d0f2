//! Where faulting threads leave what they want, for whoever has the lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that can wait at once; further ones wait for a place.
const PLACES: usize = 128;

const FREE: u64 = 0;
const WRITE: u64 = 1 << 62;
const WANTED: u64 = 1 << 63;
/// The wish is the pager's; what is left is to see it fulfilled.
const TOLD: u64 = 1 << 61;
const SERVED: u64 = 1;
const LOST: u64 = 2;

/// A page that a thread wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The page.
    pub page: u32,
    /// Whether it writes to it.
    pub write: bool,
    /// Whether the pager knows.
    pub told: bool,
}

/// The places.
#[derive(Debug)]
pub struct Counter {
    places: [AtomicU64; PLACES],
    /// Places from here on were never taken: few threads, few looks.
    end: AtomicUsize,
}

impl Counter {
    pub fn new() -> Counter {
        Counter { places: [const { AtomicU64::new(FREE) }; PLACES], end: AtomicUsize::new(0) }
    }

    /// Takes a place, if one is free.
    #[inline]
    pub fn ask(&self, page: u32, write: bool) -> Option<usize> {
        let wish = WANTED | u64::from(page) << 8 | if write { WRITE } else { 0 };
        let taken = self.places.iter().position(|place| {
            place.load(Ordering::Relaxed) == FREE
                && place.compare_exchange(FREE, wish, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        if taken >= self.end.load(Ordering::Relaxed) {
            self.end.fetch_max(taken + 1, Ordering::Release);
        }
        Some(taken)
    }

    /// Whether anybody waits.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        let places = &self.places[..self.end.load(Ordering::Acquire)];
        places.iter().any(|place| place.load(Ordering::Relaxed) & WANTED != 0)
    }

    /// What became of the wish, once that is known; the place is free then.
    #[inline]
    pub fn take(&self, place: usize) -> Option<End> {
        let end = match self.places[place].load(Ordering::Acquire) {
            SERVED => End::Served,
            LOST => End::Lost,
            _ => return None,
        };
        self.places[place].store(FREE, Ordering::Release);
        Some(end)
    }

    /// Goes through all wishes, with the lock: what `serve` says of one is noted.
    #[inline]
    pub fn each(&self, mut serve: impl FnMut(Wish) -> Outcome) -> usize {
        let mut wishes = 0;
        for place in &self.places[..self.end.load(Ordering::Acquire)] {
            let found = place.load(Ordering::Acquire);
            if found & WANTED == 0 {
                continue;
            }
            wishes += 1;
            let wish = Wish { page: (found >> 8) as u32, write: found & WRITE != 0, told: found & TOLD != 0 };
            match serve(wish) {
                Outcome::Ended(End::Served) => place.store(SERVED, Ordering::Release),
                Outcome::Ended(End::Lost) => place.store(LOST, Ordering::Release),
                Outcome::Told => place.store(found | TOLD, Ordering::Release),
            }
        }
        wishes
    }
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to wait for.
    Ended(End),
    /// The pager knows.
    Told,
}

/// How a wish ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The thread can go on.
    Served,
    /// The page's data is lost.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_told_once_and_served_once() {
        let counter = Counter::new();
        let (a, b) = (counter.ask(7, false).unwrap(), counter.ask(u32::MAX - 1, true).unwrap());
        let mut seen = Vec::new();
        let told = counter.each(|wish| {
            seen.push(wish);
            Outcome::Told
        });
        assert_eq!(told, 2);
        assert!(counter.is_wanted());
        assert_eq!(seen[0], Wish { page: 7, write: false, told: false });
        assert_eq!(seen[1], Wish { page: u32::MAX - 1, write: true, told: false });
        let end = |wish: Wish| if wish.told { Outcome::Ended(End::Served) } else { Outcome::Told };
        counter.each(|wish| if wish.page == 7 { end(wish) } else { Outcome::Told });
        assert_eq!((counter.take(a), counter.take(b)), (Some(End::Served), None));
        assert_eq!(counter.each(|_| Outcome::Told), 1);
        counter.each(|_| Outcome::Ended(End::Lost));
        assert!(!counter.is_wanted());
        assert_eq!(counter.take(b), Some(End::Lost));
        let taken: Vec<_> = std::iter::from_fn(|| counter.ask(1, false)).collect();
        assert_eq!(taken.len(), PLACES);
    }
}
