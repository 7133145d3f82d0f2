//! A region: memory that one compute node sees as one address range, the HDM decoders that spread it, and the legs of
//! memory nodes it is made of.
//!
//! ```text
//!            create                  all legs confirmed
//!   (none) ---------> Creating ---------------------------> Active <----+
//!                        |  ^                               |  |        | node back
//!              refused,  |  | reset     content of a leg    |  +--> Degraded
//!              destroyed |  +--- Lost <---- lost -----------+  |
//!                        |                                  |  | disable, unbind      let go
//!                        v                                  |  +--> Releasing ------> Disabled --enable--> Active
//!     (gone) <-------- Draining <---------- destroy --------+------------+----------------+
//!      every leg zeroed
//! ```
//!
//! A region grows by decoders behind those it has. They are committed, and its size grows, once every leg of them is
//! mapped; until then nothing of what is there already changes.

use core::net::SocketAddr;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Extents, Mac, Name, PublicKey, UnbindOption};
use crate::hdm::{Granularity, Ways};

/// CMem addresses are 48 bits wide: the first that is not one.
pub const CMEM_LIMIT: u64 = 1 << 48;

/// Memory of one or more memory nodes that one compute node sees as one range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// Its name, unique in the fabric.
    pub name: Name,
    /// The one CN that may use it.
    pub owner: CnId,
    /// Bytes that may be used: those of its committed decoders.
    pub size: u64,
    /// Interleave ways asked for.
    pub ways: Ways,
    /// Interleave granularity asked for.
    pub granularity: Granularity,
    /// Where it stands.
    pub state: RegionState,
    /// What spreads it, by ascending `offset`, without gaps.
    pub decoders: Vec<HdmDecoder>,
    /// What it is made of.
    pub legs: Vec<Leg>,
    /// How its owner answers accesses to the region's addresses beyond `size`.
    #[serde(default)]
    pub unmapped: Unmapped,
    /// Set when its owner is to let go of it, or has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// Why it is being taken down, when a memory node refused to map it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The user of its compute node whose memory it is, by number; none: it is for all who may use that node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// When it was created: milliseconds since the Unix epoch.
    pub created_ms: u64,
}

impl Region {
    /// Bytes of all its decoders, those that are not committed yet included.
    pub fn bytes(&self) -> u64 {
        self.decoders.iter().map(|decoder| decoder.size).sum()
    }

    /// Bytes that are being added.
    pub fn growing(&self) -> u64 {
        self.bytes() - self.size
    }

    /// Whether the leg belongs to a decoder that is committed.
    pub fn is_committed(&self, leg: &Leg) -> bool {
        self.decoders.get(leg.decoder as usize).is_some_and(|decoder| decoder.committed)
    }

    /// The legs of one decoder, by position.
    pub fn legs_of(&self, decoder: u32) -> impl Iterator<Item = &Leg> {
        self.legs.iter().filter(move |leg| leg.decoder == decoder)
    }

    /// Whether a part of it lies on `node`.
    pub fn lies_on(&self, node: &Name) -> bool {
        self.legs.iter().any(|leg| &leg.memory_node == node)
    }
}

/// The programming of one HDM decoder: which part of the region it spreads over how many legs, in which pieces. Its base
/// is `offset` above the address at which the compute node attaches the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HdmDecoder {
    /// First byte of the region that it covers.
    pub offset: u64,
    /// Bytes it covers; its legs have `size / ways` each.
    pub size: u64,
    /// Interleave ways.
    pub ways: Ways,
    /// Interleave granularity.
    pub granularity: Granularity,
    /// Whether it is in force: all its legs were mapped.
    pub committed: bool,
}

/// How accesses to addresses that no decoder claims are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unmapped {
    /// With an error (CXL: NXM).
    #[default]
    Error,
    /// With poisoned data: a read fails as one of damaged memory would; writes go nowhere.
    Poison,
    /// Reads as all ones; writes go nowhere.
    AllOnes,
}

/// Why and how far the owner lets go of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Release {
    /// What is waited for.
    pub option: UnbindOption,
    /// Whether it is taken down then; otherwise it stays, disabled, with its content.
    pub destroy: bool,
    /// Whether the owner has let go, or is gone.
    pub done: bool,
}

/// Where a region stands. Later states in this list outweigh earlier ones when several apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
    /// Its owner is asked to write back what it has modified and to let go.
    Releasing,
    /// Its owner has let go; its content is kept.
    Disabled,
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
            Self::Releasing => "releasing",
            Self::Disabled => "disabled",
            Self::Draining => "draining",
        })
    }
}

/// The part of a region that lies on one memory node behind one position of a decoder: what the decoder gives this
/// position, in order, is the owner's CMem `cmem_base .. cmem_base + bytes` there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leg {
    /// The memory node.
    pub memory_node: Name,
    /// Addresses of that node's ports, as it registered them last.
    pub macs: Vec<Mac>,
    /// Where frames for these go over the `udp` link, as that node registered it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// The public key of that node, as it registered it last; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mn_key: Option<PublicKey>,
    /// Index of its decoder in [`Region::decoders`].
    pub decoder: u32,
    /// Its position in the decoder's interleave set, from 0.
    pub position: u32,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
