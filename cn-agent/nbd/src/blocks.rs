//! Allocation of a port's data area: the area is divided into blocks, and requests take runs of consecutive blocks.

use cxloe_client::ring::DATA_BYTES;

/// Size of a block in bytes.
pub const BLOCK: usize = DATA_BYTES / 128;
/// Maximum number of blocks in a run: 128 KiB, so that one part of a long request is sent while the next is
/// fetched.
pub const RUN_MAX: u32 = 4;

/// Free and used blocks of a data area.
#[derive(Debug)]
pub struct Blocks {
    /// One bit for each block, set if the block is free.
    free: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    first: u8,
    count: u8,
}

impl Run {
    /// Offset of the run's first byte in the data area.
    pub fn at(self) -> usize {
        usize::from(self.first) * BLOCK
    }

    /// Size of the run in bytes.
    pub fn bytes(self) -> usize {
        usize::from(self.count) * BLOCK
    }

    fn mask(self) -> u128 {
        ((1 << self.count) - 1) << self.first
    }
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { free: u128::MAX }
    }
}

impl Blocks {
    /// Takes a run of `want` blocks, at most [`RUN_MAX`], or the longest free run if none is that long.
    pub fn take(&mut self, want: u32) -> Option<Run> {
        let mut here = self.free;
        let mut found = None;
        for count in 1..=want.clamp(1, RUN_MAX) {
            if here == 0 {
                break;
            }
            found = Some(Run { first: here.trailing_zeros() as u8, count: count as u8 });
            // A bit stays set if a free run of `count + 1` blocks begins at its block.
            here &= self.free >> count;
        }
        self.free &= !found?.mask();
        found
    }

    pub fn give(&mut self, run: Run) {
        self.free |= run.mask();
    }

    pub fn used(&self) -> impl Iterator<Item = usize> + use<> {
        let free = self.free;
        (0..128).filter(move |block| free >> block & 1 == 0).map(|block| block * BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_as_long_as_there_is_room() {
        let mut blocks = Blocks::default();
        let all: Vec<_> = std::iter::from_fn(|| blocks.take(3)).collect();
        assert_eq!(all.iter().map(|run| usize::from(run.count)).sum::<usize>(), 128);
        assert_eq!(blocks.used().count(), 128);
        blocks.give(all[1]);
        blocks.give(all[2]);
        assert_eq!(blocks.take(9), Some(Run { first: 3, count: 4 }));
        assert_eq!(blocks.take(4), Some(Run { first: 7, count: 2 }));
        assert_eq!(blocks.take(1), None);
    }

    proptest! {
        #[test]
        fn no_block_has_two_owners(steps in prop::collection::vec((0..6_u32, any::<prop::sample::Index>()), 0..300)) {
            let mut blocks = Blocks::default();
            let mut taken: Vec<Run> = Vec::new();
            for (want, which) in steps {
                match blocks.take(want) {
                    Some(run) if want > 0 => {
                        prop_assert!(run.at() + run.bytes() <= DATA_BYTES && u32::from(run.count) <= want);
                        prop_assert!(taken.iter().all(|other| other.mask() & run.mask() == 0));
                        taken.push(run);
                    }
                    Some(run) => blocks.give(run),
                    None => prop_assert_eq!(blocks.used().count(), 128),
                }
                if want == 0 && !taken.is_empty() {
                    blocks.give(taken.swap_remove(which.index(taken.len())));
                }
                prop_assert_eq!(blocks.used().count(), taken.iter().map(|run| usize::from(run.count)).sum::<usize>());
            }
        }
    }
}
