//! The page table as workers use it: read-only, without locks, in the pool's own memory.
//!
//! Open addressing: an entry lies at the slot to which its key hashes, or at one of the following slots, with no empty
//! slot in between. The table has at least four slots per extent of the pool, so that most lookups end in their first
//! cache line.

use std::sync::Arc;

use super::copies::Copies;
use super::entry::{self, CnId, Content, Key, ProbeResult, mp_extent};
use super::generation::Generation;
use super::instances::Instances;
use super::shares::{self, Share, Shares};
use crate::pool::{MpExtent, Pool, Slot};

/// Reason why an address has no translation; it determines the status of the Fault that answers the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmapped {
    /// The CN has memory here, but not at this address (Fault 1).
    #[error("nothing is mapped at this CMem address for this CN")]
    Nxm,
    /// The CN has no memory here at all (Fault 2).
    #[error("this CN has no memory on this node")]
    Denied,
    /// The request is a write, and the content at this address is sealed (Fault 2).
    #[error("the content at this CMem address is sealed")]
    Sealed,
}

/// Mapping of one CMem extent of a CN to one extent of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Translation {
    pub cn: CnId,
    /// Extent number in the CN's CMem: byte address / extent size.
    pub cmem_extent: u64,
    pub mp_extent: MpExtent,
    /// Whether the content is sealed: writes are refused, and other CNs may read it ([`Share`]).
    pub sealed: bool,
}

impl Translation {
    /// Whether both map the same CMem extent of a CN to the same extent of the pool, sealed or not.
    pub fn is_same_place(&self, other: &Translation) -> bool {
        (self.cn, self.cmem_extent, self.mp_extent) == (other.cn, other.cmem_extent, other.mp_extent)
    }
}

/// Page table of a pool, together with the other state that workers read: generation, instances, shares, copies.
#[derive(Debug)]
pub struct PageTable {
    pool: Arc<Pool>,
    generation: Arc<Generation>,
    instances: Instances,
    shares: Shares,
    copies: Copies,
    extent_shift: u32,
}

impl PageTable {
    pub(super) fn new(pool: Arc<Pool>, generation: Arc<Generation>) -> PageTable {
        let extent_shift = pool.extent_bytes().trailing_zeros();
        let (instances, shares, copies) = (Instances::default(), Shares::default(), Copies::default());
        PageTable { pool, generation, instances, shares, copies, extent_shift }
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Generation of the mappings; each worker has a [`WorkerGeneration`](super::WorkerGeneration) of it.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Current instances of CNs; each worker has a [`WorkerGeneration`](super::WorkerGeneration) of these too.
    pub(crate) fn instances(&self) -> &Instances {
        &self.instances
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Copies up to `pages` pages of extents that are filled from others. Returns whether more may be left.
    /// Call from a thread that serves no requests.
    pub fn copy_pages(&self, pages: usize) -> bool {
        let step = self.copies.step(&self.pool, pages);
        self.note_copies(step.last_ended);
        step.more
    }

    pub fn bytes_to_copy(&self) -> u64 {
        self.copies.bytes_left(&self.pool)
    }

    pub(crate) fn complete_copy_to(&self, extent: MpExtent) {
        self.note_copies(self.copies.complete_to(&self.pool, extent));
    }

    pub(crate) fn complete_copies_from(&self, extent: MpExtent) {
        self.note_copies(self.copies.complete_from(&self.pool, extent));
    }

    /// Begins a generation if the last copy has ended, so that workers take the empty set, which requests need not
    /// search.
    fn note_copies(&self, last_ended: bool) {
        if last_ended {
            self.generation.advance();
        }
    }

    /// Base-2 logarithm of the extent size in bytes.
    #[inline]
    pub(crate) fn extent_shift(&self) -> u32 {
        self.extent_shift
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        self.pool.table()
    }

    /// Probe sequence of `key`: slots in the order of a lookup.
    #[inline]
    pub(super) fn probes(&self, key: Key) -> impl Iterator<Item = (usize, &Slot)> {
        let slots = self.slots();
        let (mask, start) = (slots.len() - 1, key.hash() as usize);
        (0..slots.len()).map(move |step| {
            let at = start.wrapping_add(step) & mask;
            (at, &slots[at])
        })
    }

    /// Index of the slot of `key`, and its value.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<(usize, u64)> {
        for (at, slot) in self.probes(key) {
            match entry::probe(slot, key) {
                ProbeResult::Found(value) => return Some((at, value)),
                ProbeResult::Other => {}
                ProbeResult::End => break,
            }
        }
        None
    }

    /// Extent of the pool that a CN's CMem extent maps to. To be called by a worker between two batch boundaries, or by
    /// the control thread.
    #[inline]
    pub fn lookup(&self, cn: CnId, cmem_extent: u64) -> Option<MpExtent> {
        self.find(Key::mapping(cn, cmem_extent)).map(|(_, value)| mp_extent(value))
    }

    /// Value of the mapping of a CN's CMem extent, or of the sealed mapping that `shares` gives the CN there.
    #[inline]
    pub(super) fn value(&self, shares: &[Share], cn: CnId, cmem_extent: u64) -> Option<u64> {
        if let Some((_, value)) = self.find(Key::mapping(cn, cmem_extent)) {
            return Some(value);
        }
        let (owner, extent) = shares::find(shares, cn, cmem_extent)?;
        let (_, value) = self.find(Key::mapping(owner, extent))?;
        entry::is_sealed(value).then_some(value)
    }

    #[cold]
    pub fn unmapped(&self, cn: CnId) -> Unmapped {
        match self.find(Key::tenant(cn)) {
            // A CN that reads another CN's memory by a share counts as a CN with memory here, even if it has no mapping
            // of its own.
            None if !self.shares.has_reader(cn) => Unmapped::Denied,
            _ => Unmapped::Nxm,
        }
    }

    /// All mappings, in no order, for the control thread. A mapping removed during the iteration may or may not be
    /// included.
    pub fn iter(&self) -> impl Iterator<Item = Translation> {
        self.slots().iter().filter_map(|slot| match entry::content(slot, self.pool.incarnation()) {
            Content::Entry(key, value, true) => Some(Translation {
                cn: key.cn(),
                cmem_extent: key.cmem_extent()?,
                mp_extent: mp_extent(value),
                sealed: entry::is_sealed(value),
            }),
            _ => None,
        })
    }
}
