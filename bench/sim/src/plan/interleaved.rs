//! Regions that are spread over several memory nodes.

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_wire::random::Random;

use super::Plan;
use crate::layout::Interleave;
use crate::register::Shape;
use crate::trouble::pick;

/// Ways of interleaved runs, the cheaper ones more often.
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
    /// A region over `ways` memory nodes, and perhaps one more memory node with a region of its own behind it.
    pub(super) fn spread(&mut self, r: &mut Random, ways: Ways) {
        let granularity = pick(r, &Granularity::all().collect::<Vec<_>>());
        self.set_interleave(
            Some(Interleave { ways, granularity }),
            ways.count() as usize + r.below(2) as usize,
        );
    }

    /// Spreads regions over memory nodes, `mns` of them in all.
    pub(crate) fn set_interleave(&mut self, interleave: Option<Interleave>, mns: usize) {
        self.mns = self.mns.iter().cycle().take(mns).cloned().collect();
        // Fewer nodes than ways: as many ways as there can be.
        self.interleave = interleave.map(|i| {
            let possible = Ways::ALL
                .into_iter()
                .filter(|ways| ways.count() as usize <= mns.min(i.ways.count() as usize));
            Interleave { ways: possible.max().unwrap_or(Ways::One), ..i }
        });
        if let Some(Interleave { granularity, .. }) = self.interleave {
            // Whole chunks of every memory node, so that what is used is a range without gaps.
            self.shape = Shape { pages: (granularity.bytes() as usize / 4096).max(1), page_lines: 64 };
        }
    }
}
