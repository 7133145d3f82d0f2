//! Inventory of CXL memory: the values that a scan reads from the files of sysfs.
//!
//! ```text
//!   bus/cxl/devices   memN         a device, its capacity
//!                     decoderP.N   one stage of address decoding; an endpoint's has a size once it is committed
//!                     regionN      a range of host physical addresses, backed by one or more devices
//!   bus/dax/devices   daxX.Y       memory that programs can map, if its driver is device_dax
//!   devices/system/node            the same memory as system RAM: a node without CPUs
//! ```
//!
//! A DAX device belongs to the CXL region whose address range contains the device's range. That holds for
//! volatile and for persistent memory, although their trees in sysfs differ.

use serde::Serialize;

use super::sysfs::SysfsError;
use super::unsuitable::UnsuitableReason;

/// All CXL memory of this machine that sysfs shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CxlMemory {
    /// Whether the kernel has a CXL bus.
    pub driver: bool,
    /// CXL memory devices, with or without committed decoders.
    pub memdevs: Vec<Memdev>,
    /// Decoders of endpoints, switches and roots.
    pub decoders: Vec<Decoder>,
    /// CXL regions, whether committed or not.
    pub regions: Vec<CxlRegion>,
    /// DAX devices, including those that are not backed by CXL memory.
    pub dax_devices: Vec<DaxDevice>,
    /// NUMA nodes with memory and without CPUs.
    pub cpuless_nodes: Vec<CpulessNode>,
    /// Errors of files that could not be read; the lists above lack the objects of these files.
    pub problems: Vec<SysfsError>,
}

/// A CXL memory device: the mailbox and capacity of a type 3 device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memdev {
    /// Name in sysfs: `memN`.
    pub memdev: String,
    /// Volatile capacity in bytes.
    pub ram_size: u64,
    /// Persistent capacity in bytes.
    pub pmem_size: u64,
    /// Serial number; `None` if sysfs does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// Endpoint to which the device's decoders belong (`endpointN`), once the device is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whether one of the device's decoders is committed, so that addresses map to the device.
    pub decoding: bool,
}

/// An HDM decoder of an endpoint, a switch or a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoder {
    /// Name in sysfs, `decoderP.N`: decoder N of port P.
    pub decoder: String,
    /// Device type in sysfs: `cxl_decoder_root`, `cxl_decoder_switch` or `cxl_decoder_endpoint`.
    pub kind: String,
    /// First host physical address that the decoder maps.
    pub start: u64,
    /// Length of the address range in bytes; 0 unless the decoder is committed.
    pub size: u64,
    /// CXL region for which the decoder is programmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Kind of the capacity behind an endpoint's decoder: `ram`, `pmem`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// A CXL region: a range of host physical addresses that one or more devices back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CxlRegion {
    /// Name in sysfs: `regionN`.
    pub region: String,
    /// First host physical address; `None` if none is assigned yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<u64>,
    /// Length in bytes.
    pub size: u64,
    /// Whether the region's decoders are programmed.
    pub committed: bool,
    /// Whether the memory keeps its content without power; `None` if sysfs does not show that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Number of devices over which the region is interleaved.
    pub interleave_ways: u64,
    /// Length in bytes of the piece that each device holds in turn.
    pub interleave_granularity: u64,
}

/// A DAX device: memory that programs can map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxDevice {
    /// Name in sysfs, and of the device file: `daxX.Y`.
    pub device: String,
    /// Size in bytes.
    pub size: u64,
    /// Alignment in bytes: lengths of mappings are multiples of it.
    pub align: u64,
    /// First host physical address; `None` if this process may not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<u64>,
    /// NUMA node of the device, or the node that it would have as system RAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node: Option<u64>,
    /// Name of the driver: `device_dax`, `kmem`, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CXL region whose address range contains the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether the device is known to keep its content without power.
    pub persistent: bool,
    /// Reason why the device cannot serve regions; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfit: Option<UnsuitableReason>,
}

/// A NUMA node with memory and without CPUs: CXL memory as system RAM, or other far memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpulessNode {
    pub node: u32,
    /// Memory of the node in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}
