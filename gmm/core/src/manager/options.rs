//! Options of a manager at its start, which are not stored: time-outs, the mode of initialisation, and the declarations
//! of its fabric file.

use serde::{Deserialize, Serialize};

use cxloe_fabric::api::{CreateRegion, Owner};
use cxloe_fabric::model::ByteSize;

use super::{NODE_TIMEOUT_MS_DEFAULT, REBUILD_AFTER_MS_DEFAULT};

/// Mode of a fabric's initialisation (CXL 2.0, 7.2.1: switch initialisation options).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Initialisation {
    /// Regions come from the fabric file alone: requests for other regions and for bindings are refused, and memory
    /// nodes are allocated as a whole. The manager need not run after every compute node has received its regions.
    Static,
    /// Compute nodes are held in reset until their declared regions exist, or until a user releases them.
    ManagerFirst,
    /// Compute nodes come up at once and are notified of regions as these are made.
    #[default]
    Concurrent,
}

impl Initialisation {
    /// True if regions come from the fabric file alone.
    pub fn is_static(self) -> bool {
        self == Self::Static
    }
}

/// Content of the fabric file that the manager carries out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Regions to create as soon as their nodes have registered.
    #[serde(default, rename = "region")]
    pub regions: Vec<CreateRegion>,
    /// Quotas to set when their compute nodes register.
    #[serde(default, rename = "quota")]
    pub quotas: Vec<DeclaredQuota>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredQuota {
    /// The compute node, by CN id or name.
    pub compute_node: Owner,
    /// Maximum total size of the compute node's regions.
    pub bytes: ByteSize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Silence after which a node counts as unreachable, in milliseconds.
    pub node_timeout_ms: u64,
    /// Time that a copy of a region may be on an unreachable memory node before another node gets a replacement, in
    /// milliseconds; 0: no replacement.
    pub rebuild_after_ms: u64,
    /// Mode of initialisation: the order in which compute nodes start and regions are created.
    pub initialisation: Initialisation,
    /// Content of the fabric file; empty without one.
    pub declared: Declared,
    /// Random number that identifies the fabric if the store contains none yet.
    pub new_fabric: u64,
    /// Random number of this run of the manager, which distinguishes it from every other run over the store
    /// or over a copy of the store. 0: none.
    pub run: u64,
    /// Begin a new fabric even though running nodes have followed another one (`gmm serve --new-fabric`).
    pub anew: bool,
    /// Maximum size of a region's record in the store, in bytes; `None`: no limit. An order that would exceed it is
    /// refused before anything changes.
    pub record_bytes_max: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_timeout_ms: NODE_TIMEOUT_MS_DEFAULT,
            rebuild_after_ms: REBUILD_AFTER_MS_DEFAULT,
            initialisation: Initialisation::default(),
            declared: Declared::default(),
            new_fabric: 0,
            run: 0,
            anew: false,
            record_bytes_max: None,
        }
    }
}
