//! A background operation of a switch in the FM API: one at a time per switch; the result of the last one is kept.

use serde::{Deserialize, Serialize};

use super::{CnId, Name};

/// The present or latest background operation of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Operation {
    /// Number of the switch: memory nodes and compute nodes of index `switch * 127 ..` are on it.
    pub switch: u32,
    /// Command that started the operation.
    pub kind: OperationKind,
    /// Name of the memory node that the LD is a part of.
    pub memory_node: Name,
    /// LD-ID on that memory node: 0 to 15.
    pub ld: u16,
    /// CN id of the compute node that is bound or unbound.
    pub compute_node: CnId,
    /// Result of the operation; `None`: it is under way.
    pub outcome: Option<OperationOutcome>,
}

/// Commands that run as background operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Bind vPPB (5201h).
    Bind,
    /// Unbind vPPB (5202h).
    Unbind,
}

/// Result of a background operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperationOutcome {
    /// The LD is bound or unbound.
    Done,
    /// A node refused its part, or became unreachable.
    Failed,
    /// A client of the FM API aborted the operation.
    Aborted,
}
