//! What a manager is told at its start and does not remember: time-outs, how the fabric comes up, and what its file
//! declares.

use serde::{Deserialize, Serialize};

use cxloe_fabric::api::{CreateRegion, Owner};
use cxloe_fabric::model::ByteSize;

use super::NODE_TIMEOUT_MS_DEFAULT;

/// How a fabric comes up (CXL 2.0, 7.2.1: switch initialisation options).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Initialisation {
    /// Regions come from the fabric file alone; asking for others, and binding, is refused; memory nodes are given away
    /// whole. Once every node has what it is to have, the manager need not run.
    Static,
    /// Compute nodes are held in reset until what the file declares for them is there, or someone releases them.
    ManagerFirst,
    /// Compute nodes come up at once and hear of regions as they are made.
    #[default]
    Concurrent,
}

impl Initialisation {
    /// Whether regions come from the fabric file alone.
    pub fn is_static(self) -> bool {
        self == Self::Static
    }
}

/// What the fabric file declares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Regions there shall be.
    #[serde(default, rename = "region")]
    pub regions: Vec<CreateRegion>,
    /// Quotas of compute nodes.
    #[serde(default, rename = "quota")]
    pub quotas: Vec<DeclaredQuota>,
}

/// A quota in the fabric file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredQuota {
    /// The compute node.
    pub compute_node: Owner,
    /// Bytes of all its regions together.
    pub bytes: ByteSize,
}

/// How a manager is to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Silence after which a node counts as unreachable, in milliseconds.
    pub node_timeout_ms: u64,
    /// How the fabric comes up.
    pub initialisation: Initialisation,
    /// What its file declares.
    pub declared: Declared,
    /// The number of the fabric if it has none yet: one at random.
    pub new_fabric: u64,
    /// Random, another one for each start: tells this run from every other one over the store or a copy of it. 0: none.
    pub run: u64,
    /// Whether this is a new fabric for certain, though nodes are here that have followed another one.
    pub anew: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_timeout_ms: NODE_TIMEOUT_MS_DEFAULT,
            initialisation: Initialisation::default(),
            declared: Declared::default(),
            new_fabric: 0,
            run: 0,
            anew: false,
        }
    }
}
