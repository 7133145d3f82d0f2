//! Durations of faults, measured by the agent: from the read of a stopped thread's fault until its page is in
//! place.
//!
//! ```text
//!   read --> served at once (zeros, or fetched before)           local
//!        --> fetch begins ... its bursts have arrived, installed  fetch
//!        --> no more may be resident: waits ... served            room
//! ```
//!
//! Each fault on an absent page is counted in exactly one of the three. Durations are counted in buckets
//! allocated at the start: the serving thread reads the processor's clock twice and increments a number. The
//! delay of the faulting thread is longer, by the path to the agent and back.

use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::time::Time;
use serde::{Deserialize, Serialize};

use crate::pager::MappingId;

/// Upper bounds of the buckets, in nanoseconds; one more bucket counts longer durations.
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

/// Maximum number of faults waiting for room that are timed at once; further ones are not timed.
const STALLED_MAX: usize = 64;

/// Number of faults by duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Counts per bucket: one for each of [`BOUNDS_NS`], and one for longer durations.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// Sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    #[inline]
    pub fn record(&mut self, took: Duration) {
        let took = took.as_nanos() as u64;
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < took)] += 1;
        self.sum_ns += took;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the counts added since `before`. A count is 0 where `before`, perhaps from an earlier agent,
    /// is larger.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        since.sum_ns = since.sum_ns.saturating_sub(before.sum_ns);
        since
    }

    /// Returns the sum of two histograms.
    pub fn with(&self, other: &Histogram) -> Histogram {
        let mut both = self.clone();
        both.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        both.sum_ns += other.sum_ns;
        both
    }

    /// Duration that the fraction `share` (0 to 1) of all faults did not exceed, interpolated within its bucket.
    /// `None` without faults.
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
        // Nothing is known of durations beyond the last bound.
        Some(Duration::from_nanos(low))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultTimes {
    /// Faults served at once: filled with zeros, or with a page fetched before.
    pub local: Histogram,
    /// Faults whose page had to be fetched.
    pub fetch: Histogram,
    /// Faults that had to wait because the limit of resident pages was reached.
    pub room: Histogram,
}

impl FaultTimes {
    /// Returns the sums of two sets of histograms.
    #[must_use]
    pub fn with(&self, other: &FaultTimes) -> FaultTimes {
        FaultTimes {
            local: self.local.with(&other.local),
            fetch: self.fetch.with(&other.fetch),
            room: self.room.with(&other.room),
        }
    }

    /// Histogram of all faults on absent pages.
    pub fn all(&self) -> Histogram {
        self.local.with(&self.fetch).with(&self.room)
    }
}

/// A fault by its space, its mapping and its page.
pub type FaultPlace = (u16, MappingId, u32);

/// A fault that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stalled {
    place: FaultPlace,
    since: Time,
    /// Whether the present check has found the fault among those that are still to be served.
    waits: bool,
}

/// Measurement of the faults of all spaces. All times come from one clock, which the caller reads for each
/// fault, not once per round.
#[derive(Debug)]
pub struct FaultWatch {
    times: FaultTimes,
    /// In ascending order of their places.
    stalled: Vec<Stalled>,
}

impl Default for FaultWatch {
    fn default() -> FaultWatch {
        FaultWatch { times: FaultTimes::default(), stalled: Vec::with_capacity(STALLED_MAX) }
    }
}

impl FaultWatch {
    pub fn times(&self) -> &FaultTimes {
        &self.times
    }

    /// Records that a fault that began at `since` has been served at `now` without a fetch.
    #[inline]
    pub fn served(&mut self, since: Time, now: Time) {
        self.times.local.record(now.since(since));
    }

    /// Records that the page of a fault, whose fetch began at `since`, is in place at `now`.
    #[inline]
    pub fn fetched(&mut self, space: u16, mapping: MappingId, page: u32, since: Time, now: Time) {
        // A fault that has waited for room is counted under `room` alone, by `check_stalled`.
        if self.stalled.is_empty() || self.find((space, mapping, page)).is_err() {
            self.times.fetch.record(now.since(since));
        }
    }

