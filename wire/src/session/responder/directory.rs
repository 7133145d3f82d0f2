//! Index of sessions by address. It is searched only if a frame comes from a different address than the previous frame.

use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

use crate::frame::Mac;

/// Map from the address of a CN to the index of its session.
pub(super) struct Directory(HashMap<u64, usize, BuildHasherDefault<AddressHasher>>);

impl Directory {
    pub fn with_capacity(sessions: usize) -> Directory {
        Directory(HashMap::with_capacity_and_hasher(sessions, BuildHasherDefault::default()))
    }

    #[inline]
    pub fn get(&self, cn: Mac) -> Option<usize> {
        self.0.get(&cn.to_u64()).copied()
    }

    pub fn insert(&mut self, cn: Mac, index: usize) {
        self.0.insert(cn.to_u64(), index);
    }

    pub fn remove(&mut self, cn: Mac) {
        self.0.remove(&cn.to_u64());
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Hash function for addresses: one multiplication, with the halves of the product folded. It has no secret,
/// because an attacker who invents colliding addresses gains only a few comparisons: there are at most
/// [`sessions_max`](super::ResponderConfig::sessions_max) entries.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    #[inline]
    fn write_u64(&mut self, address: u64) {
        let product = u128::from(address ^ self.0) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_there_and_nothing_else() {
        let mut directory = Directory::with_capacity(4);
        let cn = |n: u64| Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8]);
        (0..1000).for_each(|n| directory.insert(cn(n), n as usize));
        (0..1000).step_by(3).for_each(|n| directory.remove(cn(n)));
        for n in 0..1000 {
            assert_eq!(directory.get(cn(n)), (n % 3 != 0).then_some(n as usize));
        }
        assert_eq!(directory.len(), 666);
        assert_eq!(directory.get(cn(1000)), None);
    }

    /// The hash spreads addresses of one vendor, which differ in the last bytes, and addresses that differ
    /// only in the first bytes.
    #[test]
    fn neighbours_are_spread() {
        for step in [1_u64, 1 << 8, 1 << 24, 1 << 40] {
            let mut seen = [0_u32; 256];
            for n in 0..256 {
                let mut hasher = AddressHasher::default();
                hasher.write_u64(n * step);
                seen[hasher.finish() as usize % 256] += 1;
            }
            assert!(seen.iter().all(|n| *n <= 8), "{step}: {seen:?}");
        }
    }
}
