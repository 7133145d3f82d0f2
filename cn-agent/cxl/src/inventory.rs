//! What real CXL memory there is: a function from a tree of files to values.
//!
//! ```text
//!   bus/cxl/devices   memN         a device, its capacity
//!                     decoderP.N   one stage of address decoding; an endpoint's has a size once it is committed
//!                     regionN      a stretch of host physical addresses made of devices
//!   bus/dax/devices   daxX.Y       memory that programs can map, if its driver is device_dax
//!   devices/system/node            the same memory as system RAM: a node without CPUs
//! ```
//!
//! A DAX device belongs to the CXL region whose addresses hold its own: that is true of volatile and persistent memory
//! alike, whatever lies between the two in the tree.

use serde::Serialize;

use super::sysfs::SysfsError;
use super::unfit::Unfit;

/// Everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CxlMemory {
    /// Whether the kernel has a CXL bus.
    pub driver: bool,
    /// CXL memory devices.
    pub memdevs: Vec<Memdev>,
    /// Decoders of endpoints, switches and roots.
    pub decoders: Vec<Decoder>,
    /// CXL regions.
    pub regions: Vec<CxlRegion>,
    /// DAX devices, those without CXL behind them too.
    pub dax_devices: Vec<DaxDevice>,
    /// NUMA nodes with memory and without CPUs.
    pub cpuless_nodes: Vec<CpulessNode>,
    /// What could not be read; what it belongs to is left out above.
    pub problems: Vec<SysfsError>,
}

/// A CXL memory device (a type 3 device's mailbox and capacity).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memdev {
    /// `memN`.
    pub memdev: String,
    /// Bytes of volatile capacity.
    pub ram_size: u64,
    /// Bytes of persistent capacity.
    pub pmem_size: u64,
    /// Serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// `endpointN`: what its decoders belong to, once the device is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whether a decoder of it is committed, so that addresses lead to it.
    pub decoding: bool,
}

/// An HDM decoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoder {
    /// `decoderP.N`: decoder N of port P.
    pub decoder: String,
    /// `cxl_decoder_root`, `cxl_decoder_switch` or `cxl_decoder_endpoint`.
    pub kind: String,
    /// First host physical address.
    pub start: u64,
    /// Bytes; none while it is not committed.
    pub size: u64,
    /// The region it decodes for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// `ram`, `pmem`, … of an endpoint's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// A CXL region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CxlRegion {
    /// `regionN`.
    pub region: String,
    /// First host physical address; none before it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<u64>,
    /// Bytes.
    pub size: u64,
    /// Whether its decoders are programmed.
    pub committed: bool,
    /// Whether its memory keeps its content without power; `None` where nothing says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Over how many devices it is spread.
    pub interleave_ways: u64,
    /// In pieces of so many bytes.
    pub interleave_granularity: u64,
}

/// A DAX device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxDevice {
    /// `daxX.Y`, and the name of its file.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that mappings are multiples of.
    pub align: u64,
    /// First host physical address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<u64>,
    /// The NUMA node it is, or would be as system RAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node: Option<u64>,
    /// `device_dax`, `kmem`, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The CXL region it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether it is known to keep its content without power.
    pub persistent: bool,
    /// Why it cannot serve regions, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfit: Option<Unfit>,
}

/// A NUMA node with memory and without CPUs: CXL memory as system RAM shows so, and so does other far memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpulessNode {
    /// Its number.
    pub node: u32,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}
