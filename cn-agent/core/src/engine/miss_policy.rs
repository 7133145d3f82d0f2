//! Addresses that no route holds: how accesses to them are answered.
//!
//! CXL leaves three answers to whoever decodes (MemData-NXM, poisoned data, all ones); a region's window of addresses
//! names one for what lies beyond its decoders, and the engine has one for all the rest. Nothing here is looked at for
//! an address that has a route.

use alloc::vec::Vec;
pub use cxloe_fabric::model::Unmapped;

use cxloe_wire::frame::LINE_SIZE;

use super::routes::{ROUTES_MAX, RouteError, check_shape};
use super::{Engine, EngineError, Write};
use crate::cache::Line;

/// A stretch of HPA with a policy of its own. Routes may lie within it; they come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MissPolicy {
    hpa: u64,
    bytes: u64,
    policy: Unmapped,
}

/// All decode-miss policies, in order of their HPA, none overlapping.
#[derive(Default)]
pub(super) struct MissPolicies {
    sorted: Vec<MissPolicy>,
    default: Unmapped,
}

impl MissPolicies {
    fn policy(&self, hpa: u64) -> Unmapped {
        let before = self.sorted.partition_point(|range| range.hpa <= hpa).checked_sub(1);
        let range = before.map(|at| &self.sorted[at]).filter(|range| hpa - range.hpa < range.bytes);
        range.map_or(self.default, |range| range.policy)
    }
}

impl Engine {
    /// How accesses are answered where there is neither a route nor a policy; [`Unmapped::Error`] unless set.
    pub fn set_unmapped(&mut self, policy: Unmapped) {
        self.miss_policies.default = policy;
    }

    /// How accesses to `bytes` from `hpa` on are answered where there is no route.
    ///
    /// # Errors
    /// [`RouteError::Shape`], [`RouteError::Overlap`] with another such range, [`RouteError::Full`].
    pub fn add_miss_policy(&mut self, hpa: u64, bytes: u64, policy: Unmapped) -> Result<(), RouteError> {
        check_shape(hpa, bytes)?;
        let sorted = &mut self.miss_policies.sorted;
        if sorted.len() == ROUTES_MAX {
            return Err(RouteError::Full(ROUTES_MAX));
        }
        let at = sorted.partition_point(|range| range.hpa < hpa);
        let clear_before = at == 0 || sorted[at - 1].hpa + sorted[at - 1].bytes <= hpa;
        let clear_behind = at == sorted.len() || hpa + bytes <= sorted[at].hpa;
        if !clear_before || !clear_behind {
            return Err(RouteError::Overlap { hpa });
        }
        sorted.insert(at, MissPolicy { hpa, bytes, policy });
        Ok(())
    }

    /// Removes the policy of the range that starts at `hpa`; its policy, if there was one.
    pub fn remove_miss_policy(&mut self, hpa: u64) -> Option<Unmapped> {
        let at = self.miss_policies.sorted.binary_search_by_key(&hpa, |range| range.hpa).ok()?;
        Some(self.miss_policies.sorted.remove(at).policy)
    }

    /// What a read finds where there is nothing: the same for each of its lines.
    #[cold]
    pub(super) fn read_miss_policy(&mut self, hpa: u64) -> Result<Line, EngineError> {
        let counters = &mut self.core.counters;
        match self.miss_policies.policy(hpa) {
            Unmapped::Error => {
                counters.unmapped_errors += 1;
                counters.failures += 1;
                Err(EngineError::Unmapped(hpa))
            }
            Unmapped::Poison => {
                counters.unmapped_poisoned += 1;
                counters.failures += 1;
                Err(EngineError::Poisoned(hpa))
            }
            Unmapped::AllOnes => {
                counters.unmapped_ones += 1;
                Ok([0xFF; LINE_SIZE])
            }
        }
    }

    /// What becomes of a write where there is nothing.
    #[cold]
    pub(super) fn write_miss_policy(&mut self, hpa: u64) -> Result<Write, EngineError> {
        let counters = &mut self.core.counters;
        match self.miss_policies.policy(hpa) {
            Unmapped::Error => {
                counters.unmapped_errors += 1;
                counters.failures += 1;
                Err(EngineError::Unmapped(hpa))
            }
            Unmapped::Poison | Unmapped::AllOnes => {
                counters.unmapped_dropped += 1;
                Ok(Write::Done)
            }
        }
    }
}
