//! State outside of a compute node, against which the node's checks compare: content of the pools, and the manager's
//! regions.

use cxloe_fabric::model::LegState;
use cxloe_gmm_core::manager::FabricState;

use crate::memory_node::MemoryNode;
use crate::region::Region;

/// State outside of a compute node, against which the node's checks compare.
#[derive(Clone, Copy)]
pub struct NodeContext<'a> {
    /// All memory nodes of the run, by their numbers.
    pub mns: &'a [MemoryNode],
    /// Committed state of the manager; `None` with a static map.
    pub state: Option<&'a FabricState>,
}

impl NodeContext<'_> {
    pub fn node_of(&self, region: &Region) -> &MemoryNode {
        &self.mns[region.origin.mn]
    }

    /// Returns true if the manager has withdrawn a part of a region, even if the owner has not received the change yet.
    pub fn is_taken_away(&self, region: &Region) -> bool {
        let (Some(state), Some(place)) = (self.state, &region.place) else { return false };
        let known = state.regions.get(&place.name).filter(|known| known.created_ms == place.created_ms);
        let leg = known.and_then(|known| {
            known.legs.iter().find(|leg| {
                (leg.decoder as usize, leg.position, leg.cmem_base)
                    == (place.decoder, place.position, region.cmem)
            })
        });
        leg.is_none_or(|leg| leg.state != LegState::Mapped || leg.incarnation != region.born)
    }
}
