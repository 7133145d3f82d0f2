//! Common part of `cn-agent doctor`, `mn-server doctor` and `gmm doctor`: checks whether a machine is ready for a
//! daemon, and advice where it is not.
//!
//! ```text
//!   /proc, /sys below a root --> Host ----> Machine, Process, CpuQuota, Nic, DpdkDevice   facts, each read once
//!   a unit of systemd, ethtool, DCB of an interface ------^    |
//!   what the daemon is to do (workers, MTU, ...) -------------+--> judge --> [Check: ok, warn or fail; what to do] --> Report
//! ```
//!
//! Functions that read judge nothing, and functions that judge do no I/O. So a test can describe a machine, by files in
//! a folder that stands for `/` or by plain values, and check every verdict. Each daemon judges its own options and
//! peers itself, and adds the results to the [`Report`].

mod check;
pub mod dpdk;
mod folders;
mod host;
pub mod machine;
pub mod nic;
pub mod permissions;
pub mod quota;
mod report;
mod units;

pub use check::{Check, Group, Level};
pub use folders::{folder_for_files, secret};
pub use host::Host;
pub use report::{Output, Report};
pub use units::size;
