//! Reasons why a DAX device cannot serve regions, and their remedies.

use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsuitableReason {
    /// The kernel manages the device's memory as system RAM.
    #[error(
        "it is system RAM; take it back with `daxctl reconfigure-device --mode=devdax {device}`, if nothing uses it"
    )]
    SystemRam { device: String },
    /// The device has no driver, or an unknown one.
    #[error("no driver lets programs map it; load one with `modprobe device_dax`")]
    NoDriver,
    /// The device has no size, or one that is not a multiple of its alignment.
    #[error("its size and alignment make no sense; create its namespace anew with `ndctl` or `daxctl`")]
    Shape,
    /// The device's physical address is hidden from this process.
    #[error("its physical address cannot be read; run this as root")]
    NoAddress,
    /// The device's addresses are in no CXL region: it is an NVDIMM, for example.
    #[error("no CXL region holds its addresses: it is other memory")]
    NotCxl,
    /// The decoders of the device's CXL region are not programmed.
    #[error("its CXL region {region} is not committed: no decoder leads to its memory")]
    NotCommitted { region: String },
}

impl Serialize for UnsuitableReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
