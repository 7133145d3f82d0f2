//! # cxloe-link: how frames enter and leave this machine
//!
//! The links on real interfaces behind the trait [`Link`] of `cxloe-net`, and links around links.
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
//! Frames above this layer never carry an 802.1Q tag: a link that was opened with a priority inserts it on
//! the way out ([`cxloe_wire::frame::vlan`]) and every link removes it on the way in.
//!
//! | module | content |
//! |---|---|
//! | `config`, `open`, `extras` | configuration of a link ([`LinkConfig`], [`Backend`]), opening it, middlewares from the command line ([`Middlewares`]) |
//! | [`xdp`], [`packet`], [`pnet`] | the links on real interfaces, fastest first |
//! | `encap` | raw links with the frames inside UDP, under headers of our own ([`Encap`]) |
//! | [`udp`] | frames inside datagrams, over sockets that need no rights |
//! | [`dpdk`] | devices without the kernel, by an optional plug-in |
//! | [`outer`] | local address of a `udp` link, and outer address of each MAC |
//! | `persistent` | links that are opened again when their interface has been away ([`open_persistent`]) |
//! | `queues` | the links of several queues as one ([`join_queues`]) |
//! | [`pcap`], [`fault`], [`limit`] | links around links: record frames, impair them, send no faster than a given wire |
//! | [`pfc`] | 802.1Qbb frames, over a socket of their own |
//! | [`ethtool`], `interface` | data of the driver and the kernel about an interface |
//! | [`keys`] | the machine's part in sessions between keys: random bytes, a file for the key, a thread for Diffie-Hellman |
//! | `socket` | calls on sockets, as links make them |
//! | `clock` | clock of a polling thread |
//! | [`echo`] | bare echo, to measure a link without the protocol |

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
