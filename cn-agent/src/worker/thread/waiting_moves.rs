//! Regions that are to move to another compute node while programs of this one map them. Pages that programs have
//! changed are still in the programs' memory. Such a region is therefore released after all programs have unmapped it,
//! because unmapping writes the changed pages back.

use cxloe_cn_core::attachments::Attachment;
use cxloe_fabric::model::Region;

/// The regions, each with its ticket: the number that is reported when the region's lines are written back.
#[derive(Default)]
pub struct WaitingMoves(Vec<(Attachment, u64)>);

impl WaitingMoves {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, region: Attachment, ticket: u64) {
        self.0.push((region, ticket));
    }

    /// Removes the region at `hpa`, and returns its attachment.
    pub fn remove(&mut self, hpa: u64) -> Option<Attachment> {
        let at = self.0.iter().position(|(region, _)| region.hpa == hpa)?;
        Some(self.0.swap_remove(at).0)
    }

    /// Removes the first region for which `is_free` holds, and returns it with the ticket of its drain.
    pub fn take(&mut self, is_free: impl Fn(&Region) -> bool) -> Option<(Attachment, u64)> {
        let at = self.0.iter().position(|(attachment, _)| is_free(&attachment.region))?;
        Some(self.0.swap_remove(at))
    }
}
