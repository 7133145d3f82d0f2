//! # cxloe-wire: what travels between a compute node and a memory node
//!
//! A 64-byte line of remote memory is asked for in one Ethernet frame and arrives in another. This crate
//! holds everything about those frames, in two layers, the first usable without the second:
//!
//! ```text
//!      compute node (CN)                                            memory node (MN)
//!   read, write, bursts                                           translation and pool
//!          |      ^ completions, events                    events ^      | Memory
//!   +------v------|--------+                             +--------|------v--------+
//!   | session::Requester   |  Hello, Start, requests     | session::Responder     |
//!   |  numbers, retry      | --------------------------> |  order, exactly once,  |
//!   |  buffer, time-outs   | <-------------------------- |  reorder buffer        |
//!   +----------------------+   answers, SACK, faults     +------------------------+
//!   | frame: Message, Seal |                             | frame: FrameView, Seal |
//!   +------|------^--------+                             +--------^------|--------+
//!   Transmit      | &mut [u8], now                  &mut [u8], now|      Transmit
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`frame`] | the bytes: the checked view of a received frame, every message of the protocol, the integrity trailer, and the IEEE 802.1Qbb frames it is paced by. No state |
//! | [`session`] | the rules (R1-R13 of `PROTOCOL.md`): [`session::Requester`] at the CN, [`session::Responder`] at the MN, plain state machines that take bytes and time and give frames and events |
//! | [`time`] | time as the state machines see it: a number handed to them |
//! | `transmit` | [`Transmit`], where a session writes its frames |
//!
//! Nothing here uses the operating system, which the compiler checks (`no_std`): no sockets, no clock, no threads. How
//! frames enter and leave a machine is `cxloe-link`'s business.
//!
//! The data path never allocates: a frame is read where the kernel put it and written where the kernel will
//! take it from. A received frame is delimited and its command decoded once, by [`frame::FrameView`].

#![cfg_attr(not(test), no_std)]
// `println!` and its kin panic when their reader has gone.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

extern crate alloc;

pub mod frame;
pub mod random;
pub mod session;
pub mod time;

mod transmit;

pub use transmit::Transmit;
