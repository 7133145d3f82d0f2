//! Positions of the memory nodes' lines in a compute node's HPA. This address decoding is simple and independent of the
//! engine's; the engine's decoding is checked against it.

use std::ops::Range;

use cxloe_cn_core::attachments::{BAND, worker_of};
use cxloe_fabric::hdm::{Granularity, Ways};

use crate::memory_node::EXTENT;

/// Interleaving of regions in a run, the same for all regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    /// Number of memory nodes in the set.
    pub ways: Ways,
    /// Interleave granularity: number of consecutive bytes on one memory node.
    pub granularity: Granularity,
}

/// Parts of regions that form one contiguous range of HPA, that is, one decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// First HPA of the set.
    pub base: u64,
    /// Interleave granularity: number of consecutive bytes that lie in one part.
    pub granularity: Granularity,
    /// Indices of the parts, in the order of their positions in the set. Without a manager, the index of a part is the
    /// number of its memory node.
    pub parts: Vec<usize>,
    pub bytes: u64,
}

impl Set {
    /// Returns the number of bytes that all parts cover together.
    pub fn size(&self) -> u64 {
        self.parts.len() as u64 * self.bytes
    }

    fn hpa(&self, position: usize, dpa: u64) -> u64 {
        let grain = u64::from(self.granularity.bytes());
        let chunk = dpa / grain * self.parts.len() as u64 + position as u64;
        self.base + chunk * grain + dpa % grain
    }

    fn place(&self, hpa: u64) -> Option<(usize, u64)> {
        let offset = hpa.checked_sub(self.base).filter(|offset| *offset < self.size())?;
        let (grain, ways) = (u64::from(self.granularity.bytes()), self.parts.len() as u64);
        let chunk = offset / grain;
        Some((self.parts[(chunk % ways) as usize], chunk / ways * grain + offset % grain))
    }
}

/// All interleave sets of a compute node; without a manager, they are adjacent in HPA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    sets: Vec<Set>,
    /// Indices of the parts of all sets, in ascending order.
    parts: Vec<usize>,
}

impl Layout {
    /// Makes a layout of `mns` memory nodes with one part each. The first `interleave.ways` parts form one set, which
    /// begins with the memory node number `turn`; every other part is a set of its own.
    pub fn new(mns: usize, interleave: Option<Interleave>, turn: usize) -> Layout {
        let spread = interleave.map_or(0, |i| i.ways.count() as usize).min(mns);
        let granularity = interleave.map_or(Granularity::PAGE, |i| i.granularity);
        let together = (spread > 0).then(|| (0..spread).map(|i| (i + turn) % spread).collect());
        let members = together.into_iter().chain((spread..mns).map(|mn| vec![mn]));
        let mut base = 0;
        let set = |parts: Vec<usize>| {
            let set = Set { base, granularity, parts, bytes: EXTENT };
            base += set.size();
            set
        };
        Layout { sets: members.map(set).collect(), parts: (0..mns).collect() }
    }

    /// Moves each set to a band of addresses of its own, so that workers in turn serve the sets.
    pub(crate) fn in_bands(mut self) -> Layout {
        (0..).zip(&mut self.sets).for_each(|(band, set)| set.base += band * BAND);
        self
    }

    /// Returns the layout of the sets that this one of `workers` workers serves, by the address at which a set begins:
    /// a client finds the worker by the address of each line.
    pub(crate) fn of_worker(&self, worker: usize, workers: usize) -> Layout {
        let its = self.sets.iter().filter(|set| worker_of(set.base, workers) == worker);
        let mut layout = Layout { sets: its.cloned().collect(), parts: Vec::new() };
        layout.count();
        layout
    }

    /// Returns the sets in ascending order of HPA.
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// Returns the numbers of the parts of all sets, in ascending order.
    pub fn parts(&self) -> &[usize] {
        &self.parts
    }

    /// Adds a set at addresses that no other set uses.
    pub fn add(&mut self, set: Set) {
        let at = self.sets.partition_point(|other| other.base < set.base);
        self.sets.insert(at, set);
        self.count();
    }

    /// Removes the sets that begin within `range`, and returns their parts.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<usize> {
        let gone =
            self.sets.extract_if(.., |set| range.contains(&set.base)).flat_map(|set| set.parts).collect();
        self.count();
        gone
    }

    /// Returns the parts of the sets that begin within `range`.
    pub(crate) fn parts_in(&self, range: Range<u64>) -> Vec<usize> {
        let sets = self.sets.iter().filter(|set| range.contains(&set.base));
        sets.flat_map(|set| set.parts.iter().copied()).collect()
    }

    fn count(&mut self) {
        self.parts = self.sets.iter().flat_map(|set| set.parts.iter().copied()).collect();
        self.parts.sort_unstable();
    }

    /// Returns true if any set has several memory nodes.
    pub(crate) fn is_spread(&self) -> bool {
        self.sets.iter().any(|set| set.parts.len() > 1)
    }

    /// Returns the set that contains `part`, which has to be in a set.
    pub fn set_of(&self, part: usize) -> &Set {
        let set = self.sets.iter().find(|set| set.parts.contains(&part));
        set.unwrap_or_else(|| panic!("part {part} is in none of {:?}", self.sets))
    }

    /// Returns the HPA of the byte at offset `dpa` of a part.
    pub fn hpa(&self, part: usize, dpa: u64) -> u64 {
        let set = self.set_of(part);
        let position = set.parts.iter().position(|member| *member == part).expect("it is in its set");
        set.hpa(position, dpa)
    }

    /// Returns the part that contains the byte at `hpa`, and the offset of the byte in that part.
    pub fn place(&self, hpa: u64) -> Option<(usize, u64)> {
        self.sets.iter().find_map(|set| set.place(hpa))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_place() {
        for ways in Ways::ALL {
            let granularity = Granularity::MIN;
            let layout = Layout::new(17, Some(Interleave { ways, granularity }), 5);
            assert_eq!(layout.sets().len(), 18 - ways.count() as usize);
            let mut seen = [0; 17];
            for line in 0..17 * EXTENT / 64 {
                let (mn, dpa) = layout.place(line * 64).expect("sets follow one another");
                assert_eq!(layout.hpa(mn, dpa), line * 64);
                assert_eq!(dpa, seen[mn], "ascending HPAs visit an extent in order");
                seen[mn] += 64;
            }
            assert!(seen.iter().all(|end| *end == EXTENT));
            assert_eq!(layout.place(17 * EXTENT), None);
        }
    }

    #[test]
    fn workers_divide_the_sets() {
        let layout = Layout::new(5, None, 0);
        assert_eq!(layout.of_worker(0, 1), layout);
        assert!(layout.of_worker(1, 2).parts().is_empty(), "all sets are in one band");
        let layout = layout.in_bands();
        let parts: Vec<_> = (0..2).map(|worker| layout.of_worker(worker, 2).parts().to_vec()).collect();
        assert_eq!(parts, [vec![0, 2, 4], vec![1, 3]]);
        let last = layout.hpa(3, EXTENT - 64);
        assert_eq!((layout.place(last), worker_of(last, 2)), (Some((3, EXTENT - 64)), 1));
    }

    #[test]
    fn a_worked_example() {
        let interleave = Interleave { ways: Ways::Three, granularity: Granularity::MIN };
        let layout = Layout::new(4, Some(interleave), 1);
        assert_eq!(layout.place(0x523), Some((0, 0x123)), "position 2 is memory node 0");
        assert_eq!(layout.place(3 * EXTENT + 64), Some((3, 64)));
        assert_eq!(Layout::new(2, None, 0).place(EXTENT), Some((1, 0)));
    }
}
