//! Shares: sealed memory that compute nodes other than its owner may read. A share ends with the owner's mapping.

use cxloe_fabric::model::{Mapping, Share};

use super::{Mappings, cn_id};
use crate::translation::{self, Translation};

impl Mappings {
    /// Restores the shares that an earlier process has stored on disk. Call before a worker starts.
    pub fn resume_shares(&mut self, shares: Vec<Share>) {
        self.set_shares(shares);
    }

    /// Shares: sealed memory that CNs other than its owner may read. The caller stores them on disk before it sends a
    /// result.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Replaces the shares. They take effect for a worker when it passes the generation returned.
    pub(super) fn set_shares(&mut self, shares: Vec<Share>) -> u64 {
        let shift = self.table().extent_shift();
        let range = |share: &Share| translation::Share {
            reader: cn_id(share.reader),
            first: share.reader_base >> shift,
            count: share.mapping.extents.len(),
            owner: cn_id(share.mapping.cn),
            owner_first: share.mapping.cmem_base >> shift,
        };
        let ranges = shares.iter().map(range).collect();
        self.shares = shares;
        self.writer.set_shares(ranges)
    }

    /// Removes all shares of an owner's mapping that is about to be removed.
    pub(super) fn end_shares_of(&mut self, mapping: &Mapping) {
        let place = |mapping: &Mapping| (mapping.cn, mapping.cmem_base);
        let is_of = |share: &Share| {
            place(&share.mapping) == place(mapping) && share.mapping.extents == mapping.extents
        };
        if self.shares.iter().any(is_of) {
            let left = self.shares.iter().filter(|share| !is_of(share)).cloned().collect();
            self.set_shares(left);
        }
    }

    /// Adds a share of a mapping. It takes effect for a worker when the worker passes the generation returned. Fails if
    /// this node does not have the mapping, or the mapping is not sealed.
    pub(super) fn share(&mut self, share: &Share, mapped: &[Translation]) -> Result<u64, String> {
        let is_sealed = |t: &Translation| t.sealed && self.writer.owner(t.mp_extent) == Some(*t);
        if let Some(t) = mapped.iter().find(|t| !is_sealed(t)) {
            return Err(format!("extent {} is not sealed here for CN {}", t.mp_extent.0, share.mapping.cn));
        }
        if !share.reader_base.is_multiple_of(share.mapping.extent_bytes) {
            return Err(format!("CMem base {:#x} is not at the start of an extent", share.reader_base));
        }
        let shares = self.shares_without(share).chain([share.clone()]).collect();
        Ok(self.set_shares(shares))
    }

    /// All shares except that of the same reader at the same CMem base, which `share` replaces or ends.
    pub(super) fn shares_without(&self, share: &Share) -> impl Iterator<Item = Share> + use<> {
        let (reader, base) = (share.reader, share.reader_base);
        let others = self.shares.iter().filter(|held| (held.reader, held.reader_base) != (reader, base));
        others.cloned().collect::<Vec<_>>().into_iter()
    }
}
