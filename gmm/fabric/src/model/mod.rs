//! The nouns of the fabric, for the manager, its store and its REST interface: one type for all three, so that no
//! conversion is needed. The rules that connect nouns are in the manager (`cxloe_gmm_core::manager`).

mod access;
mod cleared_log;
mod cn_id;
mod command;
mod compute_node;
mod event;
mod extents;
mod fill;
mod health;
mod labels;
pub mod lineage;
mod logical_device;
mod memory_node;
mod name;
mod operation;
mod protection;
mod qos;
mod region;
mod size;

pub use cxloe_wire::frame::{Mac, PublicKey};

pub use access::{Digest, Role, RoleError, Token, TokenError};
pub use cleared_log::ClearedLog;
pub use cn_id::{CnId, MacError};
pub use command::{CloneCmem, CommandResult, HandOver, Mapping, NodeAction, NodeCommand, Share, Watermark};
pub use compute_node::{ComputeNode, ComputeNodeKey, Retired, UdpPeer};
pub use event::{Event, EventKind};
pub use extents::{ExtentRun, Extents};
pub use fill::{FillCmem, FillProgress, FillSource};
pub use health::Health;
pub use labels::{LABEL_LEN_MAX, LABELS_MAX, Label, LabelError, LabelSelector, Labels};
pub use lineage::LeaderTerm;
pub use logical_device::{
    Binding, DeviceKind, LD_UNIT, LDS_MAX, LogicalDevice, SWITCH_NODES, UnbindOption, Unbinding, VPPBS_MAX,
};
pub use memory_node::MemoryNode;
pub use name::{NAME_LEN_MAX, Name, NameError};
pub use operation::{Operation, OperationKind, OperationOutcome};
pub use protection::{Protection, ProtectionError};
pub use qos::Qos;
pub use region::{
    CMEM_LIMIT, FormerLeg, FormerOwner, HdmDecoder, Leg, LegState, Loan, Origin, Reader, ReaderLeg, Region,
    RegionState, Release, ShareState, Unmapped,
};
pub use size::{ByteSize, SizeError, human_bytes};
