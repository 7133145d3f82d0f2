//! Decode-miss policies: answers to accesses at addresses without a route.
//!
//! CXL leaves three answers to the decoder's implementation (MemData-NXM, poisoned data, all ones). A region's window
//! names one of them for its addresses beyond its decoders, and the engine has one for all other addresses. An
//! address with a route never reaches this code.

use alloc::vec::Vec;
pub use cxloe_fabric::model::Unmapped;

use cxloe_wire::frame::LINE_SIZE;

use super::routes::{ROUTES_MAX, RouteError, check_shape};
use super::{Engine, EngineError, Write};
use crate::cache::Line;

/// A range of HPA with its decode-miss policy. Routes within the range take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MissPolicy {
    hpa: u64,
    bytes: u64,
    policy: Unmapped,
}

/// All decode-miss policies, in order of their HPA, not overlapping.
#[derive(Default)]
pub(super) struct MissPolicies {
    sorted: Vec<MissPolicy>,
}

impl MissPolicies {
    fn policy(&self, hpa: u64) -> Unmapped {
        let before = self.sorted.partition_point(|range| range.hpa <= hpa).checked_sub(1);
        let range = before.map(|at| &self.sorted[at]).filter(|range| hpa - range.hpa < range.bytes);
        range.map_or(Unmapped::Error, |range| range.policy)
    }

    /// Makes room for a total of `policies`, which are then added without allocation.
    pub fn reserve(&mut self, policies: usize) {
        self.sorted.reserve(policies.saturating_sub(self.sorted.len()));
    }

    /// Number of policies, and total number of policies that there is room for.
    pub fn count(&self) -> (usize, usize) {
        (self.sorted.len(), self.sorted.capacity())
    }

    /// Whether a policy covers any of the `bytes` bytes from `hpa` on.
    fn overlap(&self, hpa: u64, bytes: u64) -> bool {
        let behind = self.sorted.partition_point(|range| range.hpa < hpa.saturating_add(bytes));
        behind.checked_sub(1).is_some_and(|at| self.sorted[at].hpa + self.sorted[at].bytes > hpa)
    }

    /// Returns the first address of a policy of `others` that overlaps with one of these policies.
    pub fn first_overlap(&self, others: &MissPolicies) -> Option<u64> {
        others.sorted.iter().find(|other| self.overlap(other.hpa, other.bytes)).map(|other| other.hpa)
    }

    /// Moves all policies of `others` into this set. They must not [overlap](Self::first_overlap) with this
    /// set, and there must be room.
    pub fn take_over(&mut self, others: &mut MissPolicies) {
        for policy in others.sorted.drain(..) {
            let at = self.sorted.partition_point(|range| range.hpa < policy.hpa);
            self.sorted.insert(at, policy);
        }
    }
}

impl Engine {
    /// Sets the answer to accesses without a route to the `bytes` bytes from `hpa` on.
    ///
    /// # Errors
    /// [`RouteError::Shape`], [`RouteError::Overlap`] with the range of another policy, [`RouteError::Full`].
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

    /// Removes the policy of the range that starts at `hpa` and returns it, if there was one.
    pub fn remove_miss_policy(&mut self, hpa: u64) -> Option<Unmapped> {
        let at = self.miss_policies.sorted.binary_search_by_key(&hpa, |range| range.hpa).ok()?;
        Some(self.miss_policies.sorted.remove(at).policy)
    }

    /// Answer to a read of unmapped lines: the same for each line.
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

    /// Answer to a write to unmapped lines: an error, or success although the data is dropped.
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
