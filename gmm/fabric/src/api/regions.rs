//! Bodies of requests about regions: creation, growth, protection, moves, shares, clones and destruction.

use serde::{Deserialize, Serialize};

use crate::hdm::{Granularity, Ways};
use crate::model::{ByteSize, CnId, LabelSelector, Labels, Mac, Name, Protection, Region, Unmapped};

/// Owner of a region: a CN id, which need not have registered yet, or the name of a registered compute node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "neither the CN id nor the name of a compute node")]
pub enum Owner {
    /// CN id, which need not have registered.
    CnId(CnId),
    /// Name of a registered compute node.
    Name(Name),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CnId(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl std::str::FromStr for Owner {
    type Err = crate::model::NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::CnId).or_else(|_| text.parse().map(Self::Name))
    }
}

impl From<CnId> for Owner {
    fn from(id: CnId) -> Self {
        Self::CnId(id)
    }
}

/// Interleave ways of a region whose request gives none.
pub const WAYS_DEFAULT: Ways = Ways::One;
/// Interleave granularity of a region whose request gives none.
pub const GRANULARITY_DEFAULT: Granularity = Granularity::PAGE;
/// Default wait for memory nodes when creating, resetting and destroying, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 10_000;

/// Body of `POST /v1/regions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateRegion {
    /// Name of the region, unique in the fabric; none: the manager chooses `region0`, `region1` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Size of the region: a multiple of the memory nodes' extent size.
    pub size: ByteSize,
    /// The compute node that will use the region.
    pub owner: Owner,
    /// Interleave ways: 1, 2, 3, 4, 6, 8, 12 or 16.
    #[serde(default = "ways_default")]
    pub ways: Ways,
    /// Interleave granularity in bytes: a power of two, 256 to 16384.
    #[serde(default = "granularity_default")]
    pub granularity: Granularity,
    /// The memory nodes to place the region on; empty: those with the most free memory.
    #[serde(default)]
    pub on: Vec<Name>,
    /// Protection of the content: the number of copies.
    #[serde(default)]
    pub protect: Protection,
    /// Result of the owner's accesses to addresses of the region beyond its size.
    #[serde(default)]
    pub unmapped: Unmapped,
    /// User id on the compute node that may use the region; none: every user of that node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Labels of the region.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Maximum wait for the memory nodes to map the region, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

impl std::fmt::Display for CreateRegion {
    /// Writes the request in words, for messages to people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("create region ")?;
        self.name.iter().try_for_each(|name| write!(f, "{name} "))?;
        write!(f, "of {} for {}", self.size, self.owner)
    }
}

impl CreateRegion {
    /// Returns a request for a region of `size` bytes for `owner`, with defaults for all else.
    pub fn new(name: Name, size: u64, owner: impl Into<Owner>) -> Self {
        Self { name: Some(name), ..Self::nameless(size, owner) }
    }

    /// Returns a request as from [`new`](Self::new) for a region whose name the manager chooses.
    pub fn nameless(size: u64, owner: impl Into<Owner>) -> Self {
        Self {
            name: None,
            size: ByteSize(size),
            owner: owner.into(),
            ways: WAYS_DEFAULT,
            granularity: GRANULARITY_DEFAULT,
            on: Vec::new(),
            protect: Protection::default(),
            unmapped: Unmapped::default(),
            uid: None,
            labels: Labels::default(),
            wait_ms: WAIT_MS_DEFAULT,
        }
    }
}

/// Query of `GET /v1/regions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListRegions {
    /// Only regions whose labels meet these conditions: `key=value`, `key!=value`, `key` or `!key`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub labels: Option<LabelSelector>,
}

/// Request to change the labels of a region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelRegion {
    /// Labels to add, or to give another value.
    #[serde(default)]
    pub set: Labels,
    /// Keys of labels to remove.
    #[serde(default)]
    pub remove: Vec<String>,
}

/// Query of `GET /v1/regions/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShowRegion {
    /// Maximum wait for the owner's agent, if it is running, to receive the present state of its regions, in
    /// milliseconds.
    #[serde(default)]
    pub owner_wait_ms: u64,
}

/// Request to enlarge a region, which stays usable during its growth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GrowRegion {
    /// Total size of the region after the growth.
    pub size: ByteSize,
    /// The memory nodes to place the addition on; empty: those with the most free memory.
    #[serde(default)]
    pub on: Vec<Name>,
    /// Maximum wait for the memory nodes to map the addition, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Query of `POST /v1/regions/{name}/disable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DisableRegion {
    /// Maximum wait for the owner to release the region, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to limit the regions of a compute node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetQuota {
    /// Maximum total size of the compute node's regions; none: no limit.
    pub bytes: Option<ByteSize>,
}

/// A region with the progress of its destruction, or of copies that memory nodes make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegionStatus {
    /// The stored record of the region.
    #[serde(flatten)]
    pub region: Region,
    /// While the region is draining: percentage of its memory that is zeroed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeroed_percent: Option<u8>,
    /// True if the owner's agent has received the present state of its regions.
    #[serde(default)]
    pub owner_knows: bool,
    /// True if no memory node has room for a copy that the region lacks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_spare: bool,
    /// True if no compute node uses the region or can have changes of it, so that memory nodes copy what has to move.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_rest: bool,
    /// While memory nodes copy parts of the region: number of bytes that they have to copy, and of those copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copying: Option<CopyProgress>,
}

