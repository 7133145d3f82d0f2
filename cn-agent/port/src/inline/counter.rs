//! Requests of faulting threads, stored in slots for the thread that holds the lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of threads that can wait at once; further threads wait for a slot.
const PLACES: usize = 128;

const FREE: u64 = 0;
const WRITE: u64 = 1 << 62;
const WANTED: u64 = 1 << 63;
/// Flag of a slot: the pager has the request, and has not ended it yet.
const ALREADY_WAITING: u64 = 1 << 61;
/// Bit position of the page number (32 bits) in a slot.
const PAGE: u32 = 8;
/// Bit position of the region's index (8 bits) in a slot.
const SPACE: u32 = 40;
const SERVED: u64 = 1;
const LOST: u64 = 2;

/// A page that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Index of the page's region.
    pub space: u8,
    /// Number of the page in the region.
    pub page: u32,
    pub write: bool,
    /// Whether the request has been passed to the pager already.
    pub already_waiting: bool,
}

/// Table of the requests of waiting threads.
#[derive(Debug)]
pub struct Counter {
    places: [AtomicU64; PLACES],
    /// Number of slots used so far: with few threads, few slots are scanned.
    end: AtomicUsize,
}

impl Counter {
    pub fn new() -> Counter {
        Counter { places: [const { AtomicU64::new(FREE) }; PLACES], end: AtomicUsize::new(0) }
    }

    /// Takes a slot for a request, if one is free.
    #[inline]
    pub fn ask(&self, space: u8, page: u32, write: bool) -> Option<usize> {
        let page_request = u64::from(space) << SPACE | u64::from(page) << PAGE;
        let page_request = WANTED | page_request | if write { WRITE } else { 0 };
        let taken = self.places.iter().position(|place| {
            place.load(Ordering::Relaxed) == FREE
                && place.compare_exchange(FREE, page_request, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        if taken >= self.end.load(Ordering::Relaxed) {
            self.end.fetch_max(taken + 1, Ordering::Release);
        }
        Some(taken)
    }

    #[inline]
    pub fn is_wanted(&self) -> bool {
        let places = &self.places[..self.end.load(Ordering::Acquire)];
        places.iter().any(|place| place.load(Ordering::Relaxed) & WANTED != 0)
    }

    /// Removes and returns the outcome of the request in slot `place`, if it has ended; frees the slot.
    #[inline]
    pub fn take(&self, place: usize) -> Option<PageRequestResult> {
        let end = match self.places[place].load(Ordering::Acquire) {
            SERVED => PageRequestResult::Served,
            LOST => PageRequestResult::Lost,
            _ => return None,
        };
        self.places[place].store(FREE, Ordering::Release);
        Some(end)
    }

    /// Passes all requests to `serve`, and records the states that `serve` returns. Returns the number of requests. The
    /// caller must hold the lock of the port.
    #[inline]
    pub fn each(&self, mut serve: impl FnMut(PageRequest) -> PageRequestState) -> usize {
        let mut wishes = 0;
        for place in &self.places[..self.end.load(Ordering::Acquire)] {
            let found = place.load(Ordering::Acquire);
            if found & WANTED == 0 {
                continue;
            }
            wishes += 1;
            let (space, page) = ((found >> SPACE) as u8, (found >> PAGE) as u32);
            let page_request = PageRequest {
                space,
                page,
                write: found & WRITE != 0,
                already_waiting: found & ALREADY_WAITING != 0,
            };
            match serve(page_request) {
                PageRequestState::Ended(PageRequestResult::Served) => place.store(SERVED, Ordering::Release),
                PageRequestState::Ended(PageRequestResult::Lost) => place.store(LOST, Ordering::Release),
                PageRequestState::Told => place.store(found | ALREADY_WAITING, Ordering::Release),
            }
        }
        wishes
    }
}

/// State of a request after it was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequestState {
    Ended(PageRequestResult),
    /// The request was passed to the pager, and stays in its slot until a later call ends it.
    Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRequestResult {
    /// The thread can repeat its access.
    Served,
    /// The page's data is lost, so that the access cannot succeed.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_told_once_and_served_once() {
        let counter = Counter::new();
        let (a, b) = (counter.ask(0, 7, false).unwrap(), counter.ask(255, u32::MAX - 1, true).unwrap());
        let mut seen = Vec::new();
        let already_waiting = counter.each(|page_request| {
            seen.push(page_request);
            PageRequestState::Told
        });
        assert_eq!(already_waiting, 2);
        assert!(counter.is_wanted());
        assert_eq!(seen[0], PageRequest { space: 0, page: 7, write: false, already_waiting: false });
        assert_eq!(
            seen[1],
            PageRequest { space: 255, page: u32::MAX - 1, write: true, already_waiting: false }
        );
        let end = |page_request: PageRequest| {
            if page_request.already_waiting {
                PageRequestState::Ended(PageRequestResult::Served)
            } else {
                PageRequestState::Told
            }
        };
        counter.each(
            |page_request| if page_request.page == 7 { end(page_request) } else { PageRequestState::Told },
        );
        assert_eq!((counter.take(a), counter.take(b)), (Some(PageRequestResult::Served), None));
        assert_eq!(counter.each(|_| PageRequestState::Told), 1);
        counter.each(|_| PageRequestState::Ended(PageRequestResult::Lost));
        assert!(!counter.is_wanted());
        assert_eq!(counter.take(b), Some(PageRequestResult::Lost));
        let taken: Vec<_> = std::iter::from_fn(|| counter.ask(0, 1, false)).collect();
        assert_eq!(taken.len(), PLACES);
    }
}
