//! # cxloe-cc: congestion control of a compute node
//!
//! Priority flow control (IEEE 802.1Qbb) stops a whole class of traffic on a link when a queue behind the
//! link fills. The paper uses the pause frame as a signal instead: the sender slows down in steps, recovers
//! step by step, and settles just below the rate at which the next pause would come. Switches need no extra
//! feature for that.
//!
//! ```text
//!   pause and congestion signals               bytes of a request
//!               |                                   |
//!               v                                   v
//!          Controller ---- rate in bits/s ----> TokenBucket ----> send now, or time of the next attempt
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
//! The crate does no I/O, which the compiler checks (`no_std`). Callers pass the time as an argument
//! ([`core::time::Duration`] since any fixed start) and get a rate or the time of the next call.

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

pub const GBIT: BitsPerSecond = 1_000_000_000;
