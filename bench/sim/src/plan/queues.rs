//! Plans of compute nodes with several queues. Each queue has its own session with each memory node, and
//! serves a part of the pages.

use cxloe_wire::random::Random;

use super::Plan;
use crate::fault::pick;
use crate::scenario::Scenario;

/// Scenarios in which nodes may have several queues: one session of a node may fail while its others continue, and
/// memory nodes keep their content.
const SPREAD: [Scenario; 6] = [
    Scenario::Lossy,
    Scenario::Bursty,
    Scenario::Reordering,
    Scenario::Hostile,
    Scenario::Partitions,
    Scenario::Pauses,
];
/// Numbers of queues to draw from; in half of the draws, a node has one queue.
const QUEUES: [u8; 4] = [1, 1, 2, 4];

impl Plan {
    /// Draws the number of queues of each compute node, in scenarios that allow several.
    pub(super) fn give_queues(&mut self, r: &mut Random) {
        if !SPREAD.contains(&self.scenario) {
            return;
        }
        for cn in &mut self.cns {
            cn.queues = pick(r, &QUEUES);
        }
        if self.cns.iter().any(|cn| cn.queues > 1) {
            // With at least four pages, each queue serves some of them.
            self.shape.pages = self.shape.pages.max(4);
        }
    }
}
