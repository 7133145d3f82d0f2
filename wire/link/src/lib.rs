//! # cxloe-link: how frames enter and leave this machine
//!
//! One trait, [`Link`], in front of AF_XDP, AF_PACKET rings, pnet, UDP sockets and the simulated network. It is made for
//! polling: [`Link::receive`] hands over what has arrived, each frame where the kernel (or the simulation)
//! put it, together with the transmit side ([`cxloe_wire::Transmit`]), so that an answer is written straight into a
//! transmit slot while the question still lies in the receive ring. [`Link::flush`] sends everything queued with one
//! kick. Nothing on that path allocates or copies.
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
//!            xdp  |  packet  |  pnet  |  udp  |  sim
//!             kernel's rings, sockets            virtual time
//! ```
//!
//! Frames above this layer never carry an 802.1Q tag: a link that was opened with a priority inserts it on
//! the way out ([`cxloe_wire::frame::vlan`]) and every link removes it on the way in.
//!
//! | module | what it holds |
//! |---|---|
//! | `link`, `error` | [`Link`], what it says of itself ([`LinkInfo`], [`LinkCounters`]), [`LinkError`] |
//! | `config`, `open`, `extras` | which link to open ([`LinkConfig`], [`Backend`]), opening it, middlewares from the command line ([`Extras`]) |
//! | [`xdp`], [`packet`], [`pnet`] | the links on real interfaces, fastest first |
//! | `encap` | raw links with the frames inside UDP, under headers of our own ([`Encap`]) |
//! | [`udp`] | frames inside datagrams, over sockets that need no rights |
//! | [`outer`] | where a `udp` link listens, and which address speaks for which MAC |
//! | [`sim`] | a network in virtual time, repeatable from a seed |
//! | `persistent` | links that are opened again when their interface has been away ([`open_persistent`]) |
//! | `queues` | the links of several queues as one ([`join_queues`]) |
//! | [`pcap`], [`fault`], [`limit`] | links around links: record frames, impair them, send no faster than a given wire |
//! | [`impairment`], `rate` | what [`fault`] and [`sim`] share: losses and damage by a seed, time on a wire |
//! | [`pfc`] | 802.1Qbb frames, over a socket of their own |
//! | [`ethtool`], `interface` | what the driver and the kernel say of an interface |
//! | [`keys`] | what sessions between keys need of the machine: random bytes, a file for the key, a thread for Diffie-Hellman |
//! | `socket` | calls on sockets, as links make them |
//! | [`wait`], `clock` | what a polling thread does when nothing comes; the clock it reads |
//! | [`echo`] | bare echo, to measure a link without the protocol |

// `println!` and its kin panic when their reader has gone.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod boxed;
mod clock;
mod config;
mod encap;
mod error;
mod extras;
mod interface;
mod link;
mod open;
mod persistent;
mod queues;
mod rate;
mod socket;

pub mod echo;
pub mod ethtool;
pub mod fault;
pub mod impairment;
pub mod keys;
pub mod limit;
pub mod outer;
pub mod packet;
pub mod pcap;
pub mod pfc;
pub mod pnet;
pub mod sim;
pub mod udp;
pub mod wait;
pub mod xdp;

pub use clock::Clock;
pub use config::{Backend, Encap, LinkConfig, UdpConfig};
pub use error::LinkError;
pub use extras::{Extras, open_with};
pub use interface::ETHERNET_HEADER;
pub use link::{Link, LinkCounters, LinkInfo, OnFrame};
pub use open::open;
pub use persistent::{LinkDown, LinkHealth, open_persistent};
pub use queues::join_queues;
