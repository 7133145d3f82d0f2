//! # cxloe-node: common part of memory nodes and compute nodes
//!
//! Both kinds of node have a link, keys, a manager and an identity, and are operated alike. The options for
//! these, and everything derived from them, are here; `cxloe-daemon` has the part that the manager needs too.
//!
//! ```text
//!   Settings of a program = NodeSettings + LinkSettings + DiagnosticsSettings + its own
//!                                  |             |                |
//!                                  `-------------+----------------+--> NodeConfig: complete and checked
//! ```
//!
//! | modules | what they hold |
//! |---|---|
//! | `settings`, `config` | options of both nodes, as given and as in effect |
//! | `program` | options of a node's program, as far as `join` and `doctor` need them |
//! | [`doctor`] | the checks that both doctors have |
//! | [`metrics`] | metrics of the link |
//! | `exit` | exit code of a node whose link cannot be opened |
//! | `join` | `join`: from options to keys, a certificate, and a complete configuration file |

mod config;
pub mod doctor;
mod exit;
mod join;
pub mod metrics;
mod program;
mod settings;

pub use config::NodeConfig;
pub use exit::exit_of_link;
pub use join::join_node;
pub use program::ProgramSettings;
pub use settings::{DiagnosticsSettings, LinkSettings, NodeSettings};
