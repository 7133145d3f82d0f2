//! A region's part on one memory node as its compute node sees it, and what its lines may read as.

use crate::register::{Origin, Registers, Shape};

/// What one compute node has on one memory node: a region, or a leg of one that is spread over several. Each life is a
/// new one at the same HPA, with CMem of its own.
pub struct Region {
    /// Which one.
    pub life: u64,
    /// What it holds at first.
    pub origin: Origin,
    /// Its lines.
    pub registers: Registers,
    /// The incarnation its data belongs to, once known.
    pub born: Option<u64>,
    /// The incarnation that the last session told.
    pub session: Option<u64>,
}

impl Region {
    /// A region whose memory is not known yet, unless `born` says so.
    pub fn new(origin: Origin, shape: Shape, born: Option<u64>, session: Option<u64>) -> Region {
        let registers = Registers::new(origin, shape.lines());
        Region { life: origin.life, origin, registers, born, session }
    }

    /// Whether the compute node knows that the data is gone.
    pub fn is_lost(&self) -> bool {
        self.born.is_some() && self.session.is_some() && self.born != self.session
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
}
