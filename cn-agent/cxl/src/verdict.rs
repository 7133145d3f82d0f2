//! What of the CXL memory that is there can serve regions, why the rest cannot, and what would change that.

use cxloe_fabric::model::ByteSize;

use super::inventory::{CxlMemory, CxlRegion, DaxDevice};
use super::unfit::Unfit;
use cxloe_cn_core::backing::Served;

/// The driver that lets programs map a DAX device.
const MAPPABLE: &str = "device_dax";
/// The driver that makes system RAM of it.
pub const SYSTEM_RAM: &str = "kmem";
/// Pages that mappings are made of, at least.
const PAGE: u64 = 4096;

impl Unfit {
    /// What is wrong with a device that is a part of `region`.
    pub(super) fn of(dax: &DaxDevice, region: Option<&CxlRegion>) -> Option<Unfit> {
        let DaxDevice { size, align, .. } = *dax;
        let Some(region) = region else {
            return Some(if dax.resource.is_none() { Unfit::NoAddress } else { Unfit::NotCxl });
        };
        if dax.driver.as_deref() == Some(SYSTEM_RAM) {
            return Some(Unfit::SystemRam { device: dax.device.clone() });
        }
        if dax.driver.as_deref() != Some(MAPPABLE) {
            return Some(Unfit::NoDriver);
        }
        let in_range = align.is_power_of_two() && align >= PAGE && size >= align && size <= i64::MAX as u64;
        if !in_range || !size.is_multiple_of(align) {
            return Some(Unfit::Shape);
        }
        (!region.committed).then(|| Unfit::NotCommitted { region: region.region.clone() })
    }
}

impl CxlMemory {
    /// The devices that can serve `bytes` and are not among `taken`; the smallest first.
    pub fn fitting(&self, bytes: u64, taken: &[String]) -> Vec<&DaxDevice> {
        let fits =
            |dax: &&DaxDevice| dax.unfit.is_none() && dax.size >= bytes && !taken.contains(&dax.device);
        let mut fitting: Vec<_> = self.dax_devices.iter().filter(fits).collect();
        fitting.sort_by_key(|dax| dax.size);
        fitting
    }

    /// Why none [fits](Self::fitting): what is wrong with each device, or what would have to be made.
    pub fn why_none(&self, bytes: u64, taken: &[String]) -> String {
        let of_cxl = self.dax_devices.iter().filter(|dax| dax.unfit != Some(Unfit::NotCxl));
        let wrong = of_cxl.filter_map(|dax| {
            let why = match &dax.unfit {
                Some(unfit) => unfit.to_string(),
                None if taken.contains(&dax.device) => "it serves another region".into(),
                None if dax.size < bytes => {
                    format!("it has {}, the region {}", ByteSize(dax.size), ByteSize(bytes))
                }
                None => return None,
            };
            Some(format!("{}: {why}", dax.device))
        });
        let wrong: Vec<String> = wrong.chain(self.idle()).collect();
        match (wrong.is_empty(), self.driver) {
            (false, _) => wrong.join("; "),
            (true, true) => "there is no CXL memory device".into(),
            (true, false) => "the kernel shows no CXL bus: no CXL device, or no driver for it".into(),
        }
    }

    /// Memory that is there, but in no DAX device, and what would make one of it.
    pub fn idle(&self) -> Vec<String> {
        let unused = self.memdevs.iter().filter(|memdev| !memdev.decoding).map(|memdev| {
            format!(
                "{}: no decoder of it is committed, so no address leads to it; `cxl create-region` makes a region of it",
                memdev.memdev
            )
        });
        let has_dax = |region: &CxlRegion| {
            self.dax_devices.iter().any(|dax| dax.region.as_deref() == Some(&region.region))
        };
        let bare = self.regions.iter().filter(|region| region.committed && !has_dax(region)).map(|region| {
            let make = if region.persistent == Some(true) {
                "`ndctl create-namespace -m devdax -M mem` on its region makes one"
            } else {
                "`daxctl create-device` makes one"
            };
            format!("{}: no DAX device is on it; {make}", region.region)
        });
        unused.chain(bare).collect()
    }
}

/// What has become of the device that serves a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState<'a> {
    /// It is there.
    Present(&'a DaxDevice),
    /// It is not, for this reason, and may come back with what it holds.
    Away(String),
    /// What it held is gone, for this reason.
    Lost(String),
}

/// What `there` says of the device, in this boot.
pub fn device_state<'a>(served: &Served, there: &'a CxlMemory, boot: &str) -> DeviceState<'a> {
    let device = &served.device;
    if served.boot.as_deref().is_some_and(|of| of != boot) {
        return DeviceState::Lost(format!("{device} is volatile, and this machine was started anew since"));
    }
    let same = |dax: &&DaxDevice| (dax.resource, dax.size) == (Some(served.resource), served.size);
    match there.dax_devices.iter().find(same) {
        Some(dax) if dax.driver.as_deref() == Some(SYSTEM_RAM) => {
            DeviceState::Lost(format!("{} was made system RAM, which overwrites it", dax.device))
        }
        Some(dax) => match &dax.unfit {
            None => DeviceState::Present(dax),
            Some(unfit) => DeviceState::Away(format!("{}: {unfit}", dax.device)),
        },
        // Nothing tells whether what comes back later was without power meanwhile.
        None if served.boot.is_some() => {
            DeviceState::Lost(format!("{device} is volatile, and was taken away"))
        }
        None => {
            let (first, end) = (served.resource, served.resource.saturating_add(served.size));
            DeviceState::Away(format!("{device}, of the addresses {first:#x} to {end:#x}, is not there"))
        }
    }
}
