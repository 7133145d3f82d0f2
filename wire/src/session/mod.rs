//! Sessions: the rules by which a compute node and a memory node talk, as two state machines without I/O.
//!
//! ```text
//!   engine --read, write, bursts--> Requester --frames--> link ... link --frames--> Responder --> Memory
//!          <----- completions -----          <--frames--                 <--frames--          <--
//! ```
//!
//! A [`Requester`] lives at the CN, one for each MN. It numbers requests ([R1](#rules)), keeps them until
//! they are answered, sends again what was lost, and puts early answers in order. A [`Responder`] lives at
//! the MN, one for each worker, and serves all CNs of that worker: it executes each stream strictly in
//! order and each request exactly once ([`Memory`] does the executing), and answers what it has answered
//! before from its retry buffer.
//!
//! Both are driven the same way, and never call a clock, a socket or a random number source:
//!
//! * *inputs*: `handle(frame, now, …)` for every frame, `poll(now, …)` when `deadline()` has come;
//! * *commands*: `connect`, `read`, `write`, … at the CN; `drain` at the MN;
//! * *outputs*: frames into the [`Transmit`](crate::Transmit) they are given; completions into
//!   [`Completions`]; and events from `poll_event`.
//!
//! # Rules
//!
//! Numbers like R7 in comments are the rules of `PROTOCOL.md`.

mod framer;
mod requester;
mod responder;
mod rtt;
mod scheme;
mod seq;
mod slab;

pub use framer::{Identity, PreSharedKey};
pub use requester::{
    Completions, OpError, Rejected, Requester, RequesterConfig, RequesterCounters, RequesterStatus,
    SessionEvent, Timing,
};
pub use responder::{Memory, Responder, ResponderConfig, ResponderCounters, ResponderEvent, SessionStatus};
pub use rtt::RoundTrip;
pub use scheme::Retransmission;
pub use seq::{FIRST, infer};

use crate::random::Random;

/// Reads, and as many writes, of a stream that may be unanswered at once (R1): the limit of the paper's CXL
/// IP core.
pub const WINDOW: usize = 256;

/// Numbers of a stream that may be unanswered at once: reads and writes together.
pub const SLOTS: usize = 2 * WINDOW;

/// Streams a session may have.
pub const STREAMS_MAX: usize = 64;

/// Nonces and ids, from a seed of the shell's.
#[derive(Clone, Debug)]
pub(crate) struct Nonces(Random);

impl Nonces {
    pub fn new(seed: u64) -> Self {
        Nonces(Random::new(seed))
    }

    /// The next number, never 0.
    pub fn next(&mut self) -> u64 {
        loop {
            let number = self.0.bits();
            if number != 0 {
                return number;
            }
        }
    }
}
