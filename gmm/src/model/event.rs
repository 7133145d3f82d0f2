//! The event log: what happened, in order, numbered without gaps. Readers remember the last number they saw and go on from
//! there after a break.

use serde::{Deserialize, Serialize};

use super::{CnId, Name, RegionState};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number: 1 for the first ever, then one more each time.
    pub seq: u64,
    /// When: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}
