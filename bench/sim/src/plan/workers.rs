//! Plans of compute nodes with several workers, each of which serves regions of its own.

use cxloe_wire::random::Random;

use super::Plan;
use crate::fault::pick;
use crate::scenario::Scenario;

/// Numbers of workers to draw from.
const WORKERS: [u8; 3] = [1, 2, 4];
/// Maximum number of sessions that a compute node has with a memory node, unless it has as many workers: runs with more
/// take longer and show nothing more.
const SESSIONS_MAX: u8 = 8;
/// Maximum number of memory nodes in a static map with several workers.
const MNS_MAX: usize = 16;

impl Plan {
    /// Draws the number of workers of each compute node. Nodes have one in scenarios that measure speed or shares, and
    /// in those that follow one session.
    pub(super) fn give_workers(&mut self, r: &mut Random) {
        if matches!(self.scenario, Scenario::Calm | Scenario::Congested | Scenario::Late) {
            return;
        }
        for cn in &mut self.cns {
            cn.workers = pick(r, &WORKERS);
        }
    }

    /// Returns the maximum number of workers of a compute node.
    pub(crate) fn workers_max(&self) -> usize {
        self.cns.iter().map(|cn| usize::from(cn.workers)).max().unwrap_or(1)
    }

    /// Limits the queues of each worker, so that those of all workers are no more than the sessions of a node.
    pub(crate) fn limit_queues(&mut self) {
        for cn in &mut self.cns {
            while cn.queues > 1 && cn.queues * cn.workers > SESSIONS_MAX {
                cn.queues /= 2;
            }
        }
    }

    /// Adds memory nodes to a static map until there is a region for each worker, if there may be that many.
    pub(crate) fn give_each_worker_a_region(&mut self) {
        let interleaved = self.interleave.map_or(0, |interleave| interleave.ways.count() as usize - 1);
        let wanted = (self.workers_max() + interleaved).min(MNS_MAX).max(self.mns.len());
        if self.fabric.is_none() && self.workers_max() > 1 {
            self.mns = self.mns.iter().cycle().take(wanted).cloned().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::Overrides;

    fn planned(scenario: Scenario, seed: u64, overrides: Overrides) -> Plan {
        let mut plan = Plan::draw(scenario, seed);
        overrides.apply(&mut plan);
        plan
    }

    #[test]
    fn nodes_have_one_two_or_four_workers() {
        let drawn = |seed| planned(Scenario::Restarts, seed, Overrides::default());
        let plans: Vec<Plan> = (0..40).map(drawn).collect();
        for workers in WORKERS {
            assert!(plans.iter().any(|plan| plan.cns.iter().any(|cn| cn.workers == workers)), "{workers}");
        }
        assert!(plans.iter().all(|plan| plan.mns.len() >= plan.workers_max()));
        assert_eq!(planned(Scenario::Calm, 1, Overrides::default()).workers_max(), 1);
    }

    #[test]
    fn one_worker_changes_nothing_else() {
        for seed in 0..20 {
            let mut plan = Plan::draw(Scenario::Partitions, seed);
            plan.cns.iter_mut().for_each(|cn| cn.workers = 1);
            let one =
                planned(Scenario::Partitions, seed, Overrides { workers: Some(1), ..Overrides::default() });
            assert_eq!(format!("{plan:?}"), format!("{one:?}"));
        }
    }

    #[test]
    fn workers_limit_queues_and_memory_nodes_limit_regions() {
        let overrides = Overrides { workers: Some(16), ..Overrides::default() };
        let plan = planned(Scenario::Partitions, 1, overrides);
        assert!(plan.cns.iter().all(|cn| (cn.workers, cn.queues) == (16, 1)) && plan.mns.len() == 16);
    }
}
