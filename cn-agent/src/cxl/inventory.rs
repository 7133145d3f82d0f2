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

use std::path::Path;

use serde::Serialize;

use super::sysfs::{Sysfs, SysfsError};
use super::verdict::Unfit;

const CXL: &str = "bus/cxl/devices";
const DAX: &str = "bus/dax/devices";
const NODES: &str = "devices/system/node";

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

/// Whether `name` is `prefix` and numbers as `numbers` wants them: with a dot between two, or one alone.
fn is_called(name: &str, prefix: &str, dotted: bool) -> bool {
    let number = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(prefix).is_some_and(|rest| match rest.split_once('.') {
        Some((first, second)) => dotted && number(first) && number(second),
        None => !dotted && number(rest),
    })
}

/// Collects what a reader finds, and what it cannot.
struct Reading<'a> {
    sysfs: Sysfs<'a>,
    problems: Vec<SysfsError>,
}

impl Reading<'_> {
    /// What `read` makes of each entry of `folder` that is called so.
    fn each<T>(
        &mut self,
        folder: &str,
        prefix: &str,
        dotted: bool,
        read: impl Fn(&Sysfs<'_>, &str, String) -> Result<T, SysfsError>,
    ) -> Vec<T> {
        let names = self.sysfs.names(folder).unwrap_or_else(|problem| {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
            Vec::new()
        });
        let mut found = Vec::new();
        for name in names.into_iter().filter(|name| is_called(name, prefix, dotted)) {
            match read(&self.sysfs, &format!("{folder}/{name}"), name) {
                Ok(thing) => found.push(thing),
                Err(problem) => self.problems.push(problem),
            }
        }
        found
    }
}

impl CxlMemory {
    /// What the tree below `root` says.
    pub fn scan(root: &Path) -> CxlMemory {
        let mut reading = Reading { sysfs: Sysfs::at(root), problems: Vec::new() };
        let mut memory = CxlMemory {
            driver: reading.sysfs.has_folder("bus/cxl"),
            memdevs: reading.each(CXL, "mem", false, memdev),
            decoders: reading.each(CXL, "decoder", true, decoder),
            regions: reading.each(CXL, "region", false, region),
            dax_devices: reading.each(DAX, "dax", true, dax_device),
            ..CxlMemory::default()
        };
        let endpoints = reading.each(CXL, "endpoint", false, |sysfs, path, name| {
            Ok((name, sysfs.link(&format!("{path}/uport"))))
        });
        memory.cpuless_nodes = nodes(&reading.sysfs).unwrap_or_else(|problem| {
            reading.problems.push(problem);
            Vec::new()
        });
        memory.problems = reading.problems;
        memory.relate(&endpoints);
        memory
    }

    /// Fills in what follows from several files together.
    fn relate(&mut self, endpoints: &[(String, Option<String>)]) {
        for memdev in &mut self.memdevs {
            let own = endpoints.iter().find(|(_, of)| of.as_deref() == Some(&memdev.memdev));
            memdev.endpoint = own.map(|(endpoint, _)| endpoint.clone());
            let Some(number) = memdev.endpoint.as_deref().and_then(|e| e.strip_prefix("endpoint")) else {
                continue;
            };
            let prefix = format!("decoder{number}.");
            memdev.decoding = self.decoders.iter().any(|d| d.decoder.starts_with(&prefix) && d.size > 0);
        }
        for region in &mut self.regions {
            let of_region = |d: &&Decoder| d.region.as_deref() == Some(&region.region);
            let mode = self.decoders.iter().filter(of_region).find_map(|d| d.mode.as_deref());
            let by_decoder = match mode {
                Some("pmem") => Some(true),
                Some("ram") => Some(false),
                _ => None,
            };
            region.persistent = region.persistent.or(by_decoder);
        }
        for dax in &mut self.dax_devices {
            let around = |region: &&CxlRegion| match (region.resource, dax.resource) {
                (Some(first), Some(at)) => at
                    .checked_sub(first)
                    .is_some_and(|offset| offset < region.size && dax.size <= region.size - offset),
                _ => false,
            };
            let region = self.regions.iter().find(around);
            dax.region = region.map(|region| region.region.clone());
            dax.persistent = region.and_then(|region| region.persistent) == Some(true);
            dax.unfit = Unfit::of(dax, region);
        }
    }
}

