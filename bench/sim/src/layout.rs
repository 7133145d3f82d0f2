//! Where the lines of the memory nodes lie in a compute node's HPA: what the engine's decoders are to make of addresses,
//! said a second time, in the plainest arithmetic, so that the one checks the other.

use std::ops::Range;

use cxloe_fabric::hdm::{Granularity, Ways};

use crate::memory_node::EXTENT;

/// An interleave set, as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    /// Over how many memory nodes.
    pub ways: Ways,
    /// In chunks of this size.
    pub granularity: Granularity,
}

/// Parts of regions that make up one range of HPA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// First HPA.
    pub base: u64,
    /// Size of the chunks.
    pub granularity: Granularity,
    /// The parts of regions, by position; without a manager they have the numbers of their memory nodes.
    pub parts: Vec<usize>,
    /// Bytes of each part.
    pub bytes: u64,
}

impl Set {
    /// Bytes of HPA.
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

/// All sets of a compute node, one behind the other in HPA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    sets: Vec<Set>,
    /// The parts of all sets, in order.
    parts: Vec<usize>,
}

impl Layout {
    /// The first `interleave.ways` of `mns` memory nodes in a set, every other one alone; without interleaving all of
    /// them alone. `turn` says which of them has position 0.
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

    /// The sets, by ascending HPA.
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// The parts of all sets, in order.
    pub fn parts(&self) -> &[usize] {
        &self.parts
    }

    /// Adds a set where there is none.
    pub fn add(&mut self, set: Set) {
        let at = self.sets.partition_point(|other| other.base < set.base);
        self.sets.insert(at, set);
        self.count();
    }

    /// Removes the sets that begin within a range, and returns their parts.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<usize> {
        let gone =
            self.sets.extract_if(.., |set| range.contains(&set.base)).flat_map(|set| set.parts).collect();
        self.count();
        gone
    }

    /// The parts of the sets that begin within a range.
    pub fn parts_in(&self, range: Range<u64>) -> Vec<usize> {
        let sets = self.sets.iter().filter(|set| range.contains(&set.base));
        sets.flat_map(|set| set.parts.iter().copied()).collect()
    }

    fn count(&mut self) {
        self.parts = self.sets.iter().flat_map(|set| set.parts.iter().copied()).collect();
        self.parts.sort_unstable();
    }

    /// Whether any set has several memory nodes.
    pub fn is_spread(&self) -> bool {
        self.sets.iter().any(|set| set.parts.len() > 1)
    }

    /// The set that a part belongs to.
    pub fn set_of(&self, part: usize) -> &Set {
        let set = self.sets.iter().find(|set| set.parts.contains(&part));
        set.unwrap_or_else(|| panic!("part {part} is in none of {:?}", self.sets))
    }

    /// The HPA of byte `dpa` of a part.
    pub fn hpa(&self, part: usize, dpa: u64) -> u64 {
        let set = self.set_of(part);
        let position = set.parts.iter().position(|member| *member == part).expect("it is in its set");
        set.hpa(position, dpa)
    }

    /// The part that has the byte at `hpa`, and where in it.
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
    fn a_worked_example() {
        let interleave = Interleave { ways: Ways::Three, granularity: Granularity::MIN };
        let layout = Layout::new(4, Some(interleave), 1);
        assert_eq!(layout.place(0x523), Some((0, 0x123)), "position 2 is memory node 0");
        assert_eq!(layout.place(3 * EXTENT + 64), Some((3, 64)));
        assert_eq!(Layout::new(2, None, 0).place(EXTENT), Some((1, 0)));
    }
}
