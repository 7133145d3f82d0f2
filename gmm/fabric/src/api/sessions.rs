//! Sessions as memory nodes report them: what one compute node has under way with one worker of a memory node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{CnId, Name};

/// A session of a compute node with a worker of a memory node, as that node reported it with its last sync.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// The memory node.
    pub memory_node: Name,
    /// Number of its worker.
    pub worker: u64,
    /// The compute node.
    pub compute_node: CnId,
    /// Its name, where the manager knows it.
    pub compute_node_name: Option<Name>,
    /// Counters of the session, named as the memory node names them.
    #[serde(flatten)]
    pub counters: serde_json::Map<String, serde_json::Value>,
}
