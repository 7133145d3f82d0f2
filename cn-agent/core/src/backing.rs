//! What serves a region: Ethernet, or a CXL device, as the agent remembers it with the region's addresses.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use cxloe_fabric::model::{HdmDecoder, Region};
use serde::{Deserialize, Serialize};

use crate::engine::{LocalMemory, MemoryGone};

/// What new regions are to be served by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preference {
    /// A CXL device of this machine that fits, else Ethernet.
    Auto,
    /// Ethernet; CXL devices are not even looked for.
    #[default]
    Ethernet,
    /// A CXL device; without one that fits, nothing.
    Cxl,
}

impl FromStr for Preference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Preference::Auto),
            "ethernet" => Ok(Preference::Ethernet),
            "cxl" => Ok(Preference::Cxl),
            _ => Err(format!("`{text}` is none of auto, ethernet, cxl")),
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Preference::Auto => "auto",
            Preference::Ethernet => "ethernet",
            Preference::Cxl => "cxl",
        })
    }
}

/// What serves a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Its memory nodes.
    #[default]
    Ethernet,
    /// Not decided yet; it is not attached before it is.
    Undecided,
    /// A CXL device of this machine.
    Device(Served),
}

impl Backing {
    /// Whether a device serves what this decoder spreads; what a region grows by goes over Ethernet.
    pub fn serves(&self, decoder: &HdmDecoder) -> bool {
        match self {
            Backing::Device(served) => {
                decoder.offset.checked_add(decoder.size).is_some_and(|end| end <= served.bytes)
            }
            Backing::Ethernet | Backing::Undecided => false,
        }
    }

    /// What carries the lines of `region`, as `cn-agent list` has it.
    pub fn carrier(&self, region: &Region) -> String {
        match self {
            Backing::Ethernet => "ethernet".into(),
            Backing::Undecided => "undecided".into(),
            Backing::Device(Served { device, .. }) => {
                let mut committed = region.decoders.iter().filter(|decoder| decoder.committed);
                let beyond = if committed.all(|decoder| self.serves(decoder)) { "" } else { "+ethernet" };
                format!("cxl:{device}{beyond}")
            }
        }
    }
}

/// A region's place on a device. The device is known by where it lies: its name may be another after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// What it is called.
    pub device: String,
    /// Its first host physical address.
    pub resource: u64,
    /// Its size in bytes.
    pub size: u64,
    /// How many bytes of the region it serves, from both their beginnings on.
    pub bytes: u64,
    /// The boot that its content is of, unless it keeps it without power.
    pub boot: Option<String>,
    /// Why the region's content is not there any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The memory, while this process has it.
    #[serde(skip)]
    pub memory: Option<Memory>,
}

/// Memory of a device of this machine, as whoever mapped it lends it.
pub trait DeviceMemory: LocalMemory {
    /// Whether the device has vanished, or was given up.
    fn is_gone(&self) -> bool;

    /// Has all further accesses fail, and lets others use the device.
    fn give_up(&self);
}

/// A device in use, equal to itself only.
#[derive(Clone, Debug)]
pub struct Memory(pub Arc<dyn DeviceMemory>);

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl Eq for Memory {}

impl Served {
    /// The memory, unless it is not there.
    pub fn present(&self) -> Option<&Arc<dyn DeviceMemory>> {
        self.memory.as_ref().map(|memory| &memory.0).filter(|device| !device.is_gone())
    }

    /// What the engine gets: the memory, or what fails in its place.
    pub fn local_memory(&self) -> Arc<dyn LocalMemory> {
        match &self.memory {
            Some(Memory(device)) => Arc::clone(device) as Arc<dyn LocalMemory>,
            None => Arc::new(Absent { bytes: self.bytes }),
        }
    }
}

/// Memory that is not there.
#[derive(Debug)]
struct Absent {
    bytes: u64,
}

impl LocalMemory for Absent {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, _offset: u64, _out: &mut [u8]) -> Result<(), MemoryGone> {
        Err(MemoryGone)
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), MemoryGone> {
        Err(MemoryGone)
    }
}
