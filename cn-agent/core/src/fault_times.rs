//! How long faults take, as the agent sees it: from reading that a thread has stopped to having its page in place.
//!
//! ```text
//!   read --> served at once (zeros, or fetched before)           local
//!        --> fetch begins ... all its bursts are here, installed  fetch
//!        --> no more may be resident: waits ... served            room
//! ```
//!
//! Each fault on an absent page is in one of these. Times are counted in buckets that are there from the start: reading
//! the processor's clock twice and adding one to a number, by the thread that serves. What a fault cost its own thread is
//! more, by the way to the agent and back.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use crate::pager::MappingId;

/// Upper bounds of the buckets, in nanoseconds; what took longer is in one more.
pub const BOUNDS_NS: [u64; 18] = [
    2_000,
    5_000,
    10_000,
    15_000,
    20_000,
    30_000,
    50_000,
    75_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// Faults that wait for room whose time is taken; of more at a time it is not.
const STALLED_MAX: usize = 64;

/// How many faults took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// By [`BOUNDS_NS`], and those above the last.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// All times together, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// One more.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        let took = took.as_nanos() as u64;
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < took)] += 1;
        self.sum_ns += took;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What has been added since `before` was this; an empty one if that was another agent's.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        since.sum_ns = since.sum_ns.saturating_sub(before.sum_ns);
        since
    }

    /// Both together.
    pub fn with(&self, other: &Histogram) -> Histogram {
        let mut both = self.clone();
        both.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        both.sum_ns += other.sum_ns;
        both
    }

    /// The time that a share of all faults, 0 to 1, did not exceed, as far as buckets tell: within the bucket where that
    /// is, in proportion. `None` when there are none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * count as f64;
        let (mut reached, mut low) = (0.0, 0);
        for (bound, here) in BOUNDS_NS.into_iter().zip(self.counts) {
            let here = here as f64;
            if here > 0.0 && reached + here >= wanted {
                let part = (wanted - reached) / here;
                return Some(Duration::from_nanos(low + ((bound - low) as f64 * part) as u64));
            }
            reached += here;
            low = bound;
        }
        Some(Duration::from_nanos(low))
    }
}

/// How long faults on absent pages took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultTimes {
    /// Those served with what the agent had: zeros, or a page fetched before.
    pub local: Histogram,
    /// Those whose page was fetched.
    pub fetch: Histogram,
    /// Those that had to wait because no more pages may be resident.
    pub room: Histogram,
}

impl FaultTimes {
    /// All of them.
    pub fn all(&self) -> Histogram {
        self.local.with(&self.fetch).with(&self.room)
    }
}

/// A fault that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stalled {
    mapping: MappingId,
    page: u32,
    since: Time,
}

/// The watch on the faults of all spaces.
pub struct FaultWatch {
    clock: Box<dyn Fn() -> Time + Send>,
    times: FaultTimes,
    stalled: Vec<(u16, Stalled)>,
}

impl fmt::Debug for FaultWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultWatch").field("times", &self.times).finish_non_exhaustive()
    }
}

impl FaultWatch {
    /// One that has seen nothing. `clock` tells the time, more finely than by the rounds of whoever drives the pager.
    pub fn new(clock: impl Fn() -> Time + Send + 'static) -> FaultWatch {
        FaultWatch {
            clock: Box::new(clock),
            times: FaultTimes::default(),
            stalled: Vec::with_capacity(STALLED_MAX),
        }
    }

    /// The time on its own clock.
    #[inline]
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// What it has seen.
    pub fn times(&self) -> &FaultTimes {
        &self.times
    }

    /// A fault that began at `since` has been served.
    #[inline]
    pub fn served(&mut self, since: Time) {
        self.times.local.record((self.clock)().since(since));
    }

    /// The page of a fault, whose fetch began at `since`, is in place.
    #[inline]
    pub fn fetched(&mut self, space: u16, mapping: MappingId, page: u32, since: Time) {
        // One that had waited for room is looked for there.
        let stalled =
            |(of, stalled): &(u16, Stalled)| (*of, stalled.mapping, stalled.page) == (space, mapping, page);
        if self.stalled.is_empty() || !self.stalled.iter().any(stalled) {
            self.times.fetch.record((self.clock)().since(since));
        }
    }

    /// A fault that began at `since` has to wait for room.
    pub fn stalled(&mut self, space: u16, mapping: MappingId, page: u32, since: Time) {
        let known =
            |(of, stalled): &(u16, Stalled)| (*of, stalled.mapping, stalled.page) == (space, mapping, page);
        if self.stalled.len() < STALLED_MAX && !self.stalled.iter().any(known) {
            self.stalled.push((space, Stalled { mapping, page, since }));
        }
    }

    /// Whether any waits for room.
    #[inline]
    pub fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Looks after those that waited for room: `owes` says of a space, mapping and page whether its fault is still to be
    /// served, `None` if the space has ended.
    pub fn look_after(&mut self, mut owes: impl FnMut(u16, MappingId, u32) -> Option<bool>) {
        let (now, room) = ((self.clock)(), &mut self.times.room);
        self.stalled.retain(|(space, stalled)| match owes(*space, stalled.mapping, stalled.page) {
            Some(true) => true,
            Some(false) => {
                room.record(now.since(stalled.since));
                false
            }
            None => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_below_the_bound_it_does_not_exceed() {
        let mut seen = Histogram::default();
        for us in [1, 2, 3, 16, 20, 20_000_000] {
            seen.record(Duration::from_micros(us));
        }
        assert_eq!((seen.counts[0], seen.counts[1], seen.counts[4], seen.counts[18]), (2, 1, 2, 1));
        assert_eq!((seen.count(), seen.sum_ns), (6, 20_000_042_000));
    }

    #[test]
    fn quantiles_lie_in_their_bucket() {
        let mut seen = Histogram::default();
        assert_eq!(seen.quantile(0.5), None);
        (0..100).for_each(|_| seen.record(Duration::from_micros(25)));
        assert_eq!(seen.quantile(0.5), Some(Duration::from_micros(25)));
        assert_eq!(seen.quantile(1.0), Some(Duration::from_micros(30)));
        seen.record(Duration::from_secs(60));
        assert_eq!(seen.quantile(1.0), Some(Duration::from_secs(10)), "no more is known than the last bound");
        let more = seen.with(&seen);
        assert_eq!((more.count(), more.since(&seen)), (202, seen.clone()));
        assert_eq!(Histogram::default().since(&seen).count(), 0);
    }

    #[test]
    fn who_waited_for_room_is_counted_there_alone() {
        let mut watch = FaultWatch::new(|| Time(1));
        let (mapping, since) = (MappingId(1), watch.now());
        watch.stalled(0, mapping, 7, since);
        watch.stalled(0, mapping, 7, since);
        watch.stalled(3, mapping, 7, since);
        watch.fetched(0, mapping, 7, since);
        watch.fetched(0, mapping, 8, since);
        watch.look_after(|space, _, _| (space == 0).then_some(true));
        assert!(watch.has_stalled(), "it is still to be served");
        watch.look_after(|_, _, _| Some(false));
        let times = watch.times();
        assert_eq!((times.room.count(), times.fetch.count(), times.local.count()), (1, 1, 0));
        assert!(!watch.has_stalled());
        (0..100).for_each(|page| watch.stalled(0, mapping, page, since));
        assert_eq!(watch.stalled.len(), STALLED_MAX);
    }

    #[test]
    fn times_read_back() {
        let mut times = FaultTimes::default();
        times.room.record(Duration::from_millis(3));
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(serde_json::from_str::<FaultTimes>(&text).unwrap(), times);
    }
}
