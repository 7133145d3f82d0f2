//! The only writer of the page table, used by the control thread.
//!
//! A mapping is added in place, and workers see it at once. A removed mapping leaves a tombstone; after
//! [`PageTableWriter::seal`] its slot and its extent are reused only after every worker has passed that generation. So
//! no slot changes while a reader uses it, and no extent gets a new owner while a worker may write for the old one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::entry::{self, CnId, Content, Key};
use super::generation::Generation;
use super::shares::Share;
use super::table::{PageTable, Translation};
use crate::pool::{MpExtent, Pool};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error(
        "extent {extent} does not exist: the pool has {extents}; the manager's record of this pool is wrong"
    )]
    NoSuchExtent { extent: MpExtent, extents: u32 },
    #[error("CN {cn:#x}, CMem extent {cmem_extent:#x} lies outside 48-bit addresses")]
    Range { cn: CnId, cmem_extent: u64 },
    #[error("CMem extent {} of CN {:#x} is mapped to extent {} already; unmap it first", .0.cmem_extent, .0.cn, .0.mp_extent)]
    AddressTaken(Translation),
    #[error("extent {} belongs to CN {:#x} (CMem extent {}); two CNs never share one", .0.mp_extent, .0.cn, .0.cmem_extent)]
    ExtentTaken(Translation),
    #[error("extent {0} is still referenced by workers; wait for their generation and map again")]
    ExtentBusy(MpExtent),
}

/// Result of recovering the page table of a pool with content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    pub kept: usize,
    /// Number of entries dropped, because they failed their checksum or contradicted others; their addresses answer
    /// NXM.
    pub dropped: usize,
}

/// A removed mapping that workers may still use.
#[derive(Debug)]
struct Retired {
    slot: usize,
    /// Extent of the mapping; `None` for a tenant entry.
    extent: Option<MpExtent>,
    generation: u64,
}

/// Changes the page table of a pool. A pool has only one such writer.
#[derive(Debug)]
pub struct PageTableWriter {
    table: Arc<PageTable>,
    incarnation: u64,
    owners: HashMap<MpExtent, Translation>,
    retired: Vec<Retired>,
}

impl PageTableWriter {
    /// Opens the page table of a pool: empty in a fresh pool, or recovered from the checksummed entries of a pool with
    /// content. A pool has one writer; no worker may use the table before this function returns.
    pub fn open(pool: Arc<Pool>) -> (PageTableWriter, Recovery) {
        let incarnation = pool.incarnation();
        let table = Arc::new(PageTable::new(pool, Generation::new()));
        let mut writer = PageTableWriter { table, incarnation, owners: HashMap::new(), retired: Vec::new() };
        let recovery = writer.recover();
        writer.table.copies().recover(writer.table.pool());
        (writer, recovery)
    }

    pub fn table(&self) -> &Arc<PageTable> {
        &self.table
    }

