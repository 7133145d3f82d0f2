//! The event log: what happened, in order, numbered without gaps. Readers remember the last number they saw and go on from
//! there after a break.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Name, RegionState, Role, UnbindOption};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number: 1 for the first ever, then one more each time.
    pub seq: u64,
    /// When: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who asked for what led to it: a token by its id, a user of this machine by uid, a node. None: nobody did, or it is
    /// of a manager before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A manager took over the store.
    ManagerStarted {
        /// Its term.
        term: u64,
    },
    /// A memory node registered, for the first time or again.
    MemoryNodeRegistered {
        /// Its name.
        memory_node: Name,
        /// Which life of its pool's content this is.
        incarnation: u64,
        /// Bytes of its pool.
        pool_bytes: u64,
    },
    /// A memory node was silent for the node time-out.
    MemoryNodeUnreachable {
        /// Its name.
        memory_node: Name,
    },
    /// A memory node is heard of again.
    MemoryNodeReachable {
        /// Its name.
        memory_node: Name,
    },
    /// A memory node failed to carry out a command.
    MemoryNodeRefused {
        /// Its name.
        memory_node: Name,
        /// The region it was about.
        region: Name,
        /// Number of the command.
        seq: u64,
        /// What the node said.
        error: String,
    },
    /// A compute node registered, for the first time or again.
    ComputeNodeRegistered {
        /// Its identity.
        compute_node: CnId,
        /// Its name.
        name: Name,
    },
    /// A compute node was silent for the node time-out.
    ComputeNodeUnreachable {
        /// Its identity.
        compute_node: CnId,
    },
    /// A compute node is heard of again.
    ComputeNodeReachable {
        /// Its identity.
        compute_node: CnId,
    },
    /// A region came to another state.
    RegionChanged {
        /// Its name.
        region: Name,
        /// Its owner.
        owner: CnId,
        /// The state it is in now.
        state: RegionState,
        /// Why, where that is not plain from the state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A region is gone: every leg unmapped and zeroed.
    RegionDestroyed {
        /// Its name.
        region: Name,
        /// Its former owner.
        owner: CnId,
    },
    /// Capacity was set aside for a logical device, or given back.
    LdAllocated {
        /// The memory node.
        memory_node: Name,
        /// The LD.
        ld: u16,
        /// Bytes set aside now.
        reserved: u64,
    },
    /// A logical device was bound to a compute node: a hot-add.
    LdBound {
        /// The memory node.
        memory_node: Name,
        /// The LD.
        ld: u16,
        /// The compute node.
        compute_node: CnId,
        /// The vPPB, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vppb: Option<u8>,
    },
    /// A logical device is about to be taken from a compute node: a hot-remove has begun.
    LdUnbinding {
        /// The memory node.
        memory_node: Name,
        /// The LD.
        ld: u16,
        /// The compute node.
        compute_node: CnId,
        /// How.
        option: UnbindOption,
    },
    /// A logical device is no longer bound.
    LdUnbound {
        /// The memory node.
        memory_node: Name,
        /// The LD.
        ld: u16,
        /// The compute node that had it.
        compute_node: CnId,
    },
    /// A compute node is held in reset: it attaches nothing.
    ComputeNodeHeld {
        /// Its identity.
        compute_node: CnId,
    },
    /// A compute node that was held in reset is released.
    ComputeNodeReleased {
        /// Its identity.
        compute_node: CnId,
    },
    /// A compute node's quota changed.
    QuotaSet {
        /// Its identity.
        compute_node: CnId,
        /// Bytes; none: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// Someone had an AER event generated at a vPPB of a compute node (Generate AER Event, 5203h).
    AerGenerated {
        /// The compute node.
        compute_node: CnId,
        /// The vPPB.
        vppb: u8,
        /// The AER error.
        aer: u32,
    },
    /// A memory node was forgotten: it is taken to be gone for good.
    MemoryNodeForgotten {
        /// Its name.
        memory_node: Name,
    },
    /// A compute node was forgotten: it is taken to be gone for good.
    ComputeNodeForgotten {
        /// The compute node.
        compute_node: CnId,
        /// Its name, if it had one.
        name: Option<Name>,
    },
    /// A memory node holds memory that no region has, and keeps it.
    OrphansFound {
        /// Its name.
        memory_node: Name,
        /// Bytes.
        bytes: u64,
    },
    /// A memory node zeroed memory that no region had, and gave it back.
    OrphansReleased {
        /// Its name.
        memory_node: Name,
        /// Bytes.
        bytes: u64,
    },
    /// Someone gave up a history that this store does not have: nodes that have seen it follow this store.
    FabricAdopted {
        /// Its term.
        term: u64,
        /// Its revision.
        revision: u64,
        /// The number of its manager's run.
        run: u64,
    },
    /// A token was made.
    TokenCreated {
        /// Its id.
        token: String,
        /// What its bearer may do.
        role: Role,
    },
    /// A token was revoked.
    TokenRevoked {
        /// Its id.
        token: String,
    },
    /// A memory node joined, for the first time or again.
    MemoryNodeJoined {
        /// Its name.
        memory_node: Name,
    },
    /// A compute node joined, for the first time or again.
    ComputeNodeJoined {
        /// Its identity.
        compute_node: CnId,
    },
    /// A memory node may not speak here any more.
    MemoryNodeRevoked {
        /// Its name.
        memory_node: Name,
    },
    /// A compute node may not speak here any more.
    ComputeNodeRevoked {
        /// Its identity.
        compute_node: CnId,
    },
    /// A client of the FM API joined, for the first time or again.
    FmClientJoined {
        /// Its name.
        fm_client: Name,
    },
    /// A client of the FM API may not speak here any more.
    FmClientRevoked {
        /// Its name.
        fm_client: Name,
    },
    /// Somebody was refused what they asked for. One entry an hour for each of them, and not many for all.
    AccessRefused {
        /// What was asked: method and path.
        what: String,
        /// How many attempts this entry tells of, those of others for whom there was none included.
        attempts: u64,
    },
    /// The quality-of-service controls of a memory node changed.
    QosSet {
        /// Its name.
        memory_node: Name,
    },
    /// An event log of the FM API was cleared; this one keeps its entries.
    LogCleared {
        /// Number of the switch.
        switch: u32,
        /// Number of the log.
        log: u8,
        /// Number of the last event that is cleared there.
        through: u64,
    },
}

impl EventKind {
    /// What `event` may be, in the order of the variants.
    pub const LABELS: [&str; 34] = [
        "manager_started",
        "memory_node_registered",
        "memory_node_unreachable",
        "memory_node_reachable",
        "memory_node_refused",
        "compute_node_registered",
        "compute_node_unreachable",
        "compute_node_reachable",
        "region_changed",
        "region_destroyed",
        "ld_allocated",
        "ld_bound",
        "ld_unbinding",
        "ld_unbound",
        "compute_node_held",
        "compute_node_released",
        "quota_set",
        "aer_generated",
        "memory_node_forgotten",
        "compute_node_forgotten",
        "orphans_found",
        "orphans_released",
        "fabric_adopted",
        "token_created",
        "token_revoked",
        "memory_node_joined",
        "compute_node_joined",
        "memory_node_revoked",
        "compute_node_revoked",
        "fm_client_joined",
        "fm_client_revoked",
        "access_refused",
        "qos_set",
        "log_cleared",
    ];

    /// Its place in [`LABELS`](Self::LABELS).
    fn index(&self) -> usize {
        match self {
            Self::ManagerStarted { .. } => 0,
            Self::MemoryNodeRegistered { .. } => 1,
            Self::MemoryNodeUnreachable { .. } => 2,
            Self::MemoryNodeReachable { .. } => 3,
            Self::MemoryNodeRefused { .. } => 4,
            Self::ComputeNodeRegistered { .. } => 5,
            Self::ComputeNodeUnreachable { .. } => 6,
            Self::ComputeNodeReachable { .. } => 7,
            Self::RegionChanged { .. } => 8,
            Self::RegionDestroyed { .. } => 9,
            Self::LdAllocated { .. } => 10,
            Self::LdBound { .. } => 11,
            Self::LdUnbinding { .. } => 12,
            Self::LdUnbound { .. } => 13,
            Self::ComputeNodeHeld { .. } => 14,
            Self::ComputeNodeReleased { .. } => 15,
            Self::QuotaSet { .. } => 16,
            Self::AerGenerated { .. } => 17,
            Self::MemoryNodeForgotten { .. } => 18,
            Self::ComputeNodeForgotten { .. } => 19,
            Self::OrphansFound { .. } => 20,
            Self::OrphansReleased { .. } => 21,
            Self::FabricAdopted { .. } => 22,
            Self::TokenCreated { .. } => 23,
            Self::TokenRevoked { .. } => 24,
            Self::MemoryNodeJoined { .. } => 25,
            Self::ComputeNodeJoined { .. } => 26,
            Self::MemoryNodeRevoked { .. } => 27,
            Self::ComputeNodeRevoked { .. } => 28,
            Self::FmClientJoined { .. } => 29,
            Self::FmClientRevoked { .. } => 30,
            Self::AccessRefused { .. } => 31,
            Self::QosSet { .. } => 32,
            Self::LogCleared { .. } => 33,
        }
    }

    /// What it is called in JSON.
    pub fn label(&self) -> &'static str {
        Self::LABELS[self.index()]
    }

    /// The memory node it is about.
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
            | Self::MemoryNodeForgotten { memory_node } => Some(memory_node),
            _ => None,
        }
    }

    /// The compute node it is about, which of a region's event is its owner.
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
            Self::RegionChanged { owner, .. } | Self::RegionDestroyed { owner, .. } => Some(*owner),
            _ => None,
        }
    }

    /// The region it is about.
    pub fn region(&self) -> Option<&Name> {
        match self {
            Self::MemoryNodeRefused { region, .. }
            | Self::RegionChanged { region, .. }
            | Self::RegionDestroyed { region, .. } => Some(region),
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
