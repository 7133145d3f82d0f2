//! # cxloe-fm: the fabric manager API
//!
//! The fabric manager API (CXL 3.1, 7.6.7) over MCTP packets on TCP: existing fabric-manager clients manage the fabric
//! as CXL switches with hosts and memory devices.
//!
//! ```text
//!   TCP --> mctp: packets to messages --> answer --> Fabric: model of the switch
//!   TCP <-- mctp: messages to packets <-----'            |
//!                                                   implementation of Fabric: the manager
//! ```
//!
//! | modules | content |
//! |---|---|
//! | [`mctp`], [`control`] | MCTP packets (DSP0236), and MCTP's own messages |
//! | [`header`], [`opcode`], [`bytes`] | header of a message, its command, reading and writing payloads |
//! | [`component`], [`event_record`], [`physical_switch`], [`virtual_switch`], [`mld_port`], [`mld_component`], [`dcd`] | payloads by command set |
//! | [`identity`] | PCI identities of components |
//! | [`fabric`] | model of the switch: a trait |
//! | [`answer`], [`config_space`], [`registers`] | answers over a [`fabric::Fabric`], without I/O; config space and registers of a logical device |
//! | [`tag`] | tags of dynamic capacity as names of regions |
//! | [`authenticator`] | admission of clients: a trait |
//! | [`listener`] | TCP server, with a limit of connections (`connection_permits`) and settings made by clients (`settings`) |
//! | [`client`] | client over TCP or TLS |
//! | `memory_fabric` | a fabric in memory, for tests; only with the feature of that name |

// These macros panic when the stream is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod answer;
pub mod authenticator;
pub mod bytes;
pub mod client;
pub mod component;
pub mod config_space;
mod connection_permits;
pub mod control;
pub mod dcd;
pub mod event_record;
pub mod fabric;
pub mod header;
pub mod identity;
pub mod listener;
pub mod mctp;
#[cfg(feature = "memory-fabric")]
pub mod memory_fabric;
pub mod mld_component;
pub mod mld_port;
pub mod opcode;
pub mod physical_switch;
pub mod registers;
mod settings;
pub mod tag;
pub mod virtual_switch;

/// The TCP port that FM API clients use by default.
pub const PORT_DEFAULT: u16 = 2508;
