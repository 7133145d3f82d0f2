//! One slot of the page table: 32 bytes, four words.
//!
//! | word | mapping | tenant | removed | empty |
//! |---|---|---|---|---|
//! | 0 | bit 63, CN id (48 bits) | bit 63, CN id | bit 62, generation of the removal | 0 |
//! | 1 | CMem extent number | all ones | as before | any |
//! | 2 | MPMem extent number, bit 32 if sealed | number of the CN's mappings | as before | any |
//! | 3 | checksum of words 0 to 2 and the pool's incarnation | same | as before | any |
//!
//! The tenant entry shows whether a CN has any mapping. Word 0 is written last, with release ordering, so that a reader
//! of the new word 0 sees the other words too. The words of a removed entry stay until no reader uses the slot, so that
//! no reader combines words of two entries.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{MpExtent, Slot};

/// Id of a CN: its MAC address as a 48-bit number (see `Mac::to_u64`).
pub type CnId = u64;

/// Low 48 bits of word 0: the CN id.
const CN_MASK: u64 = (1 << 48) - 1;
const VALID: u64 = 1 << 63;
const REMOVED: u64 = 1 << 62;
const EMPTY: u64 = 0;
/// Word 1 of a tenant entry.
const TENANT: u64 = u64::MAX;
/// Flag in the value of a mapping: the content is sealed, so writes are refused.
const SEALED: u64 = 1 << 32;

/// Key of an entry: the first two words of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    head: u64,
    extent: u64,
}

impl Key {
    #[inline]
    pub fn mapping(cn: CnId, cmem_extent: u64) -> Key {
        debug_assert!(cn <= CN_MASK && cmem_extent != TENANT);
        Key { head: VALID | (cn & CN_MASK), extent: cmem_extent }
    }

    pub fn tenant(cn: CnId) -> Key {
        debug_assert!(cn <= CN_MASK);
        Key { head: VALID | (cn & CN_MASK), extent: TENANT }
    }

    /// Hash of the key; modulo the table's size, the first slot of the probe sequence.
    #[inline]
    pub fn hash(self) -> u64 {
        mix(self.head ^ mix(self.extent))
    }

    pub fn cn(self) -> CnId {
        self.head & CN_MASK
    }

    /// CMem extent number of a mapping; `None` for a tenant entry.
    pub fn cmem_extent(self) -> Option<u64> {
        (self.extent != TENANT).then_some(self.extent)
    }
}

/// Content of a slot, with the distinctions that the writer of the table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Never used, or cleared: a probe sequence ends here.
    Empty,
    /// Removed in this generation: probe sequences continue.
    Removed(u64),
    /// A mapping or a tenant entry: its key, its value, and `true` if its checksum is right.
    Entry(Key, u64, bool),
}

/// Reads a slot for the writer of the table, and verifies the checksum.
pub(super) fn content(slot: &Slot, incarnation: u64) -> Content {
    let [head, extent, value, sum] = [0, 1, 2, 3].map(|word| slot[word].load(Ordering::Acquire));
    match head {
        EMPTY => Content::Empty,
        head if head & VALID != 0 => {
            Content::Entry(Key { head, extent }, value, sum == checksum(head, extent, value, incarnation))
        }
        head if head & REMOVED != 0 => Content::Removed(head & !REMOVED),
        // The slot is damaged. It counts as removed, because probe sequences may continue past it.
        _ => Content::Removed(0),
    }
}

/// Number of mappings in the page table of a pool that is not served, read as `slots` (32 bytes each).
pub fn mappings_stored(slots: &[u8], incarnation: u64) -> u64 {
    let words = slots.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word)));
    let words: Vec<AtomicU64> = words.collect();
    let mapping = |slot: &&Slot| match content(slot, incarnation) {
        Content::Entry(key, _, true) => key.cmem_extent().is_some(),
        _ => false,
    };
    words.as_chunks().0.iter().filter(mapping).count() as u64
}

/// Compares a slot with `key`, for readers on the data path.
#[inline]
pub(super) fn probe(slot: &Slot, key: Key) -> ProbeResult {
    match slot[0].load(Ordering::Acquire) {
        EMPTY => ProbeResult::End,
        head if head == key.head && slot[1].load(Ordering::Relaxed) == key.extent => {
            ProbeResult::Found(slot[2].load(Ordering::Relaxed))
        }
        _ => ProbeResult::Other,
    }
}

pub(super) enum ProbeResult {
    /// The slot has the key; this is its value.
    Found(u64),
    /// The slot has another key or a removed entry: the probe sequence continues.
    Other,
    /// The slot is empty: the probe sequence ends.
    End,
}

/// Fills a slot that no reader uses.
pub(super) fn fill(slot: &Slot, key: Key, value: u64, incarnation: u64) {
    slot[1].store(key.extent, Ordering::Relaxed);
    slot[2].store(value, Ordering::Relaxed);
    slot[3].store(checksum(key.head, key.extent, value, incarnation), Ordering::Relaxed);
    // Written last, so that a reader that sees this word also sees the other three.
    slot[0].store(key.head, Ordering::Release);
}

/// Changes the value of a tenant entry, which only the writer reads.
pub(super) fn set_value(slot: &Slot, key: Key, value: u64, incarnation: u64) {
    slot[2].store(value, Ordering::Relaxed);
    slot[3].store(checksum(key.head, key.extent, value, incarnation), Ordering::Relaxed);
}

/// Removes an entry. Workers may use it until they have passed `generation`.
pub(super) fn remove(slot: &Slot, generation: u64) {
    slot[0].store(REMOVED | (generation & (REMOVED - 1)), Ordering::Release);
}

/// Clears a removed slot, so that probe sequences end there again.
pub(super) fn clear(slot: &Slot) {
    slot[0].store(EMPTY, Ordering::Release);
}

pub(super) fn mapping_value(mp_extent: MpExtent, sealed: bool) -> u64 {
    u64::from(mp_extent.0) | if sealed { SEALED } else { 0 }
}

#[inline]
pub(super) fn mp_extent(value: u64) -> MpExtent {
    MpExtent(value as u32)
}

/// Whether the value of a mapping has an extent number below `extents` and no unknown flag.
pub(super) fn is_mapping_value(value: u64, extents: u32) -> bool {
    value & !SEALED < u64::from(extents)
}

#[inline]
pub(super) fn is_sealed(value: u64) -> bool {
    value & SEALED != 0
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

    #[test]
    fn of_a_stored_table_only_mappings_count() {
        let slots: [Slot; 5] = Default::default();
        fill(&slots[0], Key::mapping(1, 7), 3, 9);
        fill(&slots[1], Key::tenant(1), 1, 9);
        fill(&slots[2], Key::mapping(1, 8), 4, 9);
        remove(&slots[2], 5);
        // This entry belongs to an earlier incarnation of the pool, whose content is lost.
        fill(&slots[3], Key::mapping(1, 9), 5, 8);
        let bytes: Vec<u8> =
            slots.iter().flatten().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        assert_eq!(mappings_stored(&bytes, 9), 1);
        assert_eq!(mappings_stored(&[], 9), 0);
    }

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
            prop_assert!(matches!(probe(&slot, key), ProbeResult::Found(value) if mp_extent(value) == MpExtent(mp)));
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
            prop_assert!(matches!(probe(&slot, Key::tenant(cn)), ProbeResult::Other));
            clear(&slot);
            prop_assert!(matches!(probe(&slot, Key::tenant(cn)), ProbeResult::End));
        }
    }
}
