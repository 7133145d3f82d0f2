//! CMem addresses of compute nodes: 48 bits each. They are handed out ascending, and when they are used up, again.
//!
//! **No request made for a region may reach another one that got its addresses later.** A request reaches the memory of an
//! address as long as some memory node maps it for that compute node, and as long as the request can still be carried out: the
//! compute node has not had its answer and sends it again, or a frame of it is on its way. So a range is handed out again
//! only when both are over:
//!
//! * *unmapped*: each memory node it lay on has given the result of its `UnmapCmem`, after which it refuses what arrives.
//!   Only then is a leg gone, and its range noted here ([`Retired`]).
//! * *quiet*, of the agent that had the region: that agent says that it has heard of the end of the region, after which it makes
//!   no request for it, and that every request it had made until then has ended ([`ComputeNodeSync::quiet`]). A request
//!   that has ended was answered, and a memory node carries out each number of a session once (R2 of the protocol); or its
//!   session is dead, and no memory node takes its frames since the next one was opened.
//! * or, of an agent before the present one (another instance id): the present one has been registered for
//!   [`QUARANTINE_MS`], which is waited for in any case. It never sends again what the other one sent, its sessions are new
//!   and end the old ones, and no network keeps a frame for so long.
//!
//! [`ComputeNodeSync::quiet`]: cxloe_fabric::api::ComputeNodeSync::quiet

use cxloe_fabric::model::{CMEM_LIMIT, CnId, ComputeNode, Leg, MemoryNode, Retired};

use super::{Change, Manager, ManagerError};

/// How long an agent is registered before what its predecessor had is handed out again, in milliseconds.
pub(super) const QUARANTINE_MS: u64 = 60_000;
/// Ranges remembered for a compute node. Of more, the smallest is not handed out again before the node is forgotten.
const RETIRED_MAX: usize = 256;

/// Bytes at whole multiples of a memory node's extents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub bytes: u64,
    pub align: u64,
}

impl Piece {
    pub fn on(node: &MemoryNode, bytes: u64) -> Self {
        Self { bytes, align: node.extent_bytes }
    }
}

impl Manager {
    /// Addresses for each of `pieces`, taken from what is `owner`'s: never used ones as long as there are some.
    ///
    /// # Errors
    /// [`ManagerError::LimitReached`]; `owner` is as before.
    pub(super) fn take_cmem(
        &self,
        owner: &mut ComputeNode,
        pieces: &[Piece],
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
        piece: Piece,
    ) -> Result<u64, ManagerError> {
        let fits = |range: &Retired| {
            let base = range.base.checked_next_multiple_of(piece.align)?;
            let end = base.checked_add(piece.bytes)?;
            (self.is_over(owner, range) && end <= range.base + range.bytes).then_some((base, end))
        };
        let found = retired.iter().enumerate().find_map(|(at, range)| Some((at, fits(range)?)));
        let Some((at, (base, end))) = found else {
            let what = "bytes of CMem handed out to a CN whose old requests have not ended for certain";
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

    /// Whether no request made for the range can be carried out any more.
    fn is_over(&self, owner: &ComputeNode, range: &Retired) -> bool {
        // Of several agents one after the other, the last has been there for so long.
        let registered = self.registered_ms.get(&owner.cn_id);
        let alone = registered.is_some_and(|since| since.saturating_add(QUARANTINE_MS) <= self.now_ms);
        alone && (range.instance_id != owner.instance_id || owner.quiet >= range.event)
    }

    /// The leg is gone: no memory node has it mapped. To be called when its owner has been told of that.
    pub(super) fn retire_cmem(&mut self, cn: CnId, leg: &Leg) {
        let Some(mut owner) = self.state.compute_nodes.get(&cn).cloned() else { return };
        let (instance_id, event) = (owner.instance_id, owner.regions_event);
        owner.retired.push(Retired { base: leg.cmem_base, bytes: leg.bytes, instance_id, event });
        merge(&mut owner);
        self.put(Change::ComputeNode(owner));
    }

    /// An agent says that no request is on its way that it made before it heard of the event `quiet`.
    pub(super) fn hear_quiet(&mut self, cn: CnId, quiet: u64) {
        let Some(mut owner) = self.state.compute_nodes.get(&cn).cloned() else { return };
        // Only what changes something is worth a commit.
        let waits = |range: &Retired| range.instance_id == owner.instance_id && range.event > owner.quiet;
        if quiet > owner.quiet && owner.retired.iter().any(waits) {
            owner.quiet = quiet.min(self.state.meta.last_event);
            merge(&mut owner);
            self.put(Change::ComputeNode(owner));
        }
    }
}

/// Joins neighbours that wait for the same, and keeps the largest.
fn merge(owner: &mut ComputeNode) {
    let (instance_id, quiet) = (owner.instance_id, owner.quiet);
    for range in &mut owner.retired {
        if range.instance_id == instance_id && range.event <= quiet {
            range.event = 0;
        } else if range.instance_id != instance_id {
            // Whichever of its predecessors had it: it is none of the present one's.
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
