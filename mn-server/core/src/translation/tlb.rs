//! A worker's own translations: a small two-way set-associative table in front of the page table, like the paper's CAM.
//! A hit costs a hash and one cache line, no shared memory. The TLB is emptied whenever a mapping has been removed
//! ([`WorkerGeneration::pass`](super::WorkerGeneration::pass)); an added mapping needs no purge, because the TLB does
//! not record that a translation is missing.

use std::sync::Arc;

use super::entry::{self, CnId};
use super::shares::Share;
use super::table::{PageTable, Unmapped};
use crate::pool::MpAddr;

/// Default number of entries: with 2 MiB extents they cover 2 GiB in 16 KiB.
pub const TLB_ENTRIES_DEFAULT: usize = 1024;

/// CN id of an empty entry: no CN id has more than 48 bits.
const NOBODY: CnId = CnId::MAX;

/// A translation: 16 bytes, so that both ways of a set lie in one cache line.
#[derive(Clone, Copy, Debug)]
struct Entry {
    cn: CnId,
    /// CMem extent number: there are at most 2^32 extents of at least 64 KiB in 48 bits of CMem.
    cmem_extent: u32,
    /// Number of the pool's extent, which has at most 31 bits, and [`SEALED`].
    mp_extent: u32,
}

/// Flag in an entry: the content is sealed, so writes are refused.
const SEALED: u32 = 1 << 31;

/// The two ways of a set, the one filled last in front.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Set([Entry; 2]);

const EMPTY: Set = Set([Entry { cn: NOBODY, cmem_extent: 0, mp_extent: 0 }; 2]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbCounters {
    /// Translations answered by the TLB.
    pub hits: u64,
    /// Translations that needed the page table, found there or not.
    pub misses: u64,
    pub purges: u64,
}

#[derive(Debug)]
pub struct Tlb {
    sets: Box<[Set]>,
    /// List of shares at the last purge.
    shares: Arc<[Share]>,
    counters: TlbCounters,
}

impl Tlb {
    /// Makes a TLB with at least `entries` entries (rounded up to a power of two, at least 2).
    pub fn new(entries: usize) -> Tlb {
        let sets = entries.div_ceil(2).next_power_of_two();
        let (shares, counters) = (Arc::default(), TlbCounters::default());
        Tlb { sets: vec![EMPTY; sets].into_boxed_slice(), shares, counters }
    }

    /// Translates the CMem byte address of a CN's read into an MPMem address. Call between two batch boundaries
    /// ([`WorkerGeneration::pass`](super::WorkerGeneration::pass)), always with the same table.
    #[inline]
    pub fn translate(&mut self, table: &PageTable, cn: CnId, cmem: u64) -> Result<MpAddr, Unmapped> {
        self.find(table, cn, cmem).map(|extent| address(table, extent & !SEALED, cmem))
    }

    /// As [`translate`](Self::translate), but for the address of a write.
    ///
    /// # Errors
    /// [`Unmapped::Sealed`] if the content is sealed; otherwise as for `translate`.
    #[inline]
    pub fn translate_write(&mut self, table: &PageTable, cn: CnId, cmem: u64) -> Result<MpAddr, Unmapped> {
        let extent = self.find(table, cn, cmem)?;
        if extent & SEALED != 0 {
            return Err(Unmapped::Sealed);
        }
        Ok(address(table, extent, cmem))
    }

    /// Number of the pool's extent at a CMem address, combined with the flag [`SEALED`] if the content is sealed.
    #[inline]
    fn find(&mut self, table: &PageTable, cn: CnId, cmem: u64) -> Result<u32, Unmapped> {
        let shift = table.extent_shift();
        let extent = cmem >> shift;
        let [first, second] = self.sets[self.set_of(cn, extent)].0;
        let is_it = |entry: Entry| (entry.cn == cn) & (u64::from(entry.cmem_extent) == extent);
        let (in_first, in_second) = (is_it(first), is_it(second));
        if in_first | in_second {
            self.counters.hits += 1;
            // Which way hits is practically random. It is selected by arithmetic, because a mispredicted branch would
            // cost more than the rest of the look-up.
            let choose = 0u32.wrapping_sub(u32::from(in_second));
            let mp_extent = first.mp_extent ^ ((first.mp_extent ^ second.mp_extent) & choose);
            return Ok(mp_extent);
        }
        self.miss(table, cn, cmem)
    }

    /// Translates a CMem byte address if the TLB has the entry; changes and counts nothing.
    #[inline]
    pub fn probe(&self, table: &PageTable, cn: CnId, cmem: u64) -> Option<MpAddr> {
        let shift = table.extent_shift();
        let extent = cmem >> shift;
        let set = &self.sets[self.set_of(cn, extent)].0;
        let entry = set.iter().find(|e| e.cn == cn && u64::from(e.cmem_extent) == extent)?;
        Some(address(table, entry.mp_extent & !SEALED, cmem))
    }

    /// Set of a CN's extent: sequential extents are in sequential sets, which start at a different set for each CN.
    #[inline]
    fn set_of(&self, cn: CnId, extent: u64) -> usize {
        let start = cn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(extent)) as usize & (self.sets.len() - 1)
    }

    #[cold]
    #[inline(never)]
    fn miss(&mut self, table: &PageTable, cn: CnId, cmem: u64) -> Result<u32, Unmapped> {
        self.counters.misses += 1;
        let shift = table.extent_shift();
        let Ok(cmem_extent) = u32::try_from(cmem >> shift) else { return Err(table.unmapped(cn)) };
        let Some(value) = table.value(&self.shares, cn, cmem_extent.into()) else {
            return Err(table.unmapped(cn));
        };
        let mp_extent = entry::mp_extent(value).0 | if entry::is_sealed(value) { SEALED } else { 0 };
        let at = self.set_of(cn, cmem_extent.into());
        let set = &mut self.sets[at].0;
        // The entry filled last moves to the second way, and the older one is replaced.
        *set = [Entry { cn, cmem_extent, mp_extent }, set[0]];
        Ok(mp_extent)
    }

    /// Empties the TLB, and renews its copy of the shares.
    pub fn purge(&mut self, table: &PageTable) {
        self.shares = table.shares().current();
        self.sets.fill(EMPTY);
        self.counters.purges += 1;
    }

    pub fn counters(&self) -> TlbCounters {
        self.counters
    }
}

#[inline]
fn address(table: &PageTable, mp_extent: u32, cmem: u64) -> MpAddr {
    let shift = table.extent_shift();
    MpAddr(u64::from(mp_extent) << shift | (cmem & ((1 << shift) - 1)))
}
