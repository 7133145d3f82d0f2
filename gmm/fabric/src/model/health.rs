//! Whether a node is heard of. Silence for longer than the node time-out makes a node unreachable; being heard again
//! makes it reachable, by itself.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the manager knows of a node's being there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Named as the owner of a region, never heard of.
    Unregistered,
    /// Heard of within the node time-out.
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
