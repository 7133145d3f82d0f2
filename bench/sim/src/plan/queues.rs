//! Plans of compute nodes with several queues, each of which has its own session with each memory node and serves some
//! of the pages.

use cxloe_wire::random::Random;

use super::Plan;
use crate::fault::pick;
use crate::scenario::Scenario;

/// Scenarios in which sessions of one node may fail independently, while memory nodes keep their content.
const SPREAD: [Scenario; 6] = [
    Scenario::Lossy,
    Scenario::Bursty,
    Scenario::Reordering,
    Scenario::Hostile,
    Scenario::Partitions,
    Scenario::Pauses,
];
/// Numbers of queues to draw from; half of the draws give one queue.
const QUEUES: [u8; 4] = [1, 1, 2, 4];

impl Plan {
    /// Draws several queues for some compute nodes.
    pub(super) fn give_queues(&mut self, r: &mut Random) {
        if !SPREAD.contains(&self.scenario) {
            return;
        }
        for cn in &mut self.cns {
            cn.queues = pick(r, &QUEUES);
        }
        if self.cns.iter().any(|cn| cn.queues > 1) {
            // Enough pages that each queue serves some.
            self.shape.pages = self.shape.pages.max(4);
        }
    }
}
