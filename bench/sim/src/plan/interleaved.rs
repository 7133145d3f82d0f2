//! Plans of regions interleaved over several memory nodes.

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_wire::random::Random;

use super::Plan;
use crate::fault::pick;
use crate::layout::Interleave;
use crate::register::Shape;

/// Interleave ways to draw from; those with few memory nodes cost less and occur more often.
pub(super) const WAYS: [Ways; 12] = [
    Ways::Two,
    Ways::Two,
    Ways::Three,
    Ways::Three,
    Ways::Three,
    Ways::Four,
    Ways::Four,
    Ways::Four,
    Ways::Six,
    Ways::Eight,
    Ways::Twelve,
    Ways::Sixteen,
];

impl Plan {
    /// Plans regions over `ways` memory nodes. There may be one more memory node, whose region lies at the addresses
    /// after those regions.
    pub(super) fn spread(&mut self, r: &mut Random, ways: Ways) {
        let granularity = pick(r, &Granularity::all().collect::<Vec<_>>());
        self.set_interleave(
            Some(Interleave { ways, granularity }),
            ways.count() as usize + r.below(2) as usize,
        );
    }

    /// Sets the interleaving of regions, and the number of memory nodes, `mns`.
    pub(crate) fn set_interleave(&mut self, interleave: Option<Interleave>, mns: usize) {
        self.mns = self.mns.iter().cycle().take(mns).cloned().collect();
        // With fewer memory nodes than ways, the largest possible number of ways is used.
        self.interleave = interleave.map(|i| {
            let possible = Ways::ALL
                .into_iter()
                .filter(|ways| ways.count() as usize <= mns.min(i.ways.count() as usize));
            Interleave { ways: possible.max().unwrap_or(Ways::One), ..i }
        });
        if let Some(Interleave { granularity, .. }) = self.interleave {
            // All lines of a chunk are used, so that the used lines of all memory nodes are contiguous in
            // HPA.
            self.shape = Shape { pages: (granularity.bytes() as usize / 4096).max(1), page_lines: 64 };
        }
    }
}
