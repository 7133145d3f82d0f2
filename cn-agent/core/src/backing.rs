//! Backing of a region: Ethernet, or a CXL device, stored with the region's addresses.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use cxloe_fabric::model::{HdmDecoder, Region};
use serde::{Deserialize, Serialize};

use crate::engine::{LocalMemory, MemoryGone};

/// Preference for the backing of new regions, as set by `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preference {
    /// A CXL device of this machine that fits, else Ethernet.
    Auto,
    /// Ethernet; the agent does not look for CXL devices.
    #[default]
    Ethernet,
    /// A CXL device; the region waits until one fits.
    Cxl,
}

impl FromStr for Preference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Preference::Auto),
            "ethernet" => Ok(Preference::Ethernet),
            "cxl" => Ok(Preference::Cxl),
            _ => Err(format!("`{text}` is not one of auto, ethernet, cxl")),
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

/// Memory that serves a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// The region's memory nodes, over Ethernet.
    #[default]
    Ethernet,
    /// Not decided yet. The region is not attached before the decision.
    Undecided,
    /// A CXL device of this machine, for the region's first bytes.
    Device(DevicePlacement),
}

impl Backing {
    /// Whether a device serves this decoder's range. Decoders that a region gets by growth are always served over
    /// Ethernet.
    pub fn serves(&self, decoder: &HdmDecoder) -> bool {
        match self {
            Backing::Device(served) => {
                decoder.offset.checked_add(decoder.size).is_some_and(|end| end <= served.bytes)
            }
            Backing::Ethernet | Backing::Undecided => false,
        }
    }

    /// Name of the backing of `region`, as `cn-agent list` prints it.
    pub fn carrier(&self, region: &Region) -> String {
        match self {
            Backing::Ethernet => "ethernet".into(),
            Backing::Undecided => "undecided".into(),
            Backing::Device(DevicePlacement { device, .. }) => {
                let mut committed = region.decoders.iter().filter(|decoder| decoder.committed);
                let beyond = if committed.all(|decoder| self.serves(decoder)) { "" } else { "+ethernet" };
                format!("cxl:{device}{beyond}")
            }
        }
    }
}

/// Place of a region on a device. The device is identified by its physical address, because its name may
/// change at a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlacement {
    /// Name of the DAX device when it was last used.
    pub device: String,
    /// First host physical address of the device: its identity.
    pub resource: u64,
    /// Size of the device in bytes.
    pub size: u64,
    /// Number of bytes of the region that the device serves: the first ones of the region, at the start of
    /// the device.
    pub bytes: u64,
    /// Boot id of the machine under which the device's content is valid; `None` if the content is persistent.
    pub boot: Option<String>,
    /// Reason why the region's content is lost; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The device's memory while this process has it mapped.
    #[serde(skip)]
    pub memory: Option<UsedDevice>,
}

/// Memory of a device of this machine that this process has mapped.
pub trait DeviceMemory: LocalMemory {
    /// Whether the device has disappeared or was given up, so that all accesses fail.
    fn is_gone(&self) -> bool;

    /// Makes all further accesses fail, and releases the device for other processes.
    fn give_up(&self);
}

/// Handle of a device in use. Two handles are equal if they refer to the same object.
#[derive(Clone, Debug)]
pub struct UsedDevice(pub Arc<dyn DeviceMemory>);

impl PartialEq for UsedDevice {
    fn eq(&self, other: &UsedDevice) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl Eq for UsedDevice {}

impl DevicePlacement {
    /// Returns the device's memory; `None` if it is not mapped or the device has disappeared.
    pub fn present(&self) -> Option<&Arc<dyn DeviceMemory>> {
        self.memory.as_ref().map(|memory| &memory.0).filter(|device| !device.is_gone())
    }

    /// Returns the memory for the engine: the device's, or, if none is mapped, one whose accesses all fail.
    pub(crate) fn local_memory(&self) -> Arc<dyn LocalMemory> {
        match &self.memory {
            Some(UsedDevice(device)) => Arc::clone(device) as Arc<dyn LocalMemory>,
            None => Arc::new(AbsentMemory { bytes: self.bytes }),
        }
    }
}

/// Stand-in for the memory of an absent device: all accesses fail.
#[derive(Debug)]
struct AbsentMemory {
    bytes: u64,
}

impl LocalMemory for AbsentMemory {
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
