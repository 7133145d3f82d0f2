//! # cxloe-wire: what travels between a compute node and a memory node
//!
//! A 64-byte line of remote memory is asked for in one Ethernet frame and arrives in another. This crate
//! holds everything about those frames, in two layers, the first usable without the second:
//!
//! * [`frame`]: the bytes. Checked views and parsed values of every frame of the protocol, the integrity
//!   trailer, and the IEEE 802.1Qbb frames it is paced by. No state.
//! * [`session`]: the rules (R1-R13 of `PROTOCOL.md`). A [`session::Requester`] at the CN and a
//!   [`session::Responder`] at the MN: plain state machines that take bytes and [`time::Time`] and give
//!   frames and events. No sockets, no clock, no threads.
//!
//! Nothing here uses the operating system. How frames enter and leave a machine is `cxloe-link`'s business; a session
//! only knows [`Transmit`], where its frames are written.
//!
//! The data path never allocates: a frame is read where the kernel put it and written where the kernel will
//! take it from.

#![cfg_attr(not(test), no_std)]
// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

extern crate alloc;

pub mod frame;
pub mod session;
pub mod time;

mod transmit;

pub use transmit::Transmit;
