//! Addresses of new regions, and the worker that serves an address.
//!
//! ```text
//!   HPA  1 TiB        256 TiB       512 TiB          ...   4 PiB
//!         |-- band 0 --|-- band 1 --|-- band 2 --|  ...     |
//!   two workers: 0            1            0          1 ...
//! ```
//!
//! The HPA space is divided into bands, each served by one worker. So the worker of a line follows from the
//! line's address alone, and no line is cached by two workers. A new region is placed in a band of the worker
//! whose regions have the fewest bytes. After a restart with another number of workers, each region keeps its
//! address, but another worker may serve it.

use cxloe_fabric::model::{Name, Region};
use cxloe_wire::frame::SHARDS_MAX;

use super::{Attachment, Attachments, HPA_ALIGN, HPA_FIRST, HPA_LIMIT, WINDOW_MIN};

/// Number of bands: as many as a node may have workers, since each worker has a shard of its own.
const BANDS: u64 = SHARDS_MAX as u64;
/// Size in bytes of a band, the range of addresses that has one worker.
pub const BAND: u64 = HPA_LIMIT / BANDS;
/// Window of a region as a multiple of its size, before rounding up to a power of two.
const WINDOW_FACTOR: u64 = 4;
/// Maximum number of regions recorded as about to move to this node. Beyond this number, the region whose name sorts
/// first is forgotten.
const EXPECTED_MAX: usize = 256;

#[inline]
pub fn worker_of(hpa: u64, workers: usize) -> usize {
    match workers {
        0 | 1 => 0,
        _ => (hpa / BAND) as usize % workers,
    }
}

impl Attachments {
    /// Sets the number of workers, among which new regions are distributed. To be called before the first change.
    pub fn set_workers(&mut self, workers: usize) {
        self.workers = workers;
    }

    /// Number of the worker that serves the region `name`, or that will serve it when it gets an address; `None` for a
    /// region that is neither in this table nor [expected](Self::expect).
    pub fn worker_of_region(&self, name: &str) -> Option<usize> {
        let placed = self.by_name.iter().find(|(known, _)| known.as_str() == name);
        let placed = placed.map(|(_, attachment)| worker_of(attachment.hpa, self.workers));
        let expected = || self.expected.iter().find(|(known, _)| known.as_str() == name).map(|(_, at)| *at);
        placed.or_else(expected)
    }

    /// Chooses the worker that will serve a region expected to move to this node, and returns its number.
    pub fn expect(&mut self, name: Name) -> usize {
        if let Some(worker) = self.worker_of_region(name.as_str()) {
            return worker;
        }
        let worker = self.least_loaded();
        if self.expected.len() >= EXPECTED_MAX {
            self.expected.pop_first();
        }
        self.expected.insert(name, worker);
        worker
    }

    /// Returns the worker whose regions have the fewest bytes, or the lowest-numbered one of several such
    /// workers.
    fn least_loaded(&self) -> usize {
        let bytes = |worker: &usize| {
            let its =
                self.by_name.values().filter(|attachment| worker_of(attachment.hpa, self.workers) == *worker);
            its.fold(0_u64, |sum, attachment| sum.saturating_add(attachment.region.size))
        };
        (0..self.workers.max(1)).min_by_key(bytes).unwrap_or(0)
    }

    /// Assigns addresses to a new region; `None` if no addresses are left.
    pub(super) fn place(&mut self, region: &Region) -> Option<Attachment> {
        let (name, size) = (&region.name, region.size);
        let worker = self.expected.remove(name).unwrap_or_else(|| self.least_loaded());
        let mut bands = (0..BANDS).filter(|band| worker_of(band * BAND, self.workers) == worker);
        let left = |band: u64| ((band + 1) * BAND).saturating_sub(self.next_in(band));
        let Some(band) = bands.find(|band| size <= left(*band)) else {
            tracing::error!(
                region = %name, size,
                "no host physical addresses are left for this region; stop the agent, remove its state file \
                 in the data directory, and start it again"
            );
            return None;
        };
        let (hpa, left) = (self.next_in(band), left(band));
        let wanted = size.saturating_mul(WINDOW_FACTOR).checked_next_power_of_two().unwrap_or(u64::MAX);
        let window = wanted.max(WINDOW_MIN).min(left);
        self.next.insert(band, (hpa + window).next_multiple_of(HPA_ALIGN));
        Some(Attachment { region: region.clone(), hpa, window, backing: self.first_backing() })
    }

