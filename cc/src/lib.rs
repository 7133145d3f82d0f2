//! # cxloe-cc: how fast a compute node may send
//!
//! Priority flow control (IEEE 802.1Qbb) stops a whole class of traffic on a link when a queue behind it fills.
//! The paper takes the pause frame as a signal instead: slow down by steps, creep back, and settle just below
//! the rate at which the next pause would come. No switch needs to know.
//!
//! ```text
//!   pause signals --> Controller --rate--> TokenBucket --> when the next request may leave
//!                     '----------- Pacer ------------'
//! ```
//!
//! * [`controller`]: the six phases (paper, III.D), a state machine of signals and time.
//! * [`bucket`]: tokens in bytes that arrive at the controller's rate.
//! * [`pacer`]: both together, as a sender uses them.
//!
//! Both decide without I/O: the time is an argument ([`core::time::Duration`] since any fixed start), and what
//! comes back is a rate or the time to come again.

#![cfg_attr(not(test), no_std)]
// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bucket;
pub mod controller;
pub mod pacer;

pub use bucket::TokenBucket;
pub use controller::{Config, Controller, Phase};
pub use pacer::{Pacer, PacerStatus};

/// Bits per second.
pub type BitsPerSecond = u64;

/// One Gbit/s.
pub const GBIT: BitsPerSecond = 1_000_000_000;
