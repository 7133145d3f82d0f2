//! A logical device (LD): everything that one compute node owns on one memory node, and its binding. A memory node is a
//! multi-logical device (MLD) with up to 16 LDs, or a single logical device (SLD), which belongs to one compute node as
//! a whole.
//!
//! The capacity of an LD has two parts: `reserved` bytes are kept for the LD whether used or not; beyond them, the
//! LD takes what its regions need. A compute node that gets a region on a memory node without a binding there is bound
//! to a free LD; such an LD is removed with its last region. From the 17th compute node on, a memory node has regions
//! that belong to no LD.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CnId, Name};

/// Maximum number of LDs of a multi-logical device (CXL 2.0: LD-ID 0 to 15).
pub const LDS_MAX: u16 = 16;
/// The unit of capacity reserved for an LD, in bytes: the finest that Get LD Allocations can encode.
pub const LD_UNIT: u64 = 256 << 20;
/// Number of vPPBs of a compute node's virtual CXL switch.
pub const VPPBS_MAX: u8 = 127;
/// Maximum number of memory nodes, and of compute nodes, on one switch of the FM API: port and VCS ids are bytes.
pub const SWITCH_NODES: u32 = 127;

/// Allocation of a memory node: shared, or to one compute node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Allocated in slices, to many compute nodes.
    #[default]
    Mld,
    /// Allocated as a whole, to one compute node.
    Sld,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mld => "mld",
            Self::Sld => "sld",
        })
    }
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "mld" => Ok(Self::Mld),
            "sld" => Ok(Self::Sld),
            other => Err(format!("{other:?} is no kind of device: give mld (in slices) or sld (whole)")),
        }
    }
}

/// A logical device of a memory node that has reserved capacity, or is bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogicalDevice {
    /// Name of the memory node that the LD is a part of.
    pub memory_node: Name,
    /// LD-ID: 0 to 15.
    pub id: u16,
    /// Bytes reserved for the LD, a multiple of [`LD_UNIT`]; 0: the LD has only what its regions use.
    pub reserved: u64,
    /// Binding to a compute node; none if the LD is free.
    pub binding: Option<Binding>,
}

/// The binding of an LD to a vPPB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Binding {
    /// CN id of the compute node that the LD is bound to.
    pub compute_node: CnId,
    /// Number of the vPPB on the compute node's virtual switch; none if no vPPB was free, or if the two nodes are on
    /// different switches of the FM API.
    pub vppb: Option<u8>,
    /// Name of the region that the binding created from the LD's capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
    /// Present while the LD is being unbound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbinding: Option<Unbinding>,
}

/// An unbinding that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unbinding {
    /// Condition on which the compute node releases the LD.
    pub option: UnbindOption,
    /// Bytes of the LD's regions when the unbinding began, from which the released percentage is computed.
    pub total: u64,
}

/// Condition on which a compute node releases an LD (Unbind vPPB, 5202h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnbindOption {
    /// Wait until the compute node has stopped.
    WaitLinkDown,
    /// Ask the compute node to write back and release, and wait until it has done so or has stopped.
    Managed,
    /// Take the memory away at once: data that the compute node has not written back is lost.
    Surprise,
}

impl std::str::FromStr for UnbindOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "wait" => Ok(Self::WaitLinkDown),
            "managed" => Ok(Self::Managed),
            "surprise" => Ok(Self::Surprise),
            other => Err(format!("{other:?} is no way to unbind: give wait, managed or surprise")),
        }
    }
}
