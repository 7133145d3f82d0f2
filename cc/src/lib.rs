//! # cxloe-cc: how fast a compute node may send
//!
//! Priority flow control (IEEE 802.1Qbb) stops a whole class of traffic on a link when a queue behind it fills. The
//! paper takes the pause frame as a signal instead: slow down by steps, creep back, and settle just below the rate at
//! which the next pause would come. It needs no support from switches.
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
//! | module | content |
//! |---|---|
//! | [`controller`] | the six phases (paper, III.D): a state machine of signals and time |
//! | [`bucket`] | tokens in bytes that arrive at the controller's rate |
//! | [`pacer`] | both together, as a sender uses them |
//!
//! All of it is without I/O, which the compiler checks (`no_std`): the time is an argument ([`core::time::Duration`]
//! since any fixed start), and the result is a rate or the time of the next call.

#![cfg_attr(not(test), no_std)]
// `println!` and the like panic when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bucket;
pub mod controller;
pub mod pacer;

pub use bucket::TokenBucket;
pub use controller::{Config, Controller, Phase};
pub use pacer::{Pacer, PacerStatus};

/// Rate in bits per second on the wire (R13).
pub type BitsPerSecond = u64;

/// 10^9 bits per second.
pub const GBIT: BitsPerSecond = 1_000_000_000;
