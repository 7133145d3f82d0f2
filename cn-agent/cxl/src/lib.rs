//! # cxloe-cxl: real CXL memory of this machine, and how regions come to be served by it
//!
//! ```text
//!   /sys --scan--> CxlMemory --which fits--> DaxDevice --claim--> Device (locked, mapped) --> the engine's local memory
//!                     ^                                              |
//!   UeventMonitor: the kernel announces,                             v
//!   or time passes                                       Backing, kept with the region's addresses
//! ```
//!
//! A region is asked about once, when it gets its addresses: from then on it stays where it is, on Ethernet or on its
//! device, because nothing copies it from one to the other. What a device that serves a region is called, and where it
//! lies, is kept in the state file; that it is in use, other processes see by a lock on its file.
//!
//! | module | what it holds |
//! |---|---|
//! | [`inventory`] | what sysfs says there is |
//! | `scan`, [`sysfs`] | reading it, trusting none of it |
//! | [`verdict`], [`unfit`] | what of it can serve regions, and why the rest cannot |
//! | [`device`] | a device in use: lock, [`mapping`], and an end that is noticed ([`bus_error`]) |
//! | [`hand_over`] | the thread that decides |
//! | [`uevents`] | what tells that thread when to look |

pub mod bus_error;
pub mod device;
pub mod hand_over;
pub mod inventory;
pub mod mapping;
mod scan;
pub mod sysfs;
pub mod uevents;
pub mod unfit;
pub mod verdict;

pub use device::{Device, DeviceError};
pub use hand_over::{AnswerError, HandOver, HandOverOptions, Regions};
pub use inventory::CxlMemory;
pub use sysfs::SysfsError;
pub use unfit::Unfit;

/// Where the kernel shows devices, unless told otherwise.
pub const SYSFS_ROOT: &str = "/sys";
/// Where device files are, unless told otherwise.
pub const DEV_ROOT: &str = "/dev";

#[cfg(test)]
pub(crate) mod tests;
