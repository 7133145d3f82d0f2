//! The fabric manager API (CXL 3.1, 7.6.7) over MCTP packets on TCP: existing fabric-manager clients see the fabric as CXL
//! switches with hosts and memory devices, and drive it.
//!
//! ```text
//!   TCP --> mctp: packets to messages --> answer --> Fabric: the switch, seen from here
//!   TCP <-- mctp: messages to packets <-----'            |
//!                                                   manager_view: the manager
//! ```
//!
//! * bytes, without I/O: [`mctp`] packets, [`control`] MCTP's own messages, [`header`] and [`opcode`] of a message, payloads
//!   by command set: [`component`], [`event_record`], [`physical_switch`], [`virtual_switch`], [`mld_port`],
//!   [`mld_component`], [`dcd`]
//! * answers, without I/O: [`answer`] over a [`fabric::Fabric`]; [`config_space`] and [`registers`] of a logical device
//! * [`manager_view`]: the manager's fabric as such a [`fabric::Fabric`]; [`tag`] names regions for it
//! * around them: [`listener`] serves TCP, within the connections there may be (`places`) and with what clients have set
//!   (`settings`); [`client`] asks

pub mod answer;
pub mod bytes;
pub mod client;
pub mod component;
pub mod config_space;
pub mod control;
pub mod dcd;
pub mod event_record;
pub mod fabric;
mod failure;
pub mod header;
pub mod listener;
mod manager_events;
pub mod manager_view;
pub mod mctp;
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
