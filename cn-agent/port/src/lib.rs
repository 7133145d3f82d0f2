//! # cxloe-port: regions over a link of the program's own
//!
//! A program with an interface of its own needs no agent: the program registers with the manager as a compute node
//! ([`connect`]), and its threads drive engine and link. Lines are read and written through a [`Port`](port::Port). A
//! region can also be mapped, so that a thread that touches an absent page fetches the page itself ([`inline`]).
//!
//! ```text
//!   Connected::open --> manager: registration, region
//!        |
//!        v
//!      Port: Engine + Link + Clock <-- reads, writes of lines
//!        |                         <-- signals: pause frames --> rate control
//!        v
//!   InlineRegion: SIGBUS --> pager --> the same engine and link
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`port`] | reads and writes of lines |
//! | [`inline`] | mapped regions whose faults the faulting thread serves |
//! | [`connect`] | registration as a compute node |
//! | [`access`] | credentials for the manager, and the key of sessions |
//! | `renewal` | renewal of its certificate while it runs |
//! | `following` | changes of memory nodes' keys while it runs |
//! | [`manager`] | calls to the manager |
//! | [`rate_control`] | rate control of requests, and its signals |
//! | [`frames`] | a link as a round uses it |
//! | [`handshakes`] | computations of sessions with keys |
//! | [`signals`] | pause signals of an interface |

#![warn(missing_docs)]

pub mod access;
pub mod connect;
mod following;
pub mod frames;
pub mod handshakes;
pub mod inline;
pub mod manager;
pub mod port;
pub mod rate_control;
mod renewal;
pub mod signals;
