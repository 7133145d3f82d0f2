//! # cxloe-cxl: real CXL memory of this machine, and its use for regions
//!
//! ```text
//!   /sys --scan--> CxlMemory --which fits--> DaxDevice --claim--> Device (locked, mapped) --> the engine's local memory
//!                     ^                                              |
//!   UeventMonitor: the kernel announces,                             v
//!   or time passes                                       Backing, kept with the region's addresses
//! ```
//!
//! A region's backing is decided once, when it gets its addresses: from then on it stays on Ethernet or on its device,
//! because no code copies it from one to the other. The name and place of the device that serves a region are kept in
//! the state file; a lock on the device's file shows other processes that it is in use.
//!
//! | module | content |
//! |---|---|
//! | [`inventory`] | inventory of devices, from sysfs |
//! | `scan`, [`sysfs`] | reading the inventory, with every value checked |
//! | [`device_state`], [`unsuitable`] | devices that can serve regions, and reasons against the others |
//! | [`device`] | a device in use: lock, [`mapping`], and detection of the device's removal ([`bus_error`]) |
//! | [`hand_over`] | the thread that decides |
//! | [`uevents`] | announcements that make that thread scan |

pub mod bus_error;
pub mod device;
pub mod device_state;
pub mod hand_over;
pub mod inventory;
pub mod mapping;
mod scan;
pub mod sysfs;
pub mod uevents;
pub mod unsuitable;

pub use device::{Device, DeviceError};
pub use hand_over::{AnswerError, HandOver, HandOverOptions, Regions};
pub use inventory::CxlMemory;
pub use sysfs::SysfsError;
pub use unsuitable::UnsuitableReason;

/// Default root of sysfs.
pub const SYSFS_ROOT: &str = "/sys";
/// Default folder of device files.
pub const DEV_ROOT: &str = "/dev";

#[cfg(test)]
pub(crate) mod tests;
