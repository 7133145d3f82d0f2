//! What `cn-agent list` shows: regions, logical devices, and how this node stands.

use alloc::string::String;
use alloc::vec::Vec;
use cxloe_fabric::model::UnbindOption;
use serde::{Deserialize, Serialize};

/// How this compute node stands in the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Held in reset: nothing is attached until the manager releases it.
    pub held: bool,
    /// What is bound to it.
    pub devices: Vec<AttachedDevice>,
    /// Its manager: `http://HOST:PORT` or `unix:/path/to/socket`.
    #[serde(default)]
    pub manager: String,
    /// Its CN id.
    #[serde(default)]
    pub cn: String,
    /// Its name in the fabric.
    #[serde(default)]
    pub name: String,
}

/// A logical device as `cn-agent list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDevice {
    /// The memory node it is a part of.
    pub memory_node: String,
    /// Its LD-ID.
    pub ld: u16,
    /// Bytes set aside for it.
    pub reserved: u64,
    /// The vPPB of this node that it is bound to.
    pub vppb: Option<u8>,
    /// The region that was made of it when it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// How it is being unbound, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbinding: Option<UnbindOption>,
}

/// Whether a region can be used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attaching {
    /// Yes.
    #[default]
    Attached,
    /// Yes, and operations wait: the session with one of its memory nodes is not open yet, or not any more.
    Connecting,
    /// No longer: what is modified is being written back, because the manager asked for it or holds this node.
    #[serde(rename = "letting_go")]
    Draining,
    /// No: it is disabled, or on its way to another; it keeps its address.
    Detached,
    /// No: this node is held in reset; it keeps its address.
    #[serde(rename = "held")]
    InReset,
    /// Not yet: what is to serve it is not decided; the note says what is missing.
    Waiting,
}

/// A region as `cn-agent list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedRegion {
    /// Its name.
    pub region: String,
    /// First host physical address.
    pub hpa: u64,
    /// Bytes.
    pub size: u64,
    /// The user of this node whose memory it is; none: it is for all who may use the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// When it was created, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub created_ms: u64,
    /// Its state as the manager told last: `active`, `degraded`, `lost`, …
    pub state: String,
    /// Whether it can be used here.
    pub attachment: Attaching,
    /// What carries its lines: `ethernet`; `cxl:` and the name of a DAX device; that and `+ethernet`, if it has grown beyond
    /// what the device serves; or `undecided`.
    pub served_by: String,
    /// What there is to say about that: why it waits, or why its device does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Bytes of addresses it has, from `hpa` on: how far it can grow.
    pub window: u64,
    /// Bytes of it for which it has no addresses, because it has grown beyond its window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub beyond_window: u64,
    /// What spreads it, by ascending HPA.
    pub decoders: Vec<AttachedDecoder>,
    /// What it is made of.
    pub memory_nodes: Vec<AttachedLeg>,
}

impl AttachedRegion {
    /// Says of a region that is attached that it is connecting, unless the session with each memory node at whose addresses
    /// frames go for it is open.
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

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// An HDM decoder of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedDecoder {
    /// First host physical address.
    pub hpa: u64,
    /// Bytes.
    pub size: u64,
    /// Over how many legs it spreads them.
    pub interleave_ways: u32,
    /// In pieces of so many bytes.
    pub interleave_granularity: u32,
    /// Whether it is in force; otherwise its legs are not all mapped yet.
    pub committed: bool,
}

/// The part of a region on one memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedLeg {
    /// Its name.
    pub memory_node: String,
    /// Its address.
    pub mac: String,
    /// Index of its decoder.
    pub decoder: u32,
    /// Its position in the decoder's interleave set.
    pub position: u32,
    /// First byte of the region it holds.
    pub offset: u64,
    /// Bytes of the region it holds.
    pub bytes: u64,
}
