//! The event log: events in order, numbered without gaps. Readers record the last number they have read and continue
//! after it.

use serde::{Deserialize, Serialize};

use super::{CnId, Name, Protection, RegionState, Role, UnbindOption};

/// One entry of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Number of the event, from 1, without gaps.
    pub seq: u64,
    /// Time of the event, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The caller that caused the event: a token by its id, a user of this machine by uid, or a node. None: no caller
    /// caused it, or the manager's version did not record callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Kind of the event, which determines the further fields.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Declares the kinds of events, each with its value of `event` in JSON.
macro_rules! event_kinds {
    (
        $(#[$about:meta])*
        pub enum EventKind {
            $($(#[$note:meta])* $kind:ident = $label:literal { $($fields:tt)* },)+
        }
    ) => {
        $(#[$about])*
        pub enum EventKind {
            $($(#[$note])* $kind { $($fields)* },)+
        }

        impl EventKind {
            /// Every value of `event` in JSON, in the order of the variants.
            pub const LABELS: [&str; [$($label),+].len()] = [$($label),+];

            pub fn label(&self) -> &'static str {
                match self {
                    $(Self::$kind { .. } => $label,)+
                }
            }
        }
    };
}

event_kinds! {
    /// Kinds of events; in JSON, `event` has the kind's name.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(tag = "event", rename_all = "snake_case")]
    pub enum EventKind {
        /// A manager took over the store.
        ManagerStarted = "manager_started" {
            /// Term of the manager, which grows with each takeover.
            term: u64,
        },
        /// A memory node registered, for the first time or again.
        MemoryNodeRegistered = "memory_node_registered" {
            /// Name of the memory node that registered.
            memory_node: Name,
            /// Number that identifies the content of the pool; it changes when the content is lost.
            incarnation: u64,
            /// Size of the node's pool in bytes.
            pool_bytes: u64,
        },
        /// A memory node was silent for the node time-out.
        MemoryNodeUnreachable = "memory_node_unreachable" {
            /// Name of the memory node that was silent.
            memory_node: Name,
        },
        /// A memory node sent a message after it was unreachable.
        MemoryNodeReachable = "memory_node_reachable" {
            /// Name of the memory node that sent a message again.
            memory_node: Name,
        },
        /// A memory node failed to carry out a command.
        MemoryNodeRefused = "memory_node_refused" {
            /// Name of the memory node that failed.
            memory_node: Name,
            /// Name of the region that the command was about.
            region: Name,
            /// Number of the command at this memory node.
            seq: u64,
            /// Error text of the node, cut to 400 characters.
            error: String,
        },
        /// A compute node registered, for the first time or again.
        ComputeNodeRegistered = "compute_node_registered" {
            /// CN id of the compute node that registered.
            compute_node: CnId,
            /// Name with which the compute node registered.
            name: Name,
        },
        /// A compute node was silent for the node time-out.
        ComputeNodeUnreachable = "compute_node_unreachable" {
            /// CN id of the compute node that was silent.
            compute_node: CnId,
        },
        /// A compute node sent a message after it was unreachable.
        ComputeNodeReachable = "compute_node_reachable" {
            /// CN id of the compute node that sent a message again.
            compute_node: CnId,
        },
        /// A region entered another state.
        RegionChanged = "region_changed" {
            /// Name of the region whose state changed.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// State of the region after the change.
            state: RegionState,
            /// The reason of the change, if it does not follow from the state.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            reason: Option<String>,
        },
        /// A region was destroyed: every leg unmapped and zeroed.
        RegionDestroyed = "region_destroyed" {
            /// Name of the region, which a later region may use again.
            region: Name,
            /// CN id of the region's last owner.
            owner: CnId,
        },
        /// Capacity was reserved for a logical device, or given back.
        LdAllocated = "ld_allocated" {
            /// Name of the memory node that has the capacity.
            memory_node: Name,
            /// LD-ID: 0 to 15.
            ld: u16,
            /// Bytes that are reserved for the LD from now on.
            reserved: u64,
        },
        /// A logical device was bound to a compute node: a hot-add.
        LdBound = "ld_bound" {
            /// Name of the memory node that the LD is a part of.
            memory_node: Name,
            /// LD-ID: 0 to 15.
            ld: u16,
            /// CN id of the compute node that the LD was bound to.
            compute_node: CnId,
            /// Number of the vPPB; none if the binding has no vPPB.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            vppb: Option<u8>,
        },
        /// A logical device is about to be unbound from a compute node: a hot-remove has begun.
        LdUnbinding = "ld_unbinding" {
            /// Name of the memory node that the LD is a part of.
            memory_node: Name,
            /// LD-ID: 0 to 15.
            ld: u16,
            /// CN id of the compute node that the LD is bound to.
            compute_node: CnId,
            /// Condition on which the compute node releases the LD.
            option: UnbindOption,
        },
        /// A logical device is no longer bound.
        LdUnbound = "ld_unbound" {
            /// Name of the memory node that the LD is a part of.
            memory_node: Name,
            /// LD-ID: 0 to 15.
            ld: u16,
            /// CN id of the compute node that the LD was bound to.
            compute_node: CnId,
        },
        /// A compute node is held in reset: it attaches nothing.
        ComputeNodeHeld = "compute_node_held" {
            /// CN id of the compute node held in reset.
            compute_node: CnId,
        },
        /// A compute node that was held in reset is released.
        ComputeNodeReleased = "compute_node_released" {
            /// CN id of the compute node that was released.
            compute_node: CnId,
        },
        /// A compute node's quota changed.
        QuotaSet = "quota_set" {
            /// CN id of the compute node that the quota is for.
            compute_node: CnId,
            /// Maximum total size of the node's regions, in bytes; none: no limit.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            bytes: Option<u64>,
        },
        /// An AER event was generated at a vPPB of a compute node (Generate AER Event, 5203h).
        AerGenerated = "aer_generated" {
            /// CN id of the compute node that receives the event.
            compute_node: CnId,
            /// Number of the vPPB: 0 to 126.
            vppb: u8,
            /// The error, as PCIe's Advanced Error Reporting encodes it.
            aer: u32,
        },
        /// A memory node was forgotten: it is not expected to return.
        MemoryNodeForgotten = "memory_node_forgotten" {
            /// Name of the memory node whose record was removed.
            memory_node: Name,
        },
        /// A compute node was forgotten: it is not expected to return.
        ComputeNodeForgotten = "compute_node_forgotten" {
            /// CN id of the compute node whose record was removed.
            compute_node: CnId,
            /// Name of the compute node, if it had one.
            name: Option<Name>,
        },
        /// A memory node holds memory that belongs to no region, and keeps it.
        OrphansFound = "orphans_found" {
            /// Name of the memory node that holds the memory.
            memory_node: Name,
            /// Total size of the memory found, in bytes.
            bytes: u64,
        },
        /// A memory node zeroed memory that belonged to no region, and freed it.
        OrphansReleased = "orphans_released" {
            /// Name of the memory node that held the memory.
            memory_node: Name,
            /// Total size of the memory released, in bytes.
            bytes: u64,
        },
        /// A history that this store does not contain was given up: nodes that have seen it accept this store from now on.
        FabricAdopted = "fabric_adopted" {
            /// Term of the history that was given up.
            term: u64,
            /// Revision of the history that was given up.
            revision: u64,
            /// Number of the manager's run in that history.
            run: u64,
        },
        /// An administrator created a token.
        TokenCreated = "token_created" {
            /// Identifier of the new token.
            token: String,
            /// The rights of the token's bearer.
            role: Role,
        },
        /// An administrator revoked a token.
        TokenRevoked = "token_revoked" {
            /// Identifier of the revoked token.
            token: String,
        },
        /// A memory node joined, for the first time or again.
        MemoryNodeJoined = "memory_node_joined" {
            /// Name under which the memory node joined.
            memory_node: Name,
        },
        /// A compute node joined, for the first time or again.
        ComputeNodeJoined = "compute_node_joined" {
            /// CN id with which the compute node joined.
            compute_node: CnId,
        },
        /// A memory node's access was revoked.
        MemoryNodeRevoked = "memory_node_revoked" {
            /// Name of the memory node that lost its access.
            memory_node: Name,
        },
        /// A compute node's access was revoked.
        ComputeNodeRevoked = "compute_node_revoked" {
            /// CN id of the compute node that lost its access.
            compute_node: CnId,
        },
        /// A client of the FM API joined, for the first time or again.
        FmClientJoined = "fm_client_joined" {
            /// Name under which the client joined.
            fm_client: Name,
        },
        /// An FM client's access was revoked.
        FmClientRevoked = "fm_client_revoked" {
            /// Name of the FM client that lost its access.
            fm_client: Name,
        },
        /// A request was refused. Each caller has at most one entry per hour, and the number of entries per hour
        /// is limited.
        AccessRefused = "access_refused" {
            /// Method and path of the refused request.
            what: String,
            /// Number of refused requests that this entry covers, including those of callers without an entry.
            attempts: u64,
        },
        /// The quality-of-service controls of a memory node changed.
        QosSet = "qos_set" {
            /// Name of the memory node that has the controls.
            memory_node: Name,
        },
        /// An event log of the FM API was cleared; the fabric's log keeps its entries.
        LogCleared = "log_cleared" {
            /// Number of the FM API switch, from 0.
            switch: u32,
            /// Number of the log: 0 informational, 1 warning, 2 failure, 3 fatal, 4 dynamic capacity.
            log: u8,
            /// Number of the last cleared event in the fabric's log.
            through: u64,
        },
        /// Legs of a mirrored region (its parts on one memory node) became stale: they lack content that the other copy
        /// has.
        LegStale = "leg_stale" {
            /// Name of the mirrored region.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// Name of the memory node that the legs are on.
            memory_node: Name,
            /// Epoch of the region after the change.
            epoch: u64,
            /// The reason why the legs became stale.
            reason: String,
        },
        /// A stale leg (a part of a region on one memory node) was filled: it is in sync again.
        LegFilled = "leg_filled" {
            /// Name of the mirrored region.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// Name of the memory node that the leg is on.
            memory_node: Name,
            /// Epoch of the region after the change.
            epoch: u64,
        },
        /// The requested protection of a region changed.
        ProtectionChanged = "protection_changed" {
            /// Name of the region whose protection changed.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// Protection of the region from now on.
            protect: Protection,
        },
        /// A copy of a part of a region is being made on another memory node.
        SpareAdded = "spare_added" {
            /// Name of the region that gets the copy.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// Name of the memory node that the new leg is on.
            memory_node: Name,
            /// Name of the memory node whose leg the new one replaces; none for an additional copy.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            replaces: Option<Name>,
        },
        /// No memory node has room for the missing copy of a region. The manager tries again when room appears.
        SpareMissing = "spare_missing" {
            /// Name of the region that lacks a copy.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// The reason why no copy can be placed.
            reason: String,
        },
        /// Parts of a region began to move from one memory node to another, or the move was stopped.
        RegionRelocating = "region_relocating" {
            /// Name of the region whose parts move.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// Name of the memory node that the parts are on.
            memory_node: Name,
            /// Name of the memory node that the parts move to; none if the move was stopped: parts that have not moved
            /// stay.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            to: Option<Name>,
        },
        /// The parts of regions on a memory node began to move to other nodes.
        MemoryNodeDraining = "memory_node_draining" {
            /// Name of the memory node that is drained.
            memory_node: Name,
        },
        /// The draining of a memory node was stopped: regions are placed on it again.
        MemoryNodeDrainStopped = "memory_node_drain_stopped" {
            /// Name of the memory node that was drained.
            memory_node: Name,
        },
        /// A region has another owner: its content stays where it is.
        RegionMoved = "region_moved" {
            /// Name of the region that moved.
            region: Name,
            /// CN id of the region's present owner.
            owner: CnId,
            /// CN id of the former owner.
            from: CnId,
        },
        /// A further compute node may read a sealed region.
        RegionShared = "region_shared" {
            /// Name of the sealed region.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// CN id of the compute node that may read the region.
            reader: CnId,
        },
        /// A compute node may no longer read a sealed region of another.
        RegionUnshared = "region_unshared" {
            /// Name of the sealed region.
            region: Name,
            /// CN id of the region's owner.
            owner: CnId,
            /// CN id of the compute node that could read the region.
            reader: CnId,
        },
    }
}

impl EventKind {
    /// Returns the name of the memory node that the event is about.
    pub fn memory_node(&self) -> Option<&Name> {
        match self {
            Self::MemoryNodeRegistered { memory_node, .. }
            | Self::MemoryNodeUnreachable { memory_node }
            | Self::MemoryNodeReachable { memory_node }
            | Self::MemoryNodeRefused { memory_node, .. }
            | Self::LdAllocated { memory_node, .. }
            | Self::LdBound { memory_node, .. }
            | Self::LdUnbinding { memory_node, .. }
            | Self::LdUnbound { memory_node, .. }
            | Self::OrphansFound { memory_node, .. }
            | Self::OrphansReleased { memory_node, .. }
            | Self::MemoryNodeJoined { memory_node }
            | Self::MemoryNodeRevoked { memory_node }
            | Self::QosSet { memory_node }
            | Self::LegStale { memory_node, .. }
            | Self::LegFilled { memory_node, .. }
            | Self::SpareAdded { memory_node, .. }
            | Self::RegionRelocating { memory_node, .. }
            | Self::MemoryNodeDraining { memory_node }
            | Self::MemoryNodeDrainStopped { memory_node }
            | Self::MemoryNodeForgotten { memory_node } => Some(memory_node),
            _ => None,
        }
    }

    /// Returns the CN id of the compute node that the event is about; for an event about a region, its
    /// owner's.
    pub fn compute_node(&self) -> Option<CnId> {
        match self {
            Self::ComputeNodeRegistered { compute_node, .. }
            | Self::ComputeNodeUnreachable { compute_node }
            | Self::ComputeNodeReachable { compute_node }
            | Self::LdBound { compute_node, .. }
            | Self::LdUnbinding { compute_node, .. }
            | Self::LdUnbound { compute_node, .. }
            | Self::ComputeNodeHeld { compute_node }
            | Self::ComputeNodeReleased { compute_node }
            | Self::QuotaSet { compute_node, .. }
            | Self::ComputeNodeJoined { compute_node }
            | Self::ComputeNodeRevoked { compute_node }
            | Self::ComputeNodeForgotten { compute_node, .. }
            | Self::AerGenerated { compute_node, .. } => Some(*compute_node),
            Self::RegionChanged { owner, .. }
            | Self::RegionDestroyed { owner, .. }
            | Self::LegStale { owner, .. }
            | Self::LegFilled { owner, .. }
            | Self::ProtectionChanged { owner, .. }
            | Self::SpareAdded { owner, .. }
            | Self::RegionRelocating { owner, .. }
            | Self::RegionMoved { owner, .. }
            | Self::RegionShared { owner, .. }
            | Self::RegionUnshared { owner, .. }
            | Self::SpareMissing { owner, .. } => Some(*owner),
            _ => None,
        }
    }

    pub fn region(&self) -> Option<&Name> {
        match self {
            Self::MemoryNodeRefused { region, .. }
            | Self::RegionChanged { region, .. }
            | Self::RegionDestroyed { region, .. }
            | Self::LegStale { region, .. }
            | Self::LegFilled { region, .. }
            | Self::ProtectionChanged { region, .. }
            | Self::SpareAdded { region, .. }
            | Self::RegionRelocating { region, .. }
            | Self::RegionMoved { region, .. }
            | Self::RegionShared { region, .. }
            | Self::RegionUnshared { region, .. }
            | Self::SpareMissing { region, .. } => Some(region),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_what_json_has() {
        let schema = schemars::schema_for!(EventKind);
        let kinds = schema.get("oneOf").and_then(|kinds| kinds.as_array()).unwrap();
        let labels: Vec<_> =
            kinds.iter().map(|kind| kind["properties"]["event"]["const"].as_str().unwrap()).collect();
        assert_eq!(labels, EventKind::LABELS);
        let kind = EventKind::QuotaSet { compute_node: CnId::new([2, 0, 0, 0, 0, 1]).unwrap(), bytes: None };
        assert_eq!(serde_json::to_value(&kind).unwrap()["event"], kind.label());
    }
}
