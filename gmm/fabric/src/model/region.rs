//! A region: memory that one compute node uses as one address range, its HDM decoders, and its legs (its parts on
//! memory nodes).
//!
//! ```text
//!            create                  all legs confirmed
//!   (none) ---------> Creating ---------------------------> Active <----+
//!                        |  ^                               |  |        | node back
//!              refused,  |  | reset     content of a leg    |  +--> Degraded
//!              destroyed |  +--- Lost <---- lost -----------+  |
//!                        |                                  |  | disable, unbind    released
//!                        v                                  |  +--> Releasing ------> Disabled --enable--> Active
//!     (gone) <-------- Draining <---------- destroy --------+------------+----------------+
//!      every leg zeroed
//! ```
//!
//! A region grows by additional decoders above the existing ones. When memory nodes have mapped all legs of the
//! additional decoders, these decoders are committed, and the region's size grows; until then the existing part does
//! not change.

use core::net::SocketAddr;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CnId, Extents, Labels, Mac, Name, Protection, PublicKey, UnbindOption};
use crate::hdm::{Granularity, Ways};

/// End of the CMem addresses, which are 48 bits wide.
pub const CMEM_LIMIT: u64 = 1 << 48;

/// Memory of one or more memory nodes that one compute node uses as one range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Region {
    /// Name of the region, unique in the fabric.
    pub name: Name,
    /// CN id of the only compute node that may use the region.
    pub owner: CnId,
    /// Usable bytes of the region: the sum of the sizes of its committed decoders.
    pub size: u64,
    /// Interleave ways that the user has requested.
    pub ways: Ways,
    /// Interleave granularity that the user has requested.
    pub granularity: Granularity,
    /// Present state, derived from the legs and nodes.
    pub state: RegionState,
    /// Decoders of the region, by ascending `offset`, without gaps.
    pub decoders: Vec<HdmDecoder>,
    /// Parts of the region on memory nodes.
    pub legs: Vec<Leg>,
    /// Result of the owner's accesses to addresses of the region beyond `size`.
    #[serde(default)]
    pub unmapped: Unmapped,
    /// State of the release of the region by its owner; none if no release was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// The reason why the region is being destroyed, if a memory node refused to map it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// User id on the compute node that may use the region; none: every user of that node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Protection of the content against the loss of a memory node; it determines the number of copies of each part of
    /// the region.
    #[serde(default, skip_serializing_if = "Protection::is_none")]
    pub protect: Protection,
    /// True if the region is sealed: its content never changes again, memory nodes refuse writes, and other compute
    /// nodes can be permitted to read it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sealed: bool,
    /// Compute nodes other than the owner that may read the sealed region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<Reader>,
    /// Labels that people have given to the region.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Region of which this region is a clone or a snapshot; none for other regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Number of changes so far to the set of legs (parts on memory nodes) that are in sync. It only grows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
    /// Creation time, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

impl Region {
    /// Returns the total size of the region's decoders in bytes, including those not committed yet.
    pub fn bytes(&self) -> u64 {
        self.decoders.iter().map(|decoder| decoder.size).sum()
    }

    /// Returns the number of bytes that are being added to the region and are not usable yet.
    pub fn growing(&self) -> u64 {
        self.bytes() - self.size
    }

    pub fn is_committed(&self, leg: &Leg) -> bool {
        self.decoders.get(leg.decoder as usize).is_some_and(|decoder| decoder.committed)
    }

    pub fn legs_of(&self, decoder: u32) -> impl Iterator<Item = &Leg> {
        self.legs.iter().filter(move |leg| leg.decoder == decoder)
    }

    pub fn lies_on(&self, node: &Name) -> bool {
        self.legs.iter().any(|leg| &leg.memory_node == node)
    }
}

/// Origin of a clone or snapshot: the region whose content was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Origin {
    /// Name that the copied region had when the clone or snapshot was ordered.
    pub region: Name,
    /// True while the owner of the copied region has not released it yet: before the release, memory nodes get no order
    /// to clone the region.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waits: bool,
}

/// A compute node that may read a sealed region of another compute node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reader {
    /// CN id of the compute node that may read the region.
    pub cn: CnId,
    /// User id on the reading compute node that may read the region; none: every user of that node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Address and state of each leg (part on one memory node) for the reader, in the order of the region's legs.
    pub legs: Vec<ReaderLeg>,
    /// True if the share is being ended; the entry is removed when no memory node serves the reader any more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ends: bool,
}

