//! # cxloe-net: interface of every link, and a network in virtual time
//!
//! The trait [`Link`] stands in front of every way in which a node sends and receives frames. It is made for
//! polling. [`Link::receive`] passes on the frames that have arrived, each in the memory where the kernel (or
//! the simulation) put it, together with the transmit side ([`cxloe_wire::Transmit`]). So an answer is
//! written straight into a transmit slot while the request is still in the receive ring. [`Link::flush`]
//! sends everything queued together. Nothing on that path allocates or copies.
//!
//! This crate uses no operating system services: links on real interfaces are in `cxloe-link`, and the
//! simulation runs nodes over [`sim`].
//!
//! | module | content |
//! |---|---|
//! | `link`, `error` | [`Link`], its properties and counters ([`LinkInfo`], [`LinkCounters`]), [`LinkError`] |
//! | [`sim`] | a network in virtual time; a run can be repeated from its seed |
//! | [`queues`] | the links of several queues, joined into one |
//! | [`wait`] | polling, yielding or sleeping of a thread that drives a link |
//! | [`impairment`], [`rate`] | losses and damage drawn from a seed, time that frames take on a wire |

#![warn(missing_docs)]
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

/// Items that the macro `pass_on!` needs in other crates.
#[doc(hidden)]
pub mod reexport {
    pub use cxloe_wire::Transmit;
    pub use cxloe_wire::session::HelloSieve;
}