    /// Index of a timed fault, or, as an error, the index at which it would be inserted.
    fn find(&self, place: FaultPlace) -> Result<usize, usize> {
        self.stalled.binary_search_by_key(&place, |stalled| stalled.place)
    }

    /// Records that a fault that began at `since` has to wait for room.
    pub fn stalled(&mut self, space: u16, mapping: MappingId, page: u32, since: Time) {
        let place = (space, mapping, page);
        if self.stalled.len() < STALLED_MAX
            && let Err(at) = self.find(place)
        {
            self.stalled.insert(at, Stalled { place, since, waits: false });
        }
    }

    /// Whether any timed fault waits for room.
    #[inline]
    pub fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Records, at `now`, the faults that waited for room and have been served: those that are neither among `waiting`,
    /// the faults that wait for room or a turn, nor under way, as `is_under_way` tells; `None` if the space has ended.
    pub fn check_stalled(
        &mut self,
        now: Time,
        waiting: impl Iterator<Item = FaultPlace>,
        mut is_under_way: impl FnMut(FaultPlace) -> Option<bool>,
    ) {
        for place in waiting {
            if let Ok(at) = self.find(place) {
                self.stalled[at].waits = true;
            }
        }
        let room = &mut self.times.room;
        self.stalled.retain_mut(|stalled| {
            if core::mem::take(&mut stalled.waits) {
                return true;
            }
            let under_way = is_under_way(stalled.place);
            if under_way == Some(false) {
                room.record(now.since(stalled.since));
            }
            under_way == Some(true)
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
        let mut watch = FaultWatch::default();
        let (mapping, since) = (MappingId(1), Time(1));
        watch.stalled(0, mapping, 7, since);
        watch.stalled(0, mapping, 7, since);
        watch.stalled(3, mapping, 7, since);
        watch.fetched(0, mapping, 7, since, since);
        watch.fetched(0, mapping, 8, since, since);
        let check = |watch: &mut FaultWatch, waiting: &[FaultPlace], under_way| {
            let of = |(space, ..): FaultPlace| (space == 0).then_some(under_way);
            watch.check_stalled(since, waiting.iter().copied(), of);
        };
        check(&mut watch, &[(0, mapping, 7)], false);
        assert!(watch.has_stalled(), "it waits");
        check(&mut watch, &[(0, mapping, 8)], true);
        assert!(watch.has_stalled(), "it is still to be served");
        check(&mut watch, &[], false);
        let times = watch.times();
        assert_eq!((times.room.count(), times.fetch.count(), times.local.count()), (1, 1, 0));
        assert!(!watch.has_stalled());
        (0..100).for_each(|page| watch.stalled(0, mapping, page, since));
        assert_eq!(watch.stalled.len(), STALLED_MAX);
    }

    /// Many processes wait for room at a time.
    #[test]
    fn a_check_looks_at_each_waiting_fault_once() {
        let place = |page: u32| (0, MappingId(page as u16), page);
        let mut watch = FaultWatch::default();
        (0..STALLED_MAX as u32)
            .rev()
            .for_each(|page| watch.stalled(0, MappingId(page as u16), page, Time(1)));
        let (mut seen, mut asked) = (0, 0);
        watch.check_stalled(Time(2), (0..1000).map(place).inspect(|_| seen += 1), |_| {
            asked += 1;
            Some(false)
        });
        assert_eq!((seen, asked, watch.stalled.len()), (1000, 0, STALLED_MAX));
        watch.check_stalled(Time(3), (0..32).map(place), |(_, _, page)| {
            asked += 1;
            Some(page == 40)
        });
        assert_eq!((asked, watch.times().room.count(), watch.stalled.len()), (32, 31, 33));
    }

    #[test]
    fn times_read_back() {
        let mut times = FaultTimes::default();
        times.room.record(Duration::from_millis(3));
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(serde_json::from_str::<FaultTimes>(&text).unwrap(), times);
    }
}
