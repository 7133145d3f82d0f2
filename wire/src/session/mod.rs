//! Sessions: the protocol between a compute node and a memory node, as two state machines without I/O.
//!
//! ```text
//!   engine --read, write, bursts--> Requester --frames--> link ... link --frames--> Responder --> Memory
//!          <----- completions -----          <--frames--                 <--frames--          <--
//! ```
//!
//! A [`Requester`] runs at the CN, one for each MN. It numbers requests ([R1](#rules)), keeps them until they
//! are answered, retransmits lost ones, and puts early answers in order. A [`Responder`] runs at the MN, one
//! for each worker, and serves all CNs of that worker. It executes each stream strictly in order and each
//! request exactly once, on a [`Memory`], and repeats earlier answers from its retry buffer.
//!
//! Both ends are [machines](crate::machine), driven the same way, and never use a clock, a socket or a source of
//! random numbers themselves:
//!
//! * *inputs*: `handle(frame, now, …)` for every frame; `poll(now, …)` when `deadline()` has come, at the MN also after
//!   each batch of frames;
//! * *commands*: `connect`, `read`, `write`, … at the CN; `drain` at the MN;
//! * *outside the worker thread*: `poll_handshake` returns Diffie-Hellman computations to run, and
//!   `handshake_done` takes their results;
//! * *outputs*: frames into the given [`Transmit`](crate::Transmit), completions into [`Completions`], and
//!   events from `poll_event`.
//!
//! # Rules
//!
//! R1 to R13 in comments are the rules of `PROTOCOL.md`.

mod entropy;
mod framer;
mod noise;
mod requester;
mod responder;
mod rtt;
mod seq;
mod slab;

pub use entropy::Entropy;
pub use framer::{Identity, PreSharedKey};
pub use noise::{
    HandshakeDone, HandshakeError, HandshakeJob, HelloMac, KeyPair, NodeKey, Primitives as NoisePrimitives,
};
pub use requester::{
    Completions, OpError, Rejected, Requester, RequesterConfig, RequesterCounters, RequesterStatus,
    SessionEvent, Timing,
};
pub use responder::{
    HelloSieve, Memory, Responder, ResponderConfig, ResponderCounters, ResponderEvent, SessionStatus, Share,
};
pub use rtt::RoundTrip;
pub use seq::{FIRST, infer};

/// Maximum number of unanswered reads of a stream, and of unanswered writes (R1): the limit of the paper's
/// CXL IP core.
pub const WINDOW: usize = 256;

/// Maximum number of unanswered requests of a stream, reads and writes together.
pub const SLOTS: usize = 2 * WINDOW;

/// Maximum number of streams of a session, whatever both ends are configured to.
pub const STREAMS_MAX: usize = 64;
