//! Which parts of a port's data area are in use: blocks, taken in runs.

use cxloe_client::ring::DATA_BYTES;

/// Bytes of a block.
pub const BLOCK: usize = DATA_BYTES / 128;
/// Blocks of a run at most: 128 KiB, so that of a long request one part is sent while the next is fetched.
pub const RUN_MAX: u32 = 4;

/// The blocks of a data area.
#[derive(Debug)]
pub struct Blocks {
    /// A bit for each that is free.
    free: u128,
}

/// Blocks one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    first: u8,
    count: u8,
}

impl Run {
    /// Its first byte.
    pub fn at(self) -> usize {
        usize::from(self.first) * BLOCK
    }

    /// How many bytes it has.
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
    /// A run of `want` blocks, up to [`RUN_MAX`] of them, or of as many as there are one behind the other.
    pub fn take(&mut self, want: u32) -> Option<Run> {
        let mut here = self.free;
        let mut found = None;
        for count in 1..=want.clamp(1, RUN_MAX) {
            if here == 0 {
                break;
            }
            found = Some(Run { first: here.trailing_zeros() as u8, count: count as u8 });
            here &= self.free >> count;
        }
        self.free &= !found?.mask();
        found
    }

    /// Gives a run back.
    pub fn give(&mut self, run: Run) {
        self.free |= run.mask();
    }

    /// The first bytes of blocks in use.
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
        fn no_block_is_twice_somebodys(steps in prop::collection::vec((0..6_u32, any::<prop::sample::Index>()), 0..300)) {
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
