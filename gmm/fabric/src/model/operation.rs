//! A background operation of a switch as the FM API has them: one at a time per switch, the last one's result is kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Name};

/// What a switch does, or did last, in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// Number of the switch: memory nodes and compute nodes of index `switch * 127 ..` are on it.
    pub switch: u32,
    /// What.
    pub kind: OperationKind,
    /// The memory node.
    pub memory_node: Name,
    /// The LD on it.
    pub ld: u16,
    /// The compute node.
    pub compute_node: CnId,
    /// How it ended; `None`: it runs.
    pub outcome: Option<OperationOutcome>,
}

/// Kinds of background operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Bind vPPB (5201h).
    Bind,
    /// Unbind vPPB (5202h).
    Unbind,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationOutcome {
    /// It is done.
    Done,
    /// A node refused its part, or went away.
    Failed,
    /// Someone broke it off.
    Aborted,
}
