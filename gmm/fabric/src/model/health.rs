//! Health of a node. Silence for longer than the node time-out makes a node unreachable; its next message makes it
//! reachable again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Health of a node, derived from the times of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Named as the owner of a region, but never registered.
    Unregistered,
    /// Sent a message within the node time-out.
    Reachable,
    /// Silent for longer than the node time-out.
    Unreachable,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unregistered => "unregistered",
            Self::Reachable => "reachable",
            Self::Unreachable => "unreachable",
        })
    }
}