    /// Returns a table whose only free addresses are the last `left` bytes of the HPA space.
    #[cfg(test)]
    pub(super) fn almost_full(left: u64) -> Attachments {
        let end = |band| (band, (band + 1) * BAND - if band + 1 == BANDS { left } else { 0 });
        Attachments { next: (0..BANDS).map(end).collect(), ..Attachments::default() }
    }

    /// Returns the next address to assign in a band. It never decreases, because addresses are not reused.
    fn next_in(&self, band: u64) -> u64 {
        let first = (band * BAND).max(HPA_FIRST);
        // The state file may have regions in this band without an entry for the band in `next`.
        let ends = self.by_name.values().map(|attachment| attachment.hpa + attachment.window);
        let used = ends.filter(|end| (*end - 1) / BAND == band).max();
        let used = used.map_or(first, |end| end.next_multiple_of(HPA_ALIGN));
        self.next.get(&band).copied().unwrap_or(first).max(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachments::tests::region;
    use cxloe_fabric::model::RegionState;

    const GIB: u64 = 1 << 30;

    fn placed(table: &mut Attachments, name: &str, size: u64) -> u64 {
        let added = region(name, size, RegionState::Active);
        table.follow_region_for_test(added);
        table.by_name[&Name::new(name).unwrap()].hpa
    }

    impl Attachments {
        fn follow_region_for_test(&mut self, added: Region) {
            let mut all: Vec<Region> = self.by_name.values().map(|known| known.region.clone()).collect();
            all.push(added);
            self.follow(&all, false);
        }
    }

    #[test]
    fn regions_are_distributed_by_bytes_and_keep_their_worker() {
        let mut table = Attachments::default();
        table.set_workers(2);
        let workers: Vec<usize> = [("a", 8 * GIB), ("b", GIB), ("c", GIB), ("d", GIB)]
            .iter()
            .map(|(name, size)| worker_of(placed(&mut table, name, *size), 2))
            .collect();
        assert_eq!(workers, [0, 1, 1, 1]);
        assert_eq!(table.worker_of_region("a"), Some(0));
        assert_eq!(table.worker_of_region("nowhere"), None);

        let mut one: Attachments = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
        one.set_workers(1);
        assert_eq!(one.worker_of_region("d"), Some(0), "fewer workers serve what there is");
        assert_eq!(worker_of(placed(&mut one, "e", GIB), 1), 0);
        let mut four: Attachments = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
        four.set_workers(4);
        assert_eq!(worker_of(placed(&mut four, "f", GIB), 4), 2, "the first that has none");
    }

    #[test]
    fn an_expected_region_comes_to_the_worker_that_waits_for_it() {
        let mut table = Attachments::default();
        table.set_workers(4);
        placed(&mut table, "a", GIB);
        assert_eq!(table.expect(Name::new("b").unwrap()), 1);
        placed(&mut table, "c", GIB);
        assert_eq!((table.expect(Name::new("b").unwrap()), table.worker_of_region("b")), (1, Some(1)));
        assert_eq!(worker_of(placed(&mut table, "b", 3 * GIB), 4), 1);
        assert_eq!(table.expect(Name::new("b").unwrap()), 1, "it is here");
        for n in 0..EXPECTED_MAX * 2 {
            table.expect(Name::new(format!("n{n}")).unwrap());
        }
        assert_eq!(table.expected.len(), EXPECTED_MAX);
    }

    #[test]
    fn one_worker_uses_all_bands() {
        let mut table = Attachments { next: [(0, BAND - GIB)].into(), ..Attachments::default() };
        assert_eq!(placed(&mut table, "a", 2 * GIB), BAND);
        assert_eq!(placed(&mut table, "b", GIB), BAND - GIB);
    }
}
