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

mod backoff;
mod cpus;
mod ending;
mod ethertype;
mod key_file;
pub mod log;
mod manager_link;
pub mod metrics;
pub mod options;
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
pub use key_file::{KEY_BYTES_MIN, KeyError, read_key};
pub use log::LogFormat;
pub use manager_link::{Break, Connection, Contact, ManagerLink, ManagerLinkError};
pub use options::ConfigError;
pub use socket::{Bound, SocketError};
pub use span::Span;
pub use state_file::{Remembered, StateError, StateFile};
pub use stop::{Stop, Stopped};
pub use supervisor::Supervisor;
pub use switch::Switch;
