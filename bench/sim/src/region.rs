//! A region's part on one memory node as its compute node sees it, with the values that its lines may have.

use cxloe_fabric::model::Name;

use crate::register::{Origin, Registers, Shape};

/// Identification of a part of a region that the manager has created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPart {
    /// Name of the region; a later region may have the same name.
    pub name: Name,
    /// Number of the HDM decoder in the region that decodes the part's addresses.
    pub decoder: usize,
    /// Position of the part in its interleave set.
    pub position: u32,
    /// Creation time of the region, which distinguishes regions of the same name.
    pub created_ms: u64,
}

impl RegionPart {
    /// Returns true if `other` is at the same place in a region of the same name, whenever that region was
    /// created.
    pub fn is_at(&self, other: &RegionPart) -> bool {
        (&self.name, self.decoder, self.position) == (&other.name, other.decoder, other.position)
    }
}

/// Memory of one compute node on one memory node: a region, or a part of an interleaved one. If the region is
/// replaced or its content lost, the part has another life, with other CMem addresses or other content.
pub struct Region {
    /// Number of the present life, from 0.
    pub life: u64,
    /// Initial content in the present life.
    pub origin: Origin,
    /// First CMem address of the part.
    pub cmem: u64,
    /// Values that each line may have.
    pub registers: Registers,
    /// Incarnation of the memory node's content at the beginning of this life; `None` until a session reports
    /// it.
    pub born: Option<u64>,
    /// Incarnation that the last session with the memory node reported.
    pub session: Option<u64>,
    /// True if the manager has reported the content as lost.
    pub lost: bool,
    /// Identification of the part; `None` without a manager.
    pub place: Option<RegionPart>,
}

impl Region {
    /// Makes a part whose incarnation is unknown unless `born` is given.
    pub fn new(origin: Origin, cmem: u64, shape: Shape, born: Option<u64>, session: Option<u64>) -> Region {
        let registers = Registers::new(origin, shape.lines());
        Region { life: origin.life, origin, cmem, registers, born, session, lost: false, place: None }
    }

    /// Returns true if the compute node has received a report that the content is lost.
    pub fn is_lost(&self) -> bool {
        self.lost || self.born.is_some() && self.session.is_some() && self.born != self.session
    }

    /// Records that a session has reported this incarnation of the memory node's content. `losses` is the number of
    /// times that the pool had been lost before this incarnation.
    pub fn opened(&mut self, incarnation: u64, losses: usize) {
        self.session = Some(incarnation);
        if self.born.is_none() {
            self.born = Some(incarnation);
            let origin = Origin { losses, ..self.origin };
            self.registers.rebase(self.origin, origin);
            self.origin = origin;
        }
    }

    /// Begins the next life of the part. Operations in flight belong to the previous life; data that was not flushed
    /// may be lost.
    pub fn ends(&mut self) {
        self.life += 1;
        self.registers.crashed();
    }
}
