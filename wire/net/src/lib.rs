//! # cxloe-net: what every link is, and a network in virtual time
//!
//! One trait, [`Link`], in front of every way for frames in and out of a node. It is made for polling:
//! [`Link::receive`] hands over frames that have arrived, each in the memory where the kernel (or the simulation) put
//! it, together with the transmit side ([`cxloe_wire::Transmit`]), so that an answer is written straight into a
//! transmit slot while the request still lies in the receive ring. [`Link::flush`] sends everything queued with one
//! kick. Nothing on that path allocates or copies.
//!
//! This crate has no operating system: links on real interfaces are in `cxloe-link`, and the simulation runs nodes over
//! [`sim`].
//!
//! | module | content |
//! |---|---|
//! | `link`, `error` | [`Link`], its properties and counters ([`LinkInfo`], [`LinkCounters`]), [`LinkError`] |
//! | [`sim`] | a network in virtual time, repeatable from a seed |
//! | [`queues`] | the links of several queues as one |
//! | [`wait`] | polling, yielding or sleeping of a thread that drives a link |
//! | [`impairment`], [`rate`] | losses and damage by a seed, time on a wire |

// `println!` and the like panic when the reader of the output has gone.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod boxed;
mod error;
mod link;

pub mod impairment;
pub mod queues;
pub mod rate;
pub mod sim;
pub mod wait;

pub use error::LinkError;
pub use link::{Link, LinkCounters, LinkInfo, OnFrame};

/// Length of the Ethernet header in bytes, which an MTU does not include.
pub const ETHERNET_HEADER: usize = 14;

/// Items that the macro `pass_on!` uses in other crates.
#[doc(hidden)]
pub mod reexport {
    pub use cxloe_wire::Transmit;
    pub use cxloe_wire::session::HelloSieve;
}
