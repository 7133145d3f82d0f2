//! One slot of the page table: 32 bytes, four words.
//!
//! | word | mapping | tenant | removed | empty |
//! |---|---|---|---|---|
//! | 0 | bit 63, CN id (48 bits) | bit 63, CN id | bit 62, generation of the removal | 0 |
//! | 1 | CMem extent number | all ones | as before | any |
//! | 2 | MPMem extent number | number of the CN's mappings | as before | any |
//! | 3 | checksum of words 0 to 2 and the pool's incarnation | same | as before | any |
//!
//! The tenant entry answers whether a CN has any mapping at all. Word 0 is written last and with release
//! ordering, so that who sees it sees the others; the words of a removed entry stay until no reader can
//! be looking at them any more, so that none ever sees half of one entry and half of another.

use std::sync::atomic::Ordering;

use crate::pool::{MpExtent, Slot};

/// A CN's id, its MAC address as a 48-bit number (as `Mac::to_u64` gives it).
pub type CnId = u64;

/// Bits of a CN id.
const CN_MASK: u64 = (1 << 48) - 1;
const VALID: u64 = 1 << 63;
const REMOVED: u64 = 1 << 62;
const EMPTY: u64 = 0;
/// In place of a CMem extent number in a CN's tenant entry.
const TENANT: u64 = u64::MAX;

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    head: u64,
    extent: u64,
}

impl Key {
    /// Of the mapping of a CN's CMem extent.
    #[inline]
    pub fn mapping(cn: CnId, cmem_extent: u64) -> Key {
        debug_assert!(cn <= CN_MASK && cmem_extent != TENANT);
        Key { head: VALID | (cn & CN_MASK), extent: cmem_extent }
    }

    /// Of a CN's tenant entry.
    pub fn tenant(cn: CnId) -> Key {
        debug_assert!(cn <= CN_MASK);
        Key { head: VALID | (cn & CN_MASK), extent: TENANT }
    }

    /// Where in a table its probe sequence starts (to be taken modulo the table's size).
    #[inline]
    pub fn hash(self) -> u64 {
        mix(self.head ^ mix(self.extent))
    }

    /// The CN id.
    pub fn cn(self) -> CnId {
        self.head & CN_MASK
    }

    /// The CMem extent number; `None` for a tenant entry.
    pub fn cmem_extent(self) -> Option<u64> {
        (self.extent != TENANT).then_some(self.extent)
    }
}

/// The content of a slot, without what a reader on the data path need not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Never used, or used up and cleared: probe sequences end here.
    Empty,
    /// Removed in a generation: probe sequences go on.
    Removed(u64),
    /// A mapping or a tenant entry, its value, and whether its checksum is right.
    Entry(Key, u64, bool),
}

/// Reads a slot, as the writer does.
pub(super) fn content(slot: &Slot, incarnation: u64) -> Content {
    let [head, extent, value, sum] = [0, 1, 2, 3].map(|word| slot[word].load(Ordering::Acquire));
    match head {
        EMPTY => Content::Empty,
        head if head & VALID != 0 => {
            Content::Entry(Key { head, extent }, value, sum == checksum(head, extent, value, incarnation))
        }
        head if head & REMOVED != 0 => Content::Removed(head & !REMOVED),
        // No state of ours: damage. Probe sequences may have gone on here.
        _ => Content::Removed(0),
    }
}

/// What a reader looking for `key` finds in a slot: the value, something else, or the end.
#[inline]
pub(super) fn probe(slot: &Slot, key: Key) -> Probe {
    match slot[0].load(Ordering::Acquire) {
        EMPTY => Probe::End,
        head if head == key.head && slot[1].load(Ordering::Relaxed) == key.extent => {
            Probe::Found(slot[2].load(Ordering::Relaxed))
        }
        _ => Probe::Other,
    }
}

/// The answer of [`probe`].
pub(super) enum Probe {
    /// The key's value.
    Found(u64),
    /// Another key, or a removed entry.
    Other,
    /// Nothing, nor beyond.
    End,
}

/// Fills a slot that no reader can be looking into.
pub(super) fn fill(slot: &Slot, key: Key, value: u64, incarnation: u64) {
    slot[1].store(key.extent, Ordering::Relaxed);
    slot[2].store(value, Ordering::Relaxed);
    slot[3].store(checksum(key.head, key.extent, value, incarnation), Ordering::Relaxed);
    slot[0].store(key.head, Ordering::Release);
}

/// Changes the value of a tenant entry; only the writer reads it.
pub(super) fn set_value(slot: &Slot, key: Key, value: u64, incarnation: u64) {
    slot[2].store(value, Ordering::Relaxed);
    slot[3].store(checksum(key.head, key.extent, value, incarnation), Ordering::Relaxed);
}

/// Removes an entry. It may be read on until every worker has passed `generation`.
pub(super) fn remove(slot: &Slot, generation: u64) {
    slot[0].store(REMOVED | (generation & (REMOVED - 1)), Ordering::Release);
}

/// Makes a removed slot the end of probe sequences again.
pub(super) fn clear(slot: &Slot) {
    slot[0].store(EMPTY, Ordering::Release);
}

/// The MPMem extent that a value of a mapping names.
#[inline]
pub(super) fn mp_extent(value: u64) -> MpExtent {
    MpExtent(value as u32)
}

/// A bijection that spreads every bit over the word (the finaliser of MurmurHash3).
#[inline]
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

fn checksum(head: u64, extent: u64, value: u64, incarnation: u64) -> u64 {
    mix(mix(mix(mix(incarnation) ^ head) ^ extent.rotate_left(17)) ^ value.rotate_left(31))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_reads_back_and_any_flipped_bit_shows(
            cn in 0u64..=CN_MASK, extent in 0u64..1 << 32, mp: u32, incarnation: u64, bit in 0usize..256,
        ) {
            let slot = Slot::default();
            prop_assert_eq!(content(&slot, incarnation), Content::Empty);
            let key = Key::mapping(cn, extent);
            fill(&slot, key, mp.into(), incarnation);
            prop_assert_eq!(content(&slot, incarnation), Content::Entry(key, mp.into(), true));
            prop_assert!(matches!(probe(&slot, key), Probe::Found(value) if mp_extent(value) == MpExtent(mp)));
            prop_assert!(matches!(content(&slot, !incarnation), Content::Entry(.., false)));
            slot[bit / 64].fetch_xor(1 << (bit % 64), Ordering::Relaxed);
            prop_assert!(!matches!(content(&slot, incarnation), Content::Entry(.., true)));
        }

        #[test]
        fn a_removed_entry_is_passed_over(cn in 0u64..=CN_MASK, generation in 0u64..1 << 60) {
            let slot = Slot::default();
            fill(&slot, Key::tenant(cn), 1, 7);
            remove(&slot, generation);
            prop_assert_eq!(content(&slot, 7), Content::Removed(generation));
            prop_assert!(matches!(probe(&slot, Key::tenant(cn)), Probe::Other));
            clear(&slot);
            prop_assert!(matches!(probe(&slot, Key::tenant(cn)), Probe::End));
        }
    }
}
