//! A region: memory that one compute node sees as one address range, and the legs of memory nodes it is made of.
//!
//! ```text
//!            create                  all legs confirmed
//!   (none) ---------> Creating ---------------------------> Active <----+
//!                        |  ^                               |  |        | node back
//!              refused,  |  | reset     content of a leg    |  +--> Degraded
//!              destroyed |  +--- Lost <---- lost -----------+           |
//!                        v        |                         | destroy   |
//!     (gone) <-------- Draining <-+-------------------------+-----------+
//!      every leg zeroed
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CnId, Extents, Mac, Name};

/// CMem addresses are 48 bits wide: the first that is not one.
pub const CMEM_LIMIT: u64 = 1 << 48;
/// The finest interleave granularity in bytes (CXL HDM decoder, IG = 0).
pub const GRANULARITY_MIN: u32 = 256;
/// The coarsest interleave granularity in bytes (CXL HDM decoder, IG = 6).
pub const GRANULARITY_MAX: u32 = 16 << 10;

/// Memory of one or more memory nodes that one compute node sees as one range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its name, unique in the fabric.
    pub name: Name,
    /// The one CN that may use it.
    pub owner: CnId,
    /// Bytes.
    pub size: u64,
    /// Interleave ways; 1: the legs follow one another.
    pub ways: u32,
    /// Interleave granularity in bytes.
    pub granularity: u32,
    /// Where it stands.
    pub state: RegionState,
    /// What it is made of, by ascending `offset`; together they cover `0..size`.
    pub legs: Vec<Leg>,
    /// Why it is being taken down, when a memory node refused to map it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// When it was created: milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// Where a region stands. Later states in this list outweigh earlier ones when several apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionState {
    /// Every leg is mapped and its memory node is reachable.
    Active,
    /// A memory node of it is unreachable; its content is there when the node is.
    Degraded,
    /// Memory nodes have yet to confirm that they map it. Not to be used so far.
    Creating,
    /// A memory node lost the content of a leg. Nothing is mapped there until the region is reset or destroyed.
    Lost,
    /// Being taken down: mappings are removed and the memory is zeroed.
    Draining,
}

impl fmt::Display for RegionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Degraded => "degraded",
            Self::Creating => "creating",
            Self::Lost => "lost",
            Self::Draining => "draining",
        })
    }
}

/// The part of a region that lies on one memory node: region bytes `offset .. offset + bytes` are the owner's CMem
/// `cmem_base .. cmem_base + bytes` there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// The memory node.
    pub memory_node: Name,
    /// Addresses of that node's ports, as it registered them last.
    pub macs: Vec<Mac>,
    /// First byte of the region this leg covers.
    pub offset: u64,
    /// First CMem byte address; a multiple of `extent_bytes`, never handed out twice to one CN.
    pub cmem_base: u64,
    /// Length in bytes, a multiple of `extent_bytes`.
    pub bytes: u64,
    /// Bytes of one extent of that node.
    pub extent_bytes: u64,
    /// The extents of that node's pool, in CMem order.
    pub extents: Extents,
    /// Which life of the pool's content holds this leg's data; none before the node confirmed the mapping.
    pub incarnation: Option<u64>,
    /// Where it stands.
    pub state: LegState,
}

impl Leg {
    /// The address to send this leg's requests to: the first port of its memory node.
    pub fn mac(&self) -> Option<Mac> {
        self.macs.first().copied()
    }
}

/// Where a leg stands at its memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LegState {
    /// The node was told to map it and has not confirmed.
    Mapping,
    /// The node confirmed.
    Mapped,
    /// The node came back without the content.
    Lost,
    /// The node was told to remove and zero it and has not confirmed. The extents are nobody else's before it does.
    Unmapping,
}
