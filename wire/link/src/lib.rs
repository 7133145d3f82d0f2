//! # cxloe-link: links on real interfaces, by which frames enter and leave this machine
//!
//! Implements the trait [`Link`] of `cxloe-net` on real interfaces, and as middlewares around other links.
//!
//! ```text
//!                  a worker: sessions of cxloe-wire
//!            receive(frame, tx) ^          | commit, flush
//!                               |          v
//!     optional, in any order    | pcap: records     |
//!     (links around links)      | fault: impairs    |   Box<dyn Link>, opened by `open`,
//!                               | limit: slows      |   `open_with`, `open_persistent`
//!                               | persistent: opens again
//!                               |          v
//!            xdp  |  packet  |  pnet  |  udp  |    dpdk    |  sim
//!             kernel's rings, sockets            without it   virtual time
//! ```
//!
//! Frames above this layer never have an 802.1Q tag: a link that was opened with a priority inserts the tag on the way
//! out ([`cxloe_wire::frame::vlan`]), and every link removes it on the way in.
//!
//! | module | content |
//! |---|---|
//! | `config`, `open`, `middlewares` | configuration of a link ([`LinkConfig`], [`Backend`]), opening it, middlewares from the command line ([`Middlewares`]) |
//! | [`xdp`], [`packet`], [`pnet`] | raw links on real interfaces, fastest first |
//! | `encap` | raw links with the frames inside UDP, under headers that this crate writes ([`Encap`]) |
//! | [`udp`] | frames inside datagrams, over sockets that need no rights |
//! | [`dpdk`] | devices without the kernel, by an optional plug-in |
//! | [`outer`] | local address of a `udp` link, and outer address of each MAC |
//! | `persistent` | links that are opened again after their interface was unavailable ([`open_persistent`]) |
//! | `queues` | the links of several queues, joined into one ([`join_queues`]) |
//! | [`pcap`], [`fault`], [`limit`] | middlewares: record frames, impair them, send no faster than a given wire |
//! | [`pfc`] | 802.1Qbb frames, over a separate socket |
//! | [`ethtool`], `interface` | what the driver and the kernel report about an interface |
//! | `pfc_statistic` | the statistic of a driver that counts 802.1Qbb frames |
//! | [`keys`] | the parts of sessions between nodes' keys that need the machine: random bytes, a key file, a thread for Diffie-Hellman |
//! | `socket` | system calls on sockets |
//! | `clock` | clock of a polling thread |
//! | [`echo`] | bare echo, to measure a link without the protocol |

#![warn(missing_docs)]
// `println!` and the like panic when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod clock;
mod config;
mod encap;
mod interface;
mod link_detail;
mod middlewares;
mod open;
mod persistent;
mod pfc_statistic;
mod queues;
mod socket;

pub mod dpdk;
pub mod echo;
pub mod ethtool;
pub mod fault;
pub mod keys;
pub mod limit;
pub mod outer;
pub mod packet;
pub mod pcap;
pub mod pfc;
pub mod pnet;
pub mod udp;
pub mod xdp;

pub use clock::Clock;
pub use config::{Backend, Encap, LinkConfig, UdpConfig};
pub use cxloe_net::{Link, LinkCounters, LinkError, LinkInfo, OnFrame, impairment, sim, wait};
pub use interface::ETHERNET_HEADER;
pub use middlewares::{Middlewares, open_with};
pub use open::{check, open, own_mac};
pub use persistent::{LinkDown, LinkHealth, open_persistent};
pub use queues::join_queues;
