//! A region's part on one memory node as its compute node sees it, and what its lines may read as.

use cxloe_fabric::model::Name;

use crate::register::{Origin, Registers, Shape};

/// Which part of which region it is, where the manager has made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region.
    pub name: Name,
    /// The decoder's number.
    pub decoder: usize,
    /// The position in its interleave set.
    pub position: u32,
    /// When the region was made; another one of that name was made at another time.
    pub created_ms: u64,
}

impl Place {
    /// Whether it is the same part of a region of that name, be it another one.
    pub fn is_at(&self, other: &Place) -> bool {
        (&self.name, self.decoder, self.position) == (&other.name, other.decoder, other.position)
    }
}

/// What one compute node has on one memory node: a region, or a leg of one that is spread over several. Each life is a
/// new one, with CMem or content of its own.
pub struct Region {
    /// Which one.
    pub life: u64,
    /// What it holds at first.
    pub origin: Origin,
    /// Its first byte of CMem.
    pub cmem: u64,
    /// Its lines.
    pub registers: Registers,
    /// The incarnation its data belongs to, once known.
    pub born: Option<u64>,
    /// The incarnation that the last session told.
    pub session: Option<u64>,
    /// The manager says that its data is gone.
    pub lost: bool,
    /// `None`: no manager has made it.
    pub place: Option<Place>,
}

impl Region {
    /// A region whose memory is not known yet, unless `born` says so.
    pub fn new(origin: Origin, cmem: u64, shape: Shape, born: Option<u64>, session: Option<u64>) -> Region {
        let registers = Registers::new(origin, shape.lines());
        Region { life: origin.life, origin, cmem, registers, born, session, lost: false, place: None }
    }

    /// Whether the compute node knows that the data is gone.
    pub fn is_lost(&self) -> bool {
        self.lost || self.born.is_some() && self.session.is_some() && self.born != self.session
    }

    /// A session was opened with a node that has this incarnation, its pool after so many losses.
    pub fn opened(&mut self, incarnation: u64, losses: usize) {
        self.session = Some(incarnation);
        if self.born.is_none() {
            self.born = Some(incarnation);
            let origin = Origin { losses, ..self.origin };
            self.registers.rebase(self.origin, origin);
            self.origin = origin;
        }
    }

    /// Its compute node has dropped all of it: what is under way is another life's, what was not flushed may be lost.
    pub fn ends(&mut self) {
        self.life += 1;
        self.registers.crashed();
    }
}
