//! Compute nodes on several queues: a session with each memory node from each, by page.

use cxloe_wire::random::Random;

use super::Plan;
use crate::scenario::Scenario;
use crate::trouble::pick;

/// Where sessions of one node may meet their own fate, while memory nodes keep what they have.
const SPREAD: [Scenario; 6] = [
    Scenario::Lossy,
    Scenario::Bursty,
    Scenario::Reordering,
    Scenario::Hostile,
    Scenario::Partitions,
    Scenario::Pauses,
];
/// How many; one as often as several.
const QUEUES: [u8; 4] = [1, 1, 2, 4];

impl Plan {
    /// Gives some compute nodes several queues.
    pub(super) fn give_queues(&mut self, r: &mut Random) {
        if !SPREAD.contains(&self.scenario) {
            return;
        }
        for cn in &mut self.cns {
            cn.queues = pick(r, &QUEUES);
        }
        if self.cns.iter().any(|cn| cn.queues > 1) {
            // Pages for each of them.
            self.shape.pages = self.shape.pages.max(4);
        }
    }
}
