//! Whether a machine is ready for a daemon of the fabric, and what to do where it is not: what `cn-agent doctor`,
//! `mn-server doctor` and `gmm doctor` have in common.
//!
//! ```text
//!   /proc, /sys below a root --> Host ----> Machine, Process, Nic      facts, each read once
//!   ethtool, DCB of an interface ----------------^    |
//!   what the daemon is to do (workers, MTU, ...) -----+--> judge --> [Check: ok, warn or fail; what to do] --> Report
//! ```
//!
//! Readers are thin and decide nothing; judgements touch no system. So every verdict is tested on machines that a test
//! describes, in a folder that stands for `/` or as plain values. What only one daemon knows (its options, its peers) it
//! judges itself and adds to the [`Report`].

mod check;
mod host;
pub mod machine;
pub mod nic;
pub mod permissions;
mod places;
mod report;
mod units;

pub use check::{Check, Group, Level};
pub use host::Host;
pub use places::{folder_for_files, secret};
pub use report::{Output, Report};
pub use units::size;
