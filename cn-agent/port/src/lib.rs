//! # cxloe-port: regions over a link of the program's own
//!
//! A program that has an interface to itself needs no agent: it registers with the manager as a compute node
//! ([`connect`]), and its own threads drive engine and link. Lines are read and written through a [`Port`](port::Port);
//! a region can also be mapped, so that a thread that touches an absent page fetches it itself ([`inline`]).
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
//! | [`port`] | reads and writes of lines, waiting for them |
//! | [`inline`] | mapped regions whose faults the faulting thread serves |
//! | [`connect`] | becoming a compute node |
//! | [`access`] | by what it is known to the manager, and what its sessions are sealed with |
//! | `renewal` | renewing its certificate while it runs |
//! | `following` | hearing of it while it runs when keys of memory nodes are taken back |
//! | [`manager`] | the few calls to the manager that this takes |
//! | [`rate_control`] | how requests are paced, and by which signals |
//! | [`signals`] | pause signals of an interface |

pub mod access;
pub mod connect;
mod following;
pub mod inline;
pub mod manager;
pub mod port;
pub mod rate_control;
mod renewal;
pub mod signals;
