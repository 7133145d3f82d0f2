//! Verdicts on CXL memory: devices that can serve regions, reasons against the others, and remedies.

use cxloe_fabric::model::ByteSize;

use super::inventory::{CxlMemory, CxlRegion, DaxDevice};
use super::unsuitable::UnsuitableReason;
use cxloe_cn_core::backing::DevicePlacement;

/// Driver that lets programs map a DAX device.
const MAPPABLE: &str = "device_dax";
/// Driver that turns a DAX device into system RAM.
pub(crate) const SYSTEM_RAM: &str = "kmem";
/// Smallest page size of mappings in bytes.
const PAGE: u64 = 4096;

impl UnsuitableReason {
    /// The reason why `dax`, a part of `region`, cannot serve regions; `None` if it can.
    pub(super) fn of(dax: &DaxDevice, region: Option<&CxlRegion>) -> Option<UnsuitableReason> {
        let DaxDevice { size, align, .. } = *dax;
        let Some(region) = region else {
            return Some(if dax.resource.is_none() {
                UnsuitableReason::NoAddress
            } else {
                UnsuitableReason::NotCxl
            });
        };
        if dax.driver.as_deref() == Some(SYSTEM_RAM) {
            return Some(UnsuitableReason::SystemRam { device: dax.device.clone() });
        }
        if dax.driver.as_deref() != Some(MAPPABLE) {
            return Some(UnsuitableReason::NoDriver);
        }
        let in_range = align.is_power_of_two() && align >= PAGE && size >= align && size <= i64::MAX as u64;
        if !in_range || !size.is_multiple_of(align) {
            return Some(UnsuitableReason::Shape);
        }
        (!region.committed).then(|| UnsuitableReason::NotCommitted { region: region.region.clone() })
    }
}

impl CxlMemory {
    /// Devices that can serve `bytes` bytes and are not in `taken`, the smallest first.
    pub fn fitting(&self, bytes: u64, taken: &[String]) -> Vec<&DaxDevice> {
        let fits =
            |dax: &&DaxDevice| dax.unfit.is_none() && dax.size >= bytes && !taken.contains(&dax.device);
        let mut fitting: Vec<_> = self.dax_devices.iter().filter(fits).collect();
        fitting.sort_by_key(|dax| dax.size);
        fitting
    }

    /// Reason why no device [fits](Self::fitting): the reason against each device, or the kind of device that would have to be
    /// created.
    pub fn why_none(&self, bytes: u64, taken: &[String]) -> String {
        let of_cxl = self.dax_devices.iter().filter(|dax| dax.unfit != Some(UnsuitableReason::NotCxl));
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

    /// Memory that belongs to no DAX device, with the commands that would create a DAX device from it.
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

/// State of the device that holds the content of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState<'a> {
    Present(&'a DaxDevice),
    /// The device is absent, for this reason; it may return with its content.
    Away(String),
    /// The content is lost, for this reason.
    Lost(String),
}

/// State of the device `served`, according to the inventory `there`, which was read in the present boot.
pub(crate) fn device_state<'a>(
    served: &DevicePlacement,
    there: &'a CxlMemory,
    boot: &str,
) -> DeviceState<'a> {
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
        // A volatile device may lose its power unnoticed while it is absent, so its content counts as lost.
        None if served.boot.is_some() => {
            DeviceState::Lost(format!("{device} is volatile, and was taken away"))
        }
        None => {
            let (first, end) = (served.resource, served.resource.saturating_add(served.size));
            DeviceState::Away(format!("{device}, of the addresses {first:#x} to {end:#x}, is not there"))
        }
    }
}
