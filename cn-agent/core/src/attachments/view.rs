//! Data of `cn-agent list`: regions, logical devices, and the state of this node.

use alloc::string::String;
use alloc::vec::Vec;
use cxloe_fabric::model::UnbindOption;
use serde::{Deserialize, Serialize};

/// State of this compute node in the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Whether the manager has suspended the node: nothing is attached until the manager resumes it.
    pub held: bool,
    /// Logical devices of memory nodes that are bound to this node.
    pub devices: Vec<AttachedDevice>,
    /// Address of the node's manager: `http://HOST:PORT` or `unix:/path/to/socket`.
    #[serde(default)]
    pub manager: String,
    /// CN id of the node, in the notation of a MAC address.
    #[serde(default)]
    pub cn: String,
    #[serde(default)]
    pub name: String,
}

/// A logical device as `cn-agent list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDevice {
    /// Name of the memory node that the device is a part of.
    pub memory_node: String,
    /// LD-ID of the device on its memory node.
    pub ld: u16,
    /// Bytes of the memory node that are reserved for the device.
    pub reserved: u64,
    /// Number of this node's vPPB to which the device is bound.
    pub vppb: Option<u8>,
    /// Name of the region that was created from the device when it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Mode in which the device is being unbound; `None` if it stays bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbinding: Option<UnbindOption>,
}

/// Usability of a region on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attaching {
    /// Operations on the region are served.
    #[default]
    Attached,
    /// Operations wait: the session with one of the region's memory nodes is not open.
    Connecting,
    /// Operations fail: the region's dirty lines are being written back, because the manager reclaims the region or has
    /// suspended this node.
    #[serde(rename = "letting_go")]
    Draining,
    /// The region is disabled, or moving to another node; its address is kept.
    Detached,
    /// This node is suspended; the region's address is kept.
    #[serde(rename = "held")]
    InReset,
    /// The region's backing is undecided; the note gives the reason.
    Waiting,
}

/// A region as `cn-agent list` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedRegion {
    /// Name of the region, unique in the fabric.
    pub region: String,
    /// First host physical address of the region.
    pub hpa: u64,
    /// Size of the region in bytes.
    pub size: u64,
    /// User id on this node of the region's owner; `None` if all who may use the agent may use the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Time of the region's creation in milliseconds since the Unix epoch.
    #[serde(default)]
    pub created_ms: u64,
    /// Whether the region is sealed: it can only be read.
    #[serde(default)]
    pub sealed: bool,
    /// Epoch of the region, a number that grows when the region moves to another compute node or when the set of its
    /// legs (parts on memory nodes) in sync changes; omitted in JSON while it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
    /// State of the region in the manager's last answer: `active`, `degraded`, `lost`, …
    pub state: String,
    pub attachment: Attaching,
    /// Index of the agent's worker thread that serves the region; omitted in JSON for the first worker.
    #[serde(default, skip_serializing_if = "is_first")]
    pub worker: usize,
    /// Backing of the region: `ethernet`; `cxl:` and the name of a DAX device; that and `+ethernet`, if the region
    /// has grown beyond the device's part; or `undecided`.
    pub served_by: String,
    /// Note on the backing: the reason why the region waits, or why its device is unusable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Size in bytes of the region's window, which begins at `hpa`: the limit of the region's growth.
    pub window: u64,
    /// Bytes of the region that have no addresses, because the region has grown beyond its window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub beyond_window: u64,
    /// HDM decoders of the region, by ascending HPA.
    pub decoders: Vec<AttachedDecoder>,
    /// Parts of the region on memory nodes (legs), at least one for each position of each decoder.
    pub memory_nodes: Vec<AttachedLeg>,
}

impl AttachedRegion {
    /// Bytes of the region that have addresses, from `hpa` on. Addresses behind them may be another region's.
    pub fn addressable(&self) -> u64 {
        self.size.saturating_sub(self.beyond_window)
    }

    /// Marks an attached region as connecting if the session with any memory node that gets frames for it is not
    /// open.
    pub fn show_sessions(&mut self, is_open: impl Fn(&str) -> bool) {
        let by_frames = self.served_by.contains("ethernet");
        if self.attachment == Attaching::Attached
            && by_frames
            && !self.memory_nodes.iter().all(|leg| is_open(&leg.mac))
        {
            self.attachment = Attaching::Connecting;
        }
    }
}

fn is_first(worker: &usize) -> bool {
    *worker == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An HDM decoder of a region: a range of addresses that is interleaved over memory nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDecoder {
    pub hpa: u64,
    /// Size of the decoder's range in bytes.
    pub size: u64,
    /// Number of legs (parts on memory nodes) over which the decoder interleaves.
    pub interleave_ways: u32,
    /// Number of consecutive bytes on one leg (interleave granularity).
    pub interleave_granularity: u32,
    /// Whether the decoder is in use; if not, some of its legs (parts on memory nodes) are not mapped yet.
    pub committed: bool,
}

/// The part of a region on one memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedLeg {
    pub memory_node: String,
    /// MAC address of the memory node; `unknown` if it has registered none.
    pub mac: String,
    /// Index of the leg's decoder in the region.
    pub decoder: u32,
    /// Position of the leg in the decoder's interleave set.
    pub position: u32,
    /// Offset in the region of the leg's first byte.
    pub offset: u64,
    /// Bytes of the region that the leg holds.
    pub bytes: u64,
}
