//! # cxloe-wire: what travels between a compute node and a memory node
//!
//! A 64-byte line of remote memory is asked for in one Ethernet frame and arrives in another. This crate
//! holds everything about those frames, in three layers, each usable without the ones above it:
//!
//! * [`frame`]: the bytes. Checked views and parsed values of every frame of the protocol, the integrity
//!   trailer, and the IEEE 802.1Qbb frames it is paced by. No state.
//! * [`session`]: the rules (R1-R13 of `PROTOCOL.md`). A [`session::Requester`] at the CN and a
//!   [`session::Responder`] at the MN: plain state machines that take bytes and [`time::Time`] and give
//!   frames and events. No sockets, no clock, no threads.
//! * [`link`]: how frames enter and leave this machine: AF_PACKET rings, AF_XDP, a portable fallback, and
//!   the middlewares that lose, delay, damage, record or slow frames on purpose.
//!
//! The data path never allocates: a frame is read where the kernel put it and written where the kernel will
//! take it from.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod frame;
pub mod link;
pub mod session;
pub mod time;