/// Progress of the copies that memory nodes make of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CopyProgress {
    /// Bytes to copy in all.
    pub bytes: u64,
    /// Bytes copied so far.
    pub done: u64,
}

fn ways_default() -> Ways {
    WAYS_DEFAULT
}

fn granularity_default() -> Granularity {
    GRANULARITY_DEFAULT
}

pub(super) fn wait_ms_default() -> u64 {
    WAIT_MS_DEFAULT
}

/// Query of `DELETE /v1/regions/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DestroyRegion {
    /// Destroy the region even if its owner's agent is running and may be using it.
    #[serde(default)]
    pub force: bool,
    /// Maximum wait for the region's memory to be zeroed, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
    /// Creation time of the region to be destroyed, in milliseconds since the Unix epoch: a later region of the same
    /// name is not destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_ms: Option<u64>,
}

impl DestroyRegion {
    /// Returns the query string of the request, without the question mark.
    pub fn query(&self) -> String {
        let created = self.created_ms.map_or_else(String::new, |ms| format!("&created_ms={ms}"));
        format!("force={}&wait_ms={}{created}", self.force, self.wait_ms)
    }
}

/// Query of `POST /v1/regions/{name}/reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResetRegion {
    /// Maximum wait for the memory nodes to map the region, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to change the protection of a region, which stays usable meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProtectRegion {
    /// Protection of the region from now on.
    pub protect: Protection,
    /// The memory nodes to place an additional copy on; empty: those with the most free memory.
    #[serde(default)]
    pub on: Vec<Name>,
    /// Maximum wait for the protection to be as requested, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to move a region to another compute node, or to stop the move. The content stays where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveRegion {
    /// The compute node that becomes the owner once the present owner has released the region; none: the
    /// present owner keeps the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Owner>,
    /// True to move the region although its owner's agent is unreachable: changes that the agent has not
    /// written back are lost.
    #[serde(default)]
    pub force: bool,
    /// Maximum wait for the region to be usable at its new owner, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to seal a region: its content can never change again, and other compute nodes may be allowed to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SealRegion {
    /// True to seal the region although its owner's agent is unreachable: changes that the agent has not
    /// written back are lost.
    #[serde(default)]
    pub force: bool,
    /// Maximum wait for the region to be sealed, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to let a further compute node read a sealed region, or to end the share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShareRegion {
    /// The compute node that may read the region.
    pub with: Owner,
    /// True to end the share.
    #[serde(default)]
    pub end: bool,
    /// User id on that compute node that may read; none: every user of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Maximum wait for the memory nodes to begin or end the share, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to make a region that begins with the content of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloneRegion {
    /// Name of the new region, unique in the fabric.
    pub name: Name,
    /// The compute node that will use the new region; none: the owner of the cloned region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// User id on that compute node that may use the new region; none: as for the cloned region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// True for a snapshot: the new region is sealed.
    #[serde(default)]
    pub sealed: bool,
    /// True to clone the region although its owner's agent is unreachable: changes that the agent has not
    /// written back are not in the new region.
    #[serde(default)]
    pub force: bool,
    /// Maximum wait for the new region to be usable, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to move the parts of a region on one memory node to another, or to stop the move. The region stays
/// usable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RelocateRegion {
    /// The memory node that the parts are on.
    pub from: Name,
    /// The memory node that the parts move to; none: the move is stopped, and parts that have not moved stay on `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Name>,
    /// Maximum wait for the parts to have moved, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to declare stale a region's legs on one memory node (its parts there), sent by the agent of the region's
/// owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LegsStale {
    /// Number of the agent's registration, from the answer to the registration.
    pub registration: u64,
    /// Address of the memory node: its first port.
    pub mac: Mac,
    /// Epoch of the region, as the agent has received it.
    pub epoch: u64,
}

/// Report by the agent of a region's owner that it has filled a stale leg (a part of the region on one memory node),
/// which now has the same content as its other copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LegsFilled {
    /// Number of the agent's registration, from the answer to the registration.
    pub registration: u64,
    /// Address of the memory node: its first port.
    pub mac: Mac,
    /// First CMem byte address of the leg.
    pub cmem_base: u64,
    /// Epoch of the region, as the agent has received it.
    pub epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interleave_that_no_decoder_has_is_refused_when_it_is_read() {
        let read = |more: &str| {
            let text = format!(r#"{{"name":"r","size":4096,"owner":"cn0"{more}}}"#);
            serde_json::from_str::<CreateRegion>(&text).map_err(|error| error.to_string())
        };
        let plain = read("").unwrap();
        assert_eq!((plain.ways, plain.granularity), (Ways::One, Granularity::PAGE));
        let wide = read(r#","ways":12,"granularity":256"#).unwrap();
        assert_eq!((wide.ways, wide.granularity), (Ways::Twelve, Granularity::MIN));
        for (more, words) in [
            (r#","ways":0"#, "choose 1, 2, 3"),
            (r#","ways":5"#, "choose 1, 2, 3"),
            (r#","granularity":128"#, "power of two from 256"),
            (r#","granularity":3000"#, "power of two from 256"),
        ] {
            let error = read(more).unwrap_err();
            assert!(error.contains(words), "{more}: {error}");
        }
    }
}