    pub fn len(&self) -> usize {
        self.owners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub fn owner(&self, mp_extent: MpExtent) -> Option<Translation> {
        self.owners.get(&mp_extent).copied()
    }

    /// Adds a mapping, which workers see at once. The caller has prepared the extent ([`Pool::prepare_extent`]), or gives
    /// it out with its content. An existing equal mapping stays.
    pub fn map(&mut self, mapping: Translation) -> Result<(), TableError> {
        if self.check(mapping)? {
            return Ok(());
        }
        self.reclaim();
        let Translation { cn, cmem_extent, mp_extent, sealed } = mapping;
        // An extent that is given out with its content is not prepared, and may have been zeroed before.
        self.table.pool().no_longer_zero(mp_extent);
        self.put(Key::mapping(cn, cmem_extent), entry::mapping_value(mp_extent, sealed));
        self.owners.insert(mp_extent, mapping);
        self.count(cn, 1);
        Ok(())
    }

    /// Checks whether [`map`](Self::map) would succeed; `Ok(true)` if the mapping exists already.
    pub fn check(&self, mapping: Translation) -> Result<bool, TableError> {
        let Translation { cn, cmem_extent, mp_extent, .. } = mapping;
        let extents = self.table.pool().extents();
        if mp_extent.0 >= extents {
            return Err(TableError::NoSuchExtent { extent: mp_extent, extents });
        }
        if cn >> 48 != 0 || cmem_extent >> (48 - self.table.extent_shift()) != 0 {
            return Err(TableError::Range { cn, cmem_extent });
        }
        let owner = self.owner(mp_extent);
        if owner == Some(mapping) {
            return Ok(true);
        }
        if let Some(other) = self.table.lookup(cn, cmem_extent) {
            return Err(TableError::AddressTaken(Translation { mp_extent: other, ..mapping }));
        }
        if let Some(owner) = owner {
            return Err(TableError::ExtentTaken(owner));
        }
        let passed = self.table.generation().passed();
        let busy = |retired: &Retired| retired.extent == Some(mp_extent) && retired.generation > passed;
        if self.retired.iter().any(busy) { Err(TableError::ExtentBusy(mp_extent)) } else { Ok(false) }
    }

    /// Removes a mapping and returns its extent, which workers may use until they have passed the generation that the
    /// next [`seal`](Self::seal) returns.
    pub fn unmap(&mut self, cn: CnId, cmem_extent: u64) -> Option<MpExtent> {
        if cn >> 48 != 0 || cmem_extent >> (48 - self.table.extent_shift()) != 0 {
            return None;
        }
        let (slot, value) = self.table.find(Key::mapping(cn, cmem_extent))?;
        let extent = entry::mp_extent(value);
        self.retire(slot, Some(extent));
        self.owners.remove(&extent);
        self.count(cn, -1);
        Some(extent)
    }

    /// Replaces the ranges of sealed memory that CNs other than its owner may read. The new ranges take effect for a
    /// worker when it passes the generation returned.
    pub fn set_shares(&mut self, shares: Vec<Share>) -> u64 {
        self.table.shares().set(shares);
        self.seal()
    }

    /// Begins to copy the first extent of each pair to the second, which is prepared and not mapped. The copies are in
    /// force when every worker has passed the generation returned; then call [`copies_known`](Self::copies_known).
    pub(crate) fn begin_copies(&mut self, pairs: &[(MpExtent, MpExtent)]) -> u64 {
        self.table.copies().begin(self.table.pool(), pairs);
        self.seal()
    }

    /// Allows the background thread to fill these extents, which the caller may map after this call.
    pub(crate) fn copies_known(&mut self, targets: &[MpExtent]) {
        self.table.copies().known(targets);
    }

    /// Ends the copies to these extents, if there are any. A worker copies no more pages to them after it has passed
    /// the generation of the next [`seal`](Self::seal).
    pub(crate) fn give_up_copies(&mut self, targets: &[MpExtent]) -> bool {
        self.table.copies().give_up(self.table.pool(), targets)
    }

    /// Ends a series of [`unmap`](Self::unmap)s: when [`passed`](Self::passed) is at least the generation returned, no
    /// worker uses the removed mappings.
    pub fn seal(&mut self) -> u64 {
        self.table.generation().advance()
    }

    pub fn passed(&self) -> u64 {
        self.table.generation().passed()
    }

    fn count(&mut self, cn: CnId, change: i64) {
        let key = Key::tenant(cn);
        match self.table.find(key) {
            None => self.put(key, change.unsigned_abs()),
            Some((slot, value)) => match value.saturating_add_signed(change) {
                0 => self.retire(slot, None),
                value => entry::set_value(&self.table.slots()[slot], key, value, self.incarnation),
            },
        }
    }

    fn retire(&mut self, slot: usize, extent: Option<MpExtent>) {
        // The generation that the next `seal` begins.
        let generation = self.table.generation().current() + 1;
        entry::remove(&self.table.slots()[slot], generation);
        self.retired.push(Retired { slot, extent, generation });
    }

    /// Writes a new entry into the first slot of its probe sequence that is empty or no longer used.
    fn put(&self, key: Key, value: u64) {
        let passed = self.table.generation().passed();
        let free = self.table.probes(key).find(|(_, slot)| match entry::content(slot, self.incarnation) {
            Content::Empty => true,
            Content::Removed(generation) => generation <= passed,
            Content::Entry(..) => false,
        });
        let (_, slot) = free.expect("the table has twice the slots that all entries and tombstones take");
        entry::fill(slot, key, value, self.incarnation);
    }

    /// Clears the tombstones that no worker uses and past which no probe sequence continues.
    fn reclaim(&mut self) {
        let passed = self.table.generation().passed();
        let slots = self.table.slots();
        let mask = slots.len() - 1;
        let out_of_use = |at: usize| matches!(entry::content(&slots[at], self.incarnation), Content::Removed(generation) if generation <= passed);
        let empty = |at: usize| entry::content(&slots[at], self.incarnation) == Content::Empty;
        self.retired.retain(|retired| {
            let mut at = retired.slot;
            while retired.generation <= passed && out_of_use(at) && empty((at + 1) & mask) {
                entry::clear(&slots[at]);
                at = at.wrapping_sub(1) & mask;
            }
            retired.generation > passed
        });
    }

    /// Recovers the entries in the pool. Drops entries that fail their checksum, name an extent that does not exist, or
    /// contradict another entry; makes the others reachable and counts them.
    fn recover(&mut self) -> Recovery {
        let mut claims = Vec::new();
        let mut recovery = Recovery::default();
        for at in 0..self.table.slots().len() {
            match entry::content(&self.table.slots()[at], self.incarnation) {
                Content::Empty => {}
                // No worker runs yet, so no reader uses the tombstones.
                Content::Removed(_) => self.discard(at),
                // Tenant entries are removed here and made again below, with new counts.
                Content::Entry(key, _, true) if key.cmem_extent().is_none() => self.discard(at),
                Content::Entry(key, value, true)
                    if entry::is_mapping_value(value, self.table.pool().extents()) =>
                {
                    claims.push((at, key, value));
                }
                Content::Entry(..) => {
                    self.discard(at);
                    recovery.dropped += 1;
                }
            }
        }
        let mut extents_of: HashMap<Key, HashSet<u64>> = HashMap::new();
        let mut keys_of: HashMap<MpExtent, HashSet<Key>> = HashMap::new();
        for (_, key, value) in &claims {
            extents_of.entry(*key).or_default().insert(*value);
            keys_of.entry(entry::mp_extent(*value)).or_default().insert(*key);
        }
        for (at, key, value) in claims {
            let extent = entry::mp_extent(value);
            let contested = extents_of[&key].len() > 1 || keys_of[&extent].len() > 1;
            let (cn, cmem_extent) = (key.cn(), key.cmem_extent().unwrap_or_default());
            let mapping = Translation { cn, cmem_extent, mp_extent: extent, sealed: entry::is_sealed(value) };
            if contested {
                recovery.dropped += 1;
            } else if self.owners.insert(extent, mapping).is_none() {
                recovery.kept += 1;
                if self.table.find(key).is_none() {
                    // A damaged slot has interrupted the probe sequence of this entry. The entry is copied before the
                    // old slot is discarded, so that a crash between the two steps loses nothing.
                    self.put(key, value);
                }
            }
            if contested || self.table.find(key).is_some_and(|(found, _)| found != at) {
                self.discard(at);
            }
        }
        let tenants: Vec<CnId> = self.owners.values().map(|mapping| mapping.cn).collect();
        tenants.into_iter().for_each(|cn| self.count(cn, 1));
        self.reclaim();
        recovery
    }

    /// Frees a slot while no worker runs.
    fn discard(&mut self, slot: usize) {
        entry::remove(&self.table.slots()[slot], 0);
        self.retired.push(Retired { slot, extent: None, generation: 0 });
    }
}
