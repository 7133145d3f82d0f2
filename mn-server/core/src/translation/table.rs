//! The page table as the workers see it: read-only, without locks, in the pool's own memory.
//!
//! Open addressing: an entry lies at the slot its key hashes to, or at one of the next, before any empty one.
//! The table has at least four slots per extent of the pool, so that a lookup mostly ends in its first cache line.

use std::sync::Arc;

use super::entry::{self, CnId, Content, Key, Probe, mp_extent};
use super::generation::Generation;
use super::instances::Instances;
use crate::pool::{MpExtent, Pool, Slot};

/// Why an address has no translation: the status of the Fault that answers the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmapped {
    /// The CN has memory here, but not at this address (Fault 1).
    #[error("nothing is mapped at this CMem address for this CN")]
    Nxm,
    /// The CN has no memory here at all (Fault 2).
    #[error("this CN has no memory on this node")]
    Denied,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Translation {
    /// Whose it is.
    pub cn: CnId,
    /// The extent number in the CN's CMem: byte address / extent size.
    pub cmem_extent: u64,
    /// The extent of the pool behind it.
    pub mp_extent: MpExtent,
}

/// The complete page table.
#[derive(Debug)]
pub struct PageTable {
    pool: Arc<Pool>,
    generation: Arc<Generation>,
    instances: Instances,
    extent_shift: u32,
}

impl PageTable {
    pub(super) fn new(pool: Arc<Pool>, generation: Arc<Generation>) -> PageTable {
        let extent_shift = pool.extent_bytes().trailing_zeros();
        PageTable { pool, generation, instances: Instances::default(), extent_shift }
    }

    /// The pool it lies in and leads to.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The generation of its mappings; each worker takes a [`Passage`](super::Passage) from it.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Which instance each CN is; each worker takes a [`Passage`](super::Passage) from it, too.
    pub fn instances(&self) -> &Instances {
        &self.instances
    }

    /// log2 of the extent size in bytes.
    #[inline]
    pub fn extent_shift(&self) -> u32 {
        self.extent_shift
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        self.pool.table()
    }

    /// The slots at which `key` may lie, in the order they are tried.
    #[inline]
    pub(super) fn probes(&self, key: Key) -> impl Iterator<Item = (usize, &Slot)> {
        let slots = self.slots();
        let (mask, start) = (slots.len() - 1, key.hash() as usize);
        (0..slots.len()).map(move |step| {
            let at = start.wrapping_add(step) & mask;
            (at, &slots[at])
        })
    }

    /// The slot of `key` and its value.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<(usize, u64)> {
        for (at, slot) in self.probes(key) {
            match entry::probe(slot, key) {
                Probe::Found(value) => return Some((at, value)),
                Probe::Other => {}
                Probe::End => break,
            }
        }
        None
    }

    /// The extent of the pool behind a CN's CMem extent. For a worker between two batch boundaries, or for
    /// the control thread.
    #[inline]
    pub fn lookup(&self, cn: CnId, cmem_extent: u64) -> Option<MpExtent> {
        self.find(Key::mapping(cn, cmem_extent)).map(|(_, value)| mp_extent(value))
    }

    /// Why a lookup for this CN found nothing.
    #[cold]
    pub fn unmapped(&self, cn: CnId) -> Unmapped {
        match self.find(Key::tenant(cn)) {
            Some(_) => Unmapped::Nxm,
            None => Unmapped::Denied,
        }
    }

    /// All mappings, in no order. For the control thread: one that is removed meanwhile may or may not be seen.
    pub fn iter(&self) -> impl Iterator<Item = Translation> {
        self.slots().iter().filter_map(|slot| match entry::content(slot, self.pool.incarnation()) {
            Content::Entry(key, value, true) => Some(Translation {
                cn: key.cn(),
                cmem_extent: key.cmem_extent()?,
                mp_extent: mp_extent(value),
            }),
            _ => None,
        })
    }

    /// The number of mappings that fit: one per extent of the pool.
    pub fn capacity(&self) -> usize {
        self.pool.extents() as usize
    }
}
