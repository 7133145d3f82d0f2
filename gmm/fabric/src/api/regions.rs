//! Bodies about regions: whose they are, and what is to become of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{ByteSize, CnId, Name, Region, Unmapped};

/// Who a region is for: a CN id, which need not have registered yet, or the name of a compute node that has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Owner {
    /// By CN id.
    CnId(CnId),
    /// By name.
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

/// Interleave ways when none are asked for.
pub const WAYS_DEFAULT: u32 = 1;
/// Interleave granularity in bytes when none is asked for.
pub const GRANULARITY_DEFAULT: u32 = 4096;
/// How long creating, resetting and destroying wait for memory nodes when not told otherwise, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 10_000;

/// Asks for a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRegion {
    /// Its name, unique in the fabric.
    pub name: Name,
    /// Bytes: a multiple of the extent size of the memory nodes.
    pub size: ByteSize,
    /// Who it is for.
    pub owner: Owner,
    /// Interleave ways.
    #[serde(default = "ways_default")]
    pub ways: u32,
    /// Interleave granularity in bytes: a power of two, 256 to 16384.
    #[serde(default = "granularity_default")]
    pub granularity: u32,
    /// The memory nodes to take it from; none named: those with the most free memory.
    #[serde(default)]
    pub on: Vec<Name>,
    /// How its owner answers accesses to the region's addresses beyond its size.
    #[serde(default)]
    pub unmapped: Unmapped,
    /// The user of the compute node whose memory it is to be, by number; none: it is for all who may use that node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// How long to wait for its memory nodes to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

impl CreateRegion {
    /// A region of `size` bytes for `owner`, all else by default.
    pub fn new(name: Name, size: u64, owner: impl Into<Owner>) -> Self {
        Self {
            name,
            size: ByteSize(size),
            owner: owner.into(),
            ways: WAYS_DEFAULT,
            granularity: GRANULARITY_DEFAULT,
            on: Vec::new(),
            unmapped: Unmapped::default(),
            uid: None,
            wait_ms: WAIT_MS_DEFAULT,
        }
    }
}

/// Asks for more of a region, which its user goes on using meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowRegion {
    /// Its new size in bytes, all of it.
    pub size: ByteSize,
    /// The memory nodes to take the addition from; none named: those with the most free memory.
    #[serde(default)]
    pub on: Vec<Name>,
    /// How long to wait for its memory nodes to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Query of `POST /v1/regions/{name}/disable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisableRegion {
    /// How long to wait for its owner to let go, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Limits what regions a compute node may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetQuota {
    /// Bytes of all its regions together; none: no limit.
    pub bytes: Option<ByteSize>,
}

/// A region with how far its taking down has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionStatus {
    /// The region.
    #[serde(flatten)]
    pub region: Region,
    /// While it is draining: percent of its memory that is zeroed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeroed_percent: Option<u8>,
    /// Whether its owner's agent has heard of all that concerns its regions, as they are.
    #[serde(default)]
    pub owner_knows: bool,
}

fn ways_default() -> u32 {
    WAYS_DEFAULT
}

fn granularity_default() -> u32 {
    GRANULARITY_DEFAULT
}

pub(super) fn wait_ms_default() -> u64 {
    WAIT_MS_DEFAULT
}

/// Query of `DELETE /v1/regions/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroyRegion {
    /// Destroy it although its owner's agent is there and may be using it.
    #[serde(default)]
    pub force: bool,
    /// How long to wait for its memory to be zeroed, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
    /// Destroy it only if it was created then, in milliseconds since the Unix epoch: else it is another one of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_ms: Option<u64>,
}

impl DestroyRegion {
    /// As it stands behind the question mark.
    pub fn query(&self) -> String {
        let created = self.created_ms.map_or_else(String::new, |ms| format!("&created_ms={ms}"));
        format!("force={}&wait_ms={}{created}", self.force, self.wait_ms)
    }
}

/// Query of `POST /v1/regions/{name}/reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetRegion {
    /// How long to wait for its memory nodes to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}