impl Reader {
    /// Returns true if every memory node of the region serves the reader.
    pub fn is_ready(&self) -> bool {
        !self.ends && self.legs.iter().all(|leg| leg.state == ShareState::Served)
    }
}

/// Address and state, for one reader, of one leg (part on one memory node) of a sealed region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReaderLeg {
    /// First CMem byte address of the leg at the reader.
    pub cmem_base: u64,
    /// State of the share at the leg's memory node.
    pub state: ShareState,
}

/// State of a share at a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ShareState {
    /// The memory node has not confirmed the share yet.
    Pending,
    /// The memory node serves the reader.
    Served,
    /// The memory node has confirmed that it serves the reader no longer.
    Ended,
}

/// Settings of one HDM decoder, which interleaves a part of the region over the decoder's legs. The decoder's
/// base is `offset` above the address at which the compute node attaches the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HdmDecoder {
    /// Offset in the region of the first byte that the decoder covers.
    pub offset: u64,
    /// Bytes that the decoder covers; each of its legs (parts on memory nodes) has `size / ways` bytes.
    pub size: u64,
    /// Interleave ways: 1, 2, 3, 4, 6, 8, 12 or 16.
    pub ways: Ways,
    /// Interleave granularity: 256 bytes to 16 KiB.
    pub granularity: Granularity,
    /// True if memory nodes have mapped all legs of the decoder, which is in use from then on.
    pub committed: bool,
}

/// Result of accesses to addresses that no decoder claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Unmapped {
    /// The access fails (CXL: NXM).
    #[default]
    Error,
    /// Reads return poisoned data, like reads of damaged memory; writes are dropped.
    Poison,
    /// Reads return all ones; writes are dropped.
    AllOnes,
}

/// Release of a region by its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Release {
    /// Condition on which the region counts as released.
    pub option: UnbindOption,
    /// True to destroy the region after the release; otherwise it is disabled and keeps its content.
    pub destroy: bool,
    /// True if the owner has released the region, or has stopped.
    pub done: bool,
    /// CN id of the compute node that owns the region after the release; none if the region is neither moved nor
    /// sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<CnId>,
    /// True to seal the region after the release; `to` is then the present owner.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seal: bool,
    /// True if the release is temporary: the owner gets the region back when memory nodes have cloned it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy: bool,
}

/// State of a region. If the conditions of several variants hold, the last of these variants is the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RegionState {
    /// Every leg is in sync, and every memory node of the region is reachable.
    Active,
    /// Every part of the mirrored region has a copy in sync on a reachable memory node, but some second copy is
    /// missing, stale or on an unreachable node: the loss of one more node can destroy content.
    Exposed,
    /// Some part of the region has no copy in sync on a reachable memory node; the content is available again when the
    /// node is reachable.
    Degraded,
    /// Memory nodes have not yet confirmed the mapping, or the change of the owner; the region is not usable.
    Creating,
    /// A memory node lost the content of a leg (a part of the region), and no other copy of the leg is in sync. The leg
    /// stays unmapped until the region is reset or destroyed.
    Lost,
    /// The owner is asked to write back modified data and to release the region.
    Releasing,
    /// The owner has released the region; the content is kept.
    Disabled,
    /// The region is being destroyed: mappings are removed, and the memory is zeroed.
    Draining,
}

impl fmt::Display for RegionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Exposed => "exposed",
            Self::Degraded => "degraded",
            Self::Creating => "creating",
            Self::Lost => "lost",
            Self::Releasing => "releasing",
            Self::Disabled => "disabled",
            Self::Draining => "draining",
        })
    }
}

