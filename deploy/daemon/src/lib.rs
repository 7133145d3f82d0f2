//! # cxloe-daemon: common part of all daemons
//!
//! Shared by every daemon of a fabric, so that all are operated alike: options, places of files, logs, sockets,
//! metrics, state across restarts, the link to the manager, and shutdown.
//!
//! ```text
//!   flags, TOML file, environment --> options --> a daemon's own Config
//!   SIGTERM, SIGINT  --> Shutdown  --> its main thread --> Supervisor: notifications to systemd
//!   manager  <-- HTTP -- ManagerLink (a thread) --> its own registration
//!   operator <-- Unix socket -- Bound           --> its own answers
//!   Prometheus <-- HTTP -- MetricsServer (a thread) --> its own counters
//! ```
//!
//! Nothing here depends on memory nodes or compute nodes: they pass in types and functions.
//!
//! | modules | what they hold |
//! |---|---|
//! | [`options`], `option_sources`, [`default_paths`], `ethertype`, `cpus`, `span`, `switch`, `pfc_trust` | options, configuration files, the environment, how values are spelled, where files lie |
//! | [`log`] | logs through a bounded queue: a full disk neither ends nor blocks a process |
//! | `interface_name`, `interface_wait` | alternative names of network interfaces; a service waits for its own |
//! | `shutdown`, `stop`, `open_files`, `supervisor`, `backoff` | signals, stopping threads, notifications to systemd, pauses between attempts |
//! | `socket`, `state_file` | a Unix socket that is removed with its process; a file for state across restarts |
//! | `manager_link`, `identity`, [`join`] | the thread that talks to the manager; its certificate, and how a node gets one |
//! | [`metrics`], [`http`] | counters for Prometheus; HTTP connections within limits |
//! | [`doctor`] | whether a machine is ready for a daemon, and what to do where it is not |
//! | `table` | tables with frames on a terminal, plain columns in a pipe |
//! | `unit` | the systemd unit of a configuration, and what it gives a daemon |
//! | [`command_line`] | exit codes, tables, JSON, completion and manual pages of every program |

// Warns about `println!` and the like, which panic when standard output or standard error is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod backoff;
pub mod command_line;
mod cpus;
pub mod default_paths;
pub mod doctor;
mod ethertype;
pub mod http;
mod identity;
mod interface_name;
mod interface_wait;
pub mod join;
pub mod log;
mod manager_link;
pub mod metrics;
mod open_files;
mod option_sources;
pub mod options;
mod pfc_trust;
mod shutdown;
mod socket;
mod span;
mod state_file;
mod stop;
mod supervisor;
mod switch;
mod table;
mod unit;

pub use backoff::Backoff;
pub use cpus::{CpuList, pin};
pub use ethertype::EtherType;
pub use identity::{NodeIdentity, NodeIdentityError};
pub use interface_name::{interface_name, is_outside_kernel};
pub use interface_wait::wait_for_interface;
pub use log::LogFormat;
pub use manager_link::{Connection, Contact, ManagerLink, ManagerLinkError, RegistrationEnd};
pub use open_files::raise_limit;
pub use option_sources::OptionSources;
pub use options::ConfigError;
pub use pfc_trust::PfcTrust;
pub use shutdown::Shutdown;
pub use socket::{Bound, SocketError};
pub use span::Span;
pub use state_file::{NodeState, StateError, StateFile};
pub use stop::{Stop, Stopped};
pub use supervisor::Supervisor;
pub use switch::Switch;
pub use unit::{Unit, instance_socket};
