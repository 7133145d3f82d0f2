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
//! | module | content |
//! |---|---|
//! | [`frame`] | the bytes: the checked view of a received frame, every message of the protocol, the integrity trailer, and the IEEE 802.1Qbb frames it is paced by. No state |
//! | [`session`] | the rules (R1-R13 of `PROTOCOL.md`): [`session::Requester`] at the CN, [`session::Responder`] at the MN, plain state machines that take bytes and time and give frames and events |
//! | [`mod@spelled`] | one spelling of a value, as text and in files |
//! | [`time`] | time as the state machines see it: a number handed to them |
//! | `transmit` | [`Transmit`], the slots that sessions write frames into |
//!
//! Nothing here uses the operating system, which the compiler checks (`no_std`): no sockets, no clock, no threads. The
//! crate `cxloe-link` sends and receives the frames.
//!
//! The data path never allocates: a frame is read in the kernel's receive slot and written into its transmit slot. A
//! received frame is delimited and its command decoded once, by [`frame::FrameView`].

#![cfg_attr(not(test), no_std)]
// `println!` and the like panic when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

extern crate alloc;

pub mod frame;
pub mod random;
pub mod session;
pub mod spelled;
pub mod time;

mod transmit;

pub use transmit::Transmit;
