//! Reasons why a DAX device cannot serve regions, and their remedies.

use serde::{Serialize, Serializer};

/// Reason why a DAX device cannot serve regions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsuitableReason {
    /// The kernel manages its memory as system RAM.
    #[error(
        "it is system RAM; take it back with `daxctl reconfigure-device --mode=devdax {device}`, if nothing uses it"
    )]
    SystemRam {
        /// Name of the DAX device.
        device: String,
    },
    /// No driver, or an unknown one.
    #[error("no driver lets programs map it; load one with `modprobe device_dax`")]
    NoDriver,
    /// It has no size, or one that is not a multiple of its alignment.
    #[error("its size and alignment make no sense; create its namespace anew with `ndctl` or `daxctl`")]
    Shape,
    /// Its physical address is hidden.
    #[error("its physical address cannot be read; run this as root")]
    NoAddress,
    /// Its addresses are in no CXL region: an NVDIMM, for example.
    #[error("no CXL region holds its addresses: it is other memory")]
    NotCxl,
    /// The region's decoders are not programmed.
    #[error("its CXL region {region} is not committed: no decoder leads to its memory")]
    NotCommitted {
        /// Name of the CXL region.
        region: String,
    },
}

impl Serialize for UnsuitableReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
