//! CMem addresses of compute nodes: 48 bits each. They are allocated in ascending order, and reused only after all have
//! been allocated.
//!
//! **No request made for a region may reach a later region at the same addresses.** A request reaches the memory at an
//! address as long as a memory node maps it for that compute node and the request can still be carried out: the compute
//! node has no answer yet and retransmits the request, or one of its frames is in the network. So a range is reused
//! only when it is unmapped, and quiet or old:
//!
//! * *unmapped*: each memory node of the range has given the result of its `UnmapCmem` or `HandOver`, and refuses later
//!   requests. Only then does the manager remove the leg (a region's part on one memory node) or change its owner, and
//!   record the range here ([`Retired`]).
//! * *quiet*, for ranges of the present agent: the agent reports that it has received the event by which the region
//!   lost the range, after which it makes no request to the range, and that every earlier request has ended
//!   ([`ComputeNodeSync::quiet`]). An ended request was either answered, and a memory node carries out each number of a
//!   session once (R2 of the protocol); or its session was closed, and no memory node accepts frames of that session
//!   after the next one was opened.
//! * *old*, for ranges of an earlier agent (another instance id): the present agent has been registered for
//!   [`QUARANTINE_MS`], which must pass in any case. The present agent retransmits nothing of the earlier one, its
//!   sessions are new and end the old ones, and no network delays a frame for that long.
//!
//! [`ComputeNodeSync::quiet`]: cxloe_fabric::api::ComputeNodeSync::quiet

use cxloe_fabric::model::{CMEM_LIMIT, CnId, ComputeNode, MemoryNode, Retired};

use super::{Change, Manager, ManagerError};

/// Time for which an agent must be registered before ranges of its predecessor are reused, in milliseconds.
pub(super) const QUARANTINE_MS: u64 = 60_000;
/// Maximum number of retired ranges recorded per compute node. Beyond this number, the smallest range is not reused
/// until the compute node is forgotten.
const RETIRED_MAX: usize = 256;

/// Length of a range in bytes, and the alignment of its address: the memory node's extent size.
#[derive(Debug, Clone, Copy)]
pub(super) struct CmemSpan {
    pub bytes: u64,
    pub align: u64,
}

impl CmemSpan {
    pub fn on(node: &MemoryNode, bytes: u64) -> Self {
        Self { bytes, align: node.extent_bytes }
    }
}

impl Manager {
    /// Allocates addresses of `owner` for each of `pieces`: never used addresses first, then retired ones.
    ///
    /// # Errors
    /// [`ManagerError::LimitReached`]; `owner` is unchanged then.
    pub(super) fn take_cmem(
        &self,
        owner: &mut ComputeNode,
        pieces: &[CmemSpan],
    ) -> Result<Vec<u64>, ManagerError> {
        let (mut next, mut retired) = (owner.cmem_next, owner.retired.clone());
        let mut bases = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let base = next.checked_next_multiple_of(piece.align);
            match base.filter(|base| base.saturating_add(piece.bytes) <= CMEM_LIMIT) {
                Some(base) => {
                    bases.push(base);
                    next = base + piece.bytes;
                }
                None => bases.push(self.take_retired(owner, &mut retired, *piece)?),
            }
        }
        (owner.cmem_next, owner.retired) = (next, retired);
        Ok(bases)
    }

    fn take_retired(
        &self,
        owner: &ComputeNode,
        retired: &mut Vec<Retired>,
        piece: CmemSpan,
    ) -> Result<u64, ManagerError> {
        let fits = |range: &Retired| {
            let base = range.base.checked_next_multiple_of(piece.align)?;
            let end = base.checked_add(piece.bytes)?;
            (self.is_over(owner, range) && end <= range.base + range.bytes).then_some((base, end))
        };
        let found = retired.iter().enumerate().find_map(|(at, range)| Some((at, fits(range)?)));
        let Some((at, (base, end))) = found else {
            let what = "bytes of CMem assigned to a CN whose earlier requests may still be in flight";
            return Err(ManagerError::LimitReached { what, limit: CMEM_LIMIT });
        };
        let range = retired.remove(at);
        for (base, end) in [(end, range.base + range.bytes), (range.base, base)] {
            if base < end {
                retired.insert(at, Retired { base, bytes: end - base, ..range });
            }
        }
        Ok(base)
    }

    /// Returns true if no request made for the range can be carried out any more.
    fn is_over(&self, owner: &ComputeNode, range: &Retired) -> bool {
        // Only the registration of the present agent counts, however many agents there were before.
        let registered = self.registered_ms.get(&owner.cn_id);
        let alone = registered.is_some_and(|since| since.saturating_add(QUARANTINE_MS) <= self.now_ms);
        alone && (range.instance_id != owner.instance_id || owner.quiet >= range.event)
    }

    /// Retires the address range of a leg that no memory node maps any more. Called after the event that notifies the
    /// owner of the leg's removal.
    pub(super) fn retire_cmem(&mut self, cn: CnId, base: u64, bytes: u64) {
        let Some(mut owner) = self.state.compute_nodes.get(&cn).cloned() else { return };
        let (instance_id, event) = (owner.instance_id, owner.regions_event);
        owner.retired.push(Retired { base, bytes, instance_id, event });
        merge(&mut owner);
        self.put(Change::ComputeNode(owner));
    }

    /// Records an agent's report that all requests which it made before it received event `quiet` have ended.
    pub(super) fn record_quiet(&mut self, cn: CnId, quiet: u64) {
        let Some(mut owner) = self.state.compute_nodes.get(&cn).cloned() else { return };
        // A report that changes nothing costs no commit.
        let waits = |range: &Retired| range.instance_id == owner.instance_id && range.event > owner.quiet;
        if quiet > owner.quiet && owner.retired.iter().any(waits) {
            owner.quiet = quiet.min(self.state.meta.last_event);
            merge(&mut owner);
            self.put(Change::ComputeNode(owner));
        }
    }
}

/// Merges neighbouring ranges that may be reused under the same condition; keeps the `RETIRED_MAX` largest ranges.
fn merge(owner: &mut ComputeNode) {
    let (instance_id, quiet) = (owner.instance_id, owner.quiet);
    for range in &mut owner.retired {
        if range.instance_id == instance_id && range.event <= quiet {
            range.event = 0;
        } else if range.instance_id != instance_id {
            // The same rule applies to ranges of all earlier agents, so they all get one id and can be
            // merged.
            (range.instance_id, range.event) = (instance_id.wrapping_add(1), 0);
        }
    }
    owner.retired.sort_unstable_by_key(|range| range.base);
    let mut merged: Vec<Retired> = Vec::with_capacity(owner.retired.len());
    for range in owner.retired.drain(..) {
        match merged.last_mut() {
            Some(last)
                if last.base + last.bytes == range.base
                    && last.instance_id == range.instance_id
                    && (last.event == 0) == (range.event == 0) =>
            {
                last.bytes += range.bytes;
                last.event = last.event.max(range.event);
            }
            _ => merged.push(range),
        }
    }
    while merged.len() > RETIRED_MAX {
        let smallest = merged.iter().enumerate().min_by_key(|(_, range)| range.bytes);
        let Some(at) = smallest.map(|(at, _)| at) else { break };
        merged.remove(at);
    }
    owner.retired = merged;
}
