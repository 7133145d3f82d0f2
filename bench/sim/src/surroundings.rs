//! What a compute node's checks look at beside itself: what is really there.

use cxloe_fabric::model::LegState;
use cxloe_gmm::manager::State;

use crate::memory_node::MemoryNode;
use crate::region::Region;

/// Everything around a compute node.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The memory nodes.
    pub mns: &'a [MemoryNode],
    /// What the manager has committed, where there is one.
    pub state: Option<&'a State>,
}

impl Surroundings<'_> {
    /// The memory node that a part of a region lies on.
    pub fn node_of(&self, region: &Region) -> &MemoryNode {
        &self.mns[region.origin.mn]
    }

    /// Whether the manager has taken a part of a region away from its owner, who may not have heard of it yet.
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