/// Part of a region on one memory node: one copy of the chunks that a decoder interleaves to one position (one of its
/// ways). In order, these chunks are the owner's CMem addresses `cmem_base .. cmem_base + bytes` on that node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Leg {
    /// Name of the memory node that the leg is on.
    pub memory_node: Name,
    /// Addresses of the memory node's ports, from its latest registration.
    pub macs: Vec<Mac>,
    /// Address of these ports over the `udp` link, from the memory node's latest registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<SocketAddr>,
    /// Public key of the memory node, from its latest registration; none if it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mn_key: Option<PublicKey>,
    /// Index of the leg's decoder in [`Region::decoders`].
    pub decoder: u32,
    /// Position of the leg in the decoder's interleave set, from 0.
    pub position: u32,
    /// Number of the copy that the leg belongs to, 0 or 1. The only copy of an unmirrored region can have either
    /// number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy: u8,
    /// First CMem byte address: a multiple of `extent_bytes`, unique among the present legs of the compute node.
    pub cmem_base: u64,
    /// Length of the leg in bytes, a multiple of `extent_bytes`.
    pub bytes: u64,
    /// Size of an extent of the memory node, in bytes.
    pub extent_bytes: u64,
    /// The extents of the memory node's pool that back the leg, in CMem order.
    pub extents: Extents,
    /// Incarnation of the pool that contains this leg's data; none before the memory node confirmed the mapping.
    pub incarnation: Option<u64>,
    /// State of the leg at its memory node.
    pub state: LegState,
    /// Name of the memory node to which an order for this region moves the leg; none if the leg does not move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<Name>,
    /// Former owner of the region, for which the memory node still maps the leg: until the node has confirmed the
    /// hand-over to the new owner or, if the hand-over failed, until the node has unmapped the leg.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<FormerOwner>,
    /// Memory node that has the leg in place of the owner, while memory nodes copy a part of a region that no compute
    /// node uses: the leg's own, which fills it, or that of the leg which is filled from this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<Loan>,
    /// Leg whose content this one had when it took its place, while no compute node used the region. An agent that
    /// knows that leg can go on with what it has in its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<FormerLeg>,
}

/// Leg that another one has taken the place of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FormerLeg {
    /// First CMem byte address that the leg had at the region's owner.
    pub cmem_base: u64,
    /// Incarnation of the pool that contained its data.
    pub incarnation: u64,
}

/// Place at which a leg is mapped for a memory node that copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Loan {
    /// CN id under which the memory node sends its requests: the address of its first port.
    pub cn: CnId,
    /// First CMem byte address of the leg for the memory node; the same for both legs of a copy.
    pub cmem_base: u64,
    /// True if the loan ends: the leg is mapped for the region's owner as soon as its memory node has confirmed that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ends: bool,
}

impl Loan {
    /// Returns true if both are the same loan, whether it ends or not.
    pub fn is_of(&self, other: &Self) -> bool {
        (self.cn, self.cmem_base) == (other.cn, other.cmem_base)
    }

    /// Returns the place of the loan as that of a former owner.
    pub fn former(&self) -> FormerOwner {
        FormerOwner { cn: self.cn, cmem_base: self.cmem_base }
    }
}

/// Owner and address that a leg had before its region moved to another compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FormerOwner {
    /// CN id of the former owner.
    pub cn: CnId,
    /// First CMem byte address of the leg at the former owner.
    pub cmem_base: u64,
}

impl Leg {
    /// Returns the address that this leg's requests are sent to: the first port of its memory node.
    pub fn mac(&self) -> Option<Mac> {
        self.macs.first().copied()
    }

    /// Returns true if the leg is in sync: it has the present content of its part of the region.
    pub fn is_in_sync(&self) -> bool {
        self.state == LegState::Mapped
    }

    /// Returns the loan for which the leg is mapped, or is to be mapped: none if it is mapped for the region's owner.
    pub fn loan(&self) -> Option<&Loan> {
        self.lent.as_ref().filter(|loan| !loan.ends)
    }

    /// Returns true if both legs are copies of the same part of the region: the same interleave position of the same
    /// decoder.
    pub fn is_copy_of(&self, other: &Leg) -> bool {
        (self.decoder, self.position) == (other.decoder, other.position) && self.copy != other.copy
    }
}

/// State of a leg at its memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LegState {
    /// A map command was issued, and its result is not known yet.
    Mapping,
    /// The memory node has confirmed the mapping, and the leg has the content: it is in sync.
    Mapped,
    /// The leg lacks content that the other copy has. It is mapped, or will be mapped again, and is only accessed to
    /// fill it from the other copy.
    Stale,
    /// The memory node registered again without the content of the leg.
    Lost,
    /// An unmap command was issued, and its result is not known yet. Until the result is known, the leg's extents are
    /// not allocated again.
    Unmapping,
}
