//! Bodies about logical devices and their bindings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::regions::{Owner, wait_ms_default};
use crate::model::{ByteSize, LogicalDevice, Name, UnbindOption};

/// Sets capacity aside for logical devices `first`, `first + 1` … of a memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLdAllocations {
    /// The first LD-ID.
    pub first: u16,
    /// Bytes for each, multiples of 256 MiB.
    pub reserved: Vec<ByteSize>,
}

/// Binds a logical device to a compute node: what is set aside for it becomes a region of that node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// The compute node.
    pub compute_node: Owner,
    /// The memory node.
    pub memory_node: Name,
    /// The LD; none: the whole of a single logical device, or the first LD of a multi-logical device that has capacity
    /// and is not bound.
    #[serde(default)]
    pub ld: Option<u16>,
    /// The vPPB; none: the first that is free.
    #[serde(default)]
    pub vppb: Option<u8>,
    /// How long to wait for the memory node to map it, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Takes a logical device from its compute node, and with it every region that has a part on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unbind {
    /// The memory node.
    pub memory_node: Name,
    /// The LD.
    pub ld: u16,
    /// How.
    #[serde(default = "managed")]
    pub option: UnbindOption,
    /// How long to wait for the compute node to let go, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

fn managed() -> UnbindOption {
    UnbindOption::Managed
}

/// A logical device with what follows from the regions on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogicalDeviceStatus {
    /// The logical device.
    #[serde(flatten)]
    pub device: LogicalDevice,
    /// Bytes: what is set aside for it, or what its regions use if that is more.
    pub capacity: u64,
    /// Bytes in regions that are not being taken down.
    pub used_bytes: u64,
    /// The regions of its compute node that have a part on its memory node.
    pub regions: Vec<Name>,
    /// While it is being unbound: percent of its regions' memory that its compute node has let go of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbound_percent: Option<u8>,
    /// Whether its being unbound waits for its compute node.
    #[serde(default)]
    pub waits_for_owner: bool,
}
