//! A region's part on one memory node as its compute node sees it, and the values that its lines may have.

use cxloe_fabric::model::Name;

use crate::register::{Origin, Registers, Shape};

/// Identification of a part of a region that the manager has created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPart {
    /// Name of the region, which a later region may have again.
    pub name: Name,
    /// Number of the HDM decoder that maps the part.
    pub decoder: usize,
    /// Position of the part in its interleave set.
    pub position: u32,
    /// Creation time of the region, by which regions of the same name are distinguished.
    pub created_ms: u64,
}

impl RegionPart {
    /// True if `other` is at the same place in a region of the same name, whenever that region was created.
    pub fn is_at(&self, other: &RegionPart) -> bool {
        (&self.name, self.decoder, self.position) == (&other.name, other.decoder, other.position)
    }
}

/// Memory of one compute node on one memory node: a region, or a part of an interleaved one. Each life of the region
/// has its own CMem or content.
pub struct Region {
    /// Number of the region's present life, from 0.
    pub life: u64,
    /// Initial content in this life.
    pub origin: Origin,
    /// First byte of the region's CMem.
    pub cmem: u64,
    /// Values that each line may have.
    pub registers: Registers,
    /// Incarnation of the memory node's content when this life began; `None` until a session reports it.
    pub born: Option<u64>,
    /// Incarnation that the last session with the memory node reported.
    pub session: Option<u64>,
    /// Set once the manager has reported the data as lost.
    pub lost: bool,
    /// Identification of the part; `None` without a manager.
    pub place: Option<RegionPart>,
}

impl Region {
    /// A region whose incarnation is unknown unless `born` is given.
    pub fn new(origin: Origin, cmem: u64, shape: Shape, born: Option<u64>, session: Option<u64>) -> Region {
        let registers = Registers::new(origin, shape.lines());
        Region { life: origin.life, origin, cmem, registers, born, session, lost: false, place: None }
    }

    /// True if the compute node has received a report that the data is lost.
    pub fn is_lost(&self) -> bool {
        self.lost || self.born.is_some() && self.session.is_some() && self.born != self.session
    }

    /// Records a session with a memory node of this incarnation, after `losses` losses of its pool.
    pub fn opened(&mut self, incarnation: u64, losses: usize) {
        self.session = Some(incarnation);
        if self.born.is_none() {
            self.born = Some(incarnation);
            let origin = Origin { losses, ..self.origin };
            self.registers.rebase(self.origin, origin);
            self.origin = origin;
        }
    }

    /// Ends the present life: operations in flight belong to it, and unflushed data may be lost.
    pub fn ends(&mut self) {
        self.life += 1;
        self.registers.crashed();
    }
}
