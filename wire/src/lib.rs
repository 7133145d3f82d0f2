//! # cxloe-wire: the protocol between a compute node and a memory node
//!
//! A request for a 64-byte line of remote memory travels in one Ethernet frame, the answer in another. This
//! crate has everything about those frames, in two layers; the first can be used without the second:
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
//! | [`frame`] | the bytes: the checked view of a received frame, every message of the protocol, the integrity trailer, and the IEEE 802.1Qbb frames of rate control. No state |
//! | [`session`] | the rules (R1-R13 of `PROTOCOL.md`): [`session::Requester`] at the CN and [`session::Responder`] at the MN. Both are state machines: bytes and time in, frames and events out |
//! | [`machine`] | the contract of every state machine that decides, here and in other crates |
//! | [`counters!`] | counters that add up |
//! | [`named!`] | enumerations whose values have names |
//! | [`mod@spelled`] | one text form of a value, in output and in files |
//! | [`time`] | time in the state machines: a number that the caller passes in |
//! | `transmit` | [`Transmit`], the slots that sessions write frames into |
//!
//! The crate does not use the operating system, which the compiler checks (`no_std`): no sockets, no clock,
//! no threads. The crate `cxloe-link` sends and receives the frames.
//!
//! The data path never allocates: a frame is read in the kernel's receive slot and written into its transmit
//! slot. [`frame::FrameView`] finds the end of a received frame and decodes its command once.

#![warn(missing_docs)]
#![cfg_attr(not(test), no_std)]
// `println!` and the like panic when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

extern crate alloc;

pub mod frame;
pub mod machine;
pub mod random;
pub mod session;
pub mod spelled;
pub mod time;

mod counter_sums;
mod names;
mod transmit;

pub use transmit::Transmit;
