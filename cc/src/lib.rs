//! # cxloe-cc: how fast a compute node may send
//!
//! Priority flow control (IEEE 802.1Qbb) stops a whole class of traffic on a link when a queue behind it fills.
//! The paper takes the pause frame as a signal instead: slow down by steps, creep back, and settle just below
//! the rate at which the next pause would come. No switch needs to know.
//!
//! ```text
//!   pause and congestion signals          a request of so many bytes
//!               |                                   |
//!               v                                   v
//!          Controller ---- rate in bits/s ----> TokenBucket ----> now, or when to ask again
//!          (six phases)                         (tokens in bytes)
//!               '-------------- Pacer --------------'
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`controller`] | the six phases (paper, III.D): a state machine of signals and time |
//! | [`bucket`] | tokens in bytes that arrive at the controller's rate |
//! | [`pacer`] | both together, as a sender uses them |
//!
//! All decide without I/O, which the compiler checks (`no_std`): the time is an argument ([`core::time::Duration`] since
//! any fixed start), and what comes back is a rate or the time to come again.

#![cfg_attr(not(test), no_std)]
// `println!` and its kin panic when their reader has gone.
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
