//! A logical device (LD): all that one compute node owns on one memory node, and how it is bound. A memory node is a
//! multi-logical device (MLD) with up to 16 of them, or a single logical device (SLD) that one compute node has whole.
//!
//! An LD has capacity in two ways: `reserved` bytes are set aside for it whether used or not; beyond them it takes what
//! its regions need. A compute node that gets a region on a memory node without being bound there is bound to a free
//! LD; such an LD goes with its last region. From the 17th compute node on, a memory node has regions without an LD.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CnId, Name};

/// LDs of a multi-logical device (CXL 2.0: LD-ID 0 to 15).
pub const LDS_MAX: u16 = 16;
/// The unit in which capacity is set aside for an LD, in bytes: the finest that Get LD Allocations can say.
pub const LD_UNIT: u64 = 256 << 20;
/// vPPBs of a compute node's virtual CXL switch.
pub const VPPBS_MAX: u8 = 127;
/// Memory nodes, and compute nodes, of one switch as the FM API shows the fabric: port and VCS ids are bytes.
pub const SWITCH_NODES: u32 = 127;

/// How a memory node is given away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// In slices, to many compute nodes.
    #[default]
    Mld,
    /// Whole, to one compute node.
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

/// A logical device of a memory node that has capacity set aside, or is bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogicalDevice {
    /// The memory node.
    pub memory_node: Name,
    /// LD-ID: 0 to 15.
    pub id: u16,
    /// Bytes set aside for it, a multiple of [`LD_UNIT`]; 0: what its regions use and no more.
    pub reserved: u64,
    /// Who it is bound to.
    pub binding: Option<Binding>,
}

/// The binding of an LD to a vPPB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// The compute node.
    pub compute_node: CnId,
    /// The vPPB of its virtual switch; none where it has no free one, or the FM API shows node and device on two switches.
    pub vppb: Option<u8>,
    /// The region that was made of the LD's capacity when it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Name>,
    /// Set while it is being unbound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbinding: Option<Unbinding>,
}

/// An LD on its way out of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unbinding {
    /// How.
    pub option: UnbindOption,
    /// Bytes of regions there were on it when that began, for the percentage that is let go of.
    pub total: u64,
}

/// How to unbind (Unbind vPPB, 5202h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnbindOption {
    /// Wait until the compute node is gone by itself.
    WaitLinkDown,
    /// Ask the compute node to write back and let go, and wait until it has or is gone.
    Managed,
    /// At once: what the compute node has not written back is lost.
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
