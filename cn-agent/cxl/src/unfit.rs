//! Why a DAX device cannot serve regions, and what would change that.

use serde::{Serialize, Serializer};

/// Why a DAX device cannot serve regions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Its memory is given to all programs by the kernel.
    #[error(
        "it is system RAM; take it back with `daxctl reconfigure-device --mode=devdax {device}`, if nothing uses it"
    )]
    SystemRam {
        /// Its name.
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
    /// It is something else: an NVDIMM, for example.
    #[error("no CXL region holds its addresses: it is other memory")]
    NotCxl,
    /// The region's decoders are not programmed.
    #[error("its CXL region {region} is not committed: no decoder leads to its memory")]
    NotCommitted {
        /// The region.
        region: String,
    },
}

impl Serialize for Unfit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
