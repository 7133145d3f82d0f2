//! # cxloe-fm: the fabric manager API
//!
//! The fabric manager API (CXL 3.1, 7.6.7) over MCTP packets on TCP: existing fabric-manager clients see the fabric as CXL
//! switches with hosts and memory devices, and drive it.
//!
//! ```text
//!   TCP --> mctp: packets to messages --> answer --> Fabric: the switch, seen from here
//!   TCP <-- mctp: messages to packets <-----'            |
//!                                                   whoever implements Fabric: the manager
//! ```
//!
//! | modules | what they hold |
//! |---|---|
//! | [`mctp`], [`control`] | MCTP packets (DSP0236), and MCTP's own messages |
//! | [`header`], [`opcode`], [`bytes`] | header of a message, its command, reading and writing payloads |
//! | [`component`], [`event_record`], [`physical_switch`], [`virtual_switch`], [`mld_port`], [`mld_component`], [`dcd`] | payloads by command set |
//! | [`identity`] | PCI vendor and devices of what is shown |
//! | [`fabric`] | what is shown and changed: a trait |
//! | [`answer`], [`config_space`], [`registers`] | answers over a [`fabric::Fabric`], without I/O; config space and registers of a logical device |
//! | [`tag`] | tags of dynamic capacity as names of regions |
//! | [`door`] | who comes in: a trait |
//! | [`listener`] | serves TCP, within the connections there may be (`places`) and with what clients have set (`settings`) |
//! | [`client`] | asks over TCP, or what is spoken over it |
//! | `memory_fabric` | a fabric in memory, for tests; only with the feature of that name |

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod answer;
pub mod bytes;
pub mod client;
pub mod component;
pub mod config_space;
pub mod control;
pub mod dcd;
pub mod door;
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
mod places;
pub mod registers;
mod settings;
pub mod tag;
pub mod virtual_switch;

/// The TCP port FM API clients expect.
pub const PORT_DEFAULT: u16 = 2508;
