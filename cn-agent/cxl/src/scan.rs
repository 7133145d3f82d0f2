//! Reading the inventory from sysfs.

use std::path::Path;

use super::inventory::{CpulessNode, CxlMemory, CxlRegion, DaxDevice, Decoder, Memdev};
use super::sysfs::{Sysfs, SysfsError};
use super::unsuitable::UnsuitableReason;

const CXL: &str = "bus/cxl/devices";
const DAX: &str = "bus/dax/devices";
const NODES: &str = "devices/system/node";

/// Whether `name` is `prefix` followed by a number, or, if `dotted`, by two numbers with a dot between them.
fn is_numbered(name: &str, prefix: &str, dotted: bool) -> bool {
    let number = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(prefix).is_some_and(|rest| match rest.split_once('.') {
        Some((first, second)) => dotted && number(first) && number(second),
        None => !dotted && number(rest),
    })
}

/// Reader of sysfs that collects the errors of unreadable files.
struct SysfsReader<'a> {
    sysfs: Sysfs<'a>,
    problems: Vec<SysfsError>,
}

impl SysfsReader<'_> {
    /// Results of `read` for each entry of `folder` whose name is `prefix` and a number.
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
        for name in names.into_iter().filter(|name| is_numbered(name, prefix, dotted)) {
            match read(&self.sysfs, &format!("{folder}/{name}"), name) {
                Ok(thing) => found.push(thing),
                Err(problem) => self.problems.push(problem),
            }
        }
        found
    }
}

impl CxlMemory {
    pub fn scan(root: &Path) -> CxlMemory {
        let mut reading = SysfsReader { sysfs: Sysfs::at(root), problems: Vec::new() };
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

    /// Fills in the fields that depend on several files.
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
            dax.unfit = UnsuitableReason::of(dax, region);
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
    // The attribute `mode` exists since Linux 6.3; before that, only the region's decoders show it.
    let persistent = match sysfs.text(&at("mode"))?.as_deref() {
        Some("pmem") => Some(true),
        Some("ram") => Some(false),
        _ => None,
    };
    Ok(CxlRegion {
        region,
        // All ones mean that no address is assigned.
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
        // The kernel shows address 0 to readers without CAP_SYS_ADMIN.
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
