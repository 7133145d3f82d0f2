//! Sessions as memory nodes report them: between one compute node and one worker of a memory node.

use serde::{Deserialize, Serialize};

use crate::model::{CnId, Name};

/// A session of a compute node with a worker of a memory node, from that node's last sync.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Session {
    /// Name of the memory node that reports the session.
    pub memory_node: Name,
    /// Number of the memory node's worker, from 0.
    pub worker: u64,
    /// CN id of the compute node that opened the session.
    pub compute_node: CnId,
    /// Name of the compute node, if it has registered with one.
    pub compute_node_name: Option<Name>,
    /// Counters of the session, named as in the memory node's report.
    #[serde(flatten)]
    pub counters: serde_json::Map<String, serde_json::Value>,
}