fn memdev(sysfs: &Sysfs<'_>, path: &str, memdev: String) -> Result<Memdev, SysfsError> {
    let at = |attribute: &str| format!("{path}/{attribute}");
    Ok(Memdev {
        memdev,
        ram_size: sysfs.number(&at("ram/size"))?.unwrap_or(0),
        pmem_size: sysfs.number(&at("pmem/size"))?.unwrap_or(0),
        serial: sysfs.number(&at("serial"))?,
        endpoint: None,
        decoding: false,
    })
}

fn decoder(sysfs: &Sysfs<'_>, path: &str, decoder: String) -> Result<Decoder, SysfsError> {
    let at = |attribute: &str| format!("{path}/{attribute}");
    let text = |attribute| Ok(sysfs.text(&at(attribute))?.filter(|text| !text.is_empty()));
    Ok(Decoder {
        decoder,
        kind: text("devtype")?.unwrap_or_default(),
        start: sysfs.number(&at("start"))?.unwrap_or(0),
        size: sysfs.number(&at("size"))?.unwrap_or(0),
        region: text("region")?,
        mode: text("mode")?,
    })
}

fn region(sysfs: &Sysfs<'_>, path: &str, region: String) -> Result<CxlRegion, SysfsError> {
    let at = |attribute: &str| format!("{path}/{attribute}");
    // Since Linux 6.3; before, its decoders say so.
    let persistent = match sysfs.text(&at("mode"))?.as_deref() {
        Some("pmem") => Some(true),
        Some("ram") => Some(false),
        _ => None,
    };
    Ok(CxlRegion {
        region,
        // All ones: none yet.
        resource: sysfs.number(&at("resource"))?.filter(|first| *first != u64::MAX),
        size: sysfs.number(&at("size"))?.unwrap_or(0),
        committed: sysfs.number(&at("commit"))? == Some(1),
        persistent,
        interleave_ways: sysfs.number(&at("interleave_ways"))?.unwrap_or(1),
        interleave_granularity: sysfs.number(&at("interleave_granularity"))?.unwrap_or(0),
    })
}

fn dax_device(sysfs: &Sysfs<'_>, path: &str, device: String) -> Result<DaxDevice, SysfsError> {
    let at = |attribute: &str| format!("{path}/{attribute}");
    Ok(DaxDevice {
        device,
        size: sysfs.required(&at("size"))?,
        align: sysfs.required(&at("align"))?,
        // Zeros are what those see who may not know.
        resource: sysfs.number(&at("resource"))?.filter(|first| *first != 0),
        target_node: sysfs.number(&at("target_node")).unwrap_or_default(),
        driver: sysfs.link(&at("driver")),
        region: None,
        persistent: false,
        unfit: None,
    })
}

fn nodes(sysfs: &Sysfs<'_>) -> Result<Vec<CpulessNode>, SysfsError> {
    let with_cpus = sysfs.nodes(&format!("{NODES}/has_cpu"))?;
    let mut nodes = sysfs.nodes(&format!("{NODES}/has_memory"))?;
    nodes.retain(|node| !with_cpus.contains(node));
    let size = |node: &u32| {
        let text = sysfs.text(&format!("{NODES}/node{node}/meminfo"))?.unwrap_or_default();
        let kib = text.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix("kB"));
        Ok(kib.and_then(|kib| kib.trim().parse::<u64>().ok()?.checked_mul(1024)))
    };
    nodes.iter().map(|node| Ok(CpulessNode { node: *node, size: size(node)? })).collect()
}
