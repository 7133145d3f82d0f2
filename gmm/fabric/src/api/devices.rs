//! Bodies of requests about logical devices and their bindings.

use serde::{Deserialize, Serialize};

use super::regions::{Owner, wait_ms_default};
use crate::model::{ByteSize, LogicalDevice, Name, UnbindOption};

/// Request to reserve capacity for logical devices `first`, `first + 1` … of a memory node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetLdAllocations {
    /// LD-ID of the first logical device: 0 to 15.
    pub first: u16,
    /// Capacity of each logical device in turn, a multiple of 256 MiB.
    pub reserved: Vec<ByteSize>,
}

/// Request to bind a logical device to a compute node: its reserved capacity becomes a region of that node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// The compute node, by CN id or name.
    pub compute_node: Owner,
    /// Name of the memory node whose LD is bound.
    pub memory_node: Name,
    /// LD-ID of the LD. None: of a single logical device, the whole; of a multi-logical device, the first unbound LD
    /// that has capacity.
    #[serde(default)]
    pub ld: Option<u16>,
    /// The vPPB of the compute node; none: its lowest free one.
    #[serde(default)]
    pub vppb: Option<u8>,
    /// Maximum wait for the memory node to map the region, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

/// Request to unbind a logical device from its compute node, and to destroy every region with a part on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Unbind {
    /// Name of the memory node whose LD is unbound.
    pub memory_node: Name,
    /// LD-ID: 0 to 15.
    pub ld: u16,
    /// Condition on which the compute node releases the LD.
    #[serde(default = "managed")]
    pub option: UnbindOption,
    /// Maximum wait for the compute node to release its regions, in milliseconds.
    #[serde(default = "wait_ms_default")]
    pub wait_ms: u64,
}

fn managed() -> UnbindOption {
    UnbindOption::Managed
}

/// A logical device with figures derived from the regions on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogicalDeviceStatus {
    /// The stored record of the logical device.
    #[serde(flatten)]
    pub device: LogicalDevice,
    /// Number of the FM API switch that the memory node is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<u32>,
    /// Number of the port at which the memory node is connected to that switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Size in bytes: the reserved capacity, or the bytes of the LD's regions if these are more.
    pub capacity: u64,
    /// Bytes of the LD's regions that are not being destroyed.
    pub used_bytes: u64,
    /// Names of the compute node's regions that have a part on the memory node.
    pub regions: Vec<Name>,
    /// During unbinding: percentage of the regions' memory that the compute node has released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbound_percent: Option<u8>,
    /// True if an unbinding waits for the compute node to release regions.
    #[serde(default)]
    pub waits_for_owner: bool,
}
