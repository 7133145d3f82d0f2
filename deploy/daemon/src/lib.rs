//! # cxloe-daemon: what makes a process a good service
//!
//! What every daemon of a fabric has in common, so that an operator who knows one knows all: how options are read and
//! spelled, where files lie, how a daemon logs, listens, remembers, keeps in touch with the manager, and ends.
//!
//! ```text
//!   flags, TOML file --> options --> a daemon's own Config
//!   SIGTERM, SIGINT  --> Ending  --> its main thread --> Supervisor: what systemd is told
//!   manager  <-- HTTP -- ManagerLink (a thread) --> its own registration
//!   operator <-- Unix socket -- Bound           --> its own answers
//!   Prometheus <-- HTTP -- MetricsServer (a thread) --> its own counters
//! ```
//!
//! Nothing here knows what a memory node or a compute node does; they bring that along as types and functions.
//!
//! | modules | what they hold |
//! |---|---|
//! | [`options`], [`places`], `ethertype`, `cpus`, `span`, `switch`, `pfc_trust`, `spelling`, `key_file` | options, configuration files, how values are spelled, where files lie |
//! | [`log`] | logs through a bounded queue: a full disk neither ends nor blocks a process |
//! | `ending`, `stop`, `supervisor`, `backoff` | signals, stopping threads, what systemd is told, pauses between attempts |
//! | `socket`, `state_file` | a Unix socket that goes with its process; a file that remembers |
//! | `manager_link`, `identity`, [`join`] | the thread that keeps in touch with the manager; the certificate it does so with, and how a node gets one |
//! | [`metrics`], [`http`] | counters for Prometheus; HTTP connections within limits |
//! | [`doctor`] | whether a machine is ready for a daemon, and what to do where it is not |
//! | [`command_line`] | exit codes, tables, JSON, completion and manual pages of every program |

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod backoff;
pub mod command_line;
mod cpus;
pub mod doctor;
mod ending;
mod ethertype;
pub mod http;
mod identity;
pub mod join;
mod key_file;
pub mod log;
mod manager_link;
pub mod metrics;
pub mod options;
mod pfc_trust;
pub mod places;
mod socket;
mod span;
mod spelling;
mod state_file;
mod stop;
mod supervisor;
mod switch;

pub use backoff::Backoff;
pub use cpus::{CpuList, pin};
pub use ending::Ending;
pub use ethertype::EtherType;
pub use identity::{NodeIdentity, NodeIdentityError};
pub use key_file::{KEY_BYTES_MIN, KeyError, read_key};
pub use log::LogFormat;
pub use manager_link::{Break, Connection, Contact, ManagerLink, ManagerLinkError};
pub use options::ConfigError;
pub use pfc_trust::PfcTrust;
pub use socket::{Bound, SocketError};
pub use span::Span;
pub use state_file::{Remembered, StateError, StateFile};
pub use stop::{Stop, Stopped};
pub use supervisor::Supervisor;
pub use switch::Switch;
