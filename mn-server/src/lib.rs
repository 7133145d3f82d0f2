//! # cxloe-mn: the memory node
//!
//! Lends this machine's memory to compute nodes, 64 bytes at a time or a page at a time, over Ethernet.
//!
//! ```text
//!   frames --> worker (one thread per queue: rings, sessions, TLB)
//!                |  Service: Responder -> NodeMemory
//!                |              translation: (CN id, CMem) -> MPMem   <-- control: what the manager says
//!                |              pool: the memory itself
//!   frames <-----+
//! ```
//!
//! What decides is in [`cxloe_mn_core`]; here is what surrounds it:
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | the thread around a service: rings in, rings out |
//! | [`pool`] | where the memory comes from: anonymous, huge pages, a memfd, a file, a DAX device |
//! | [`control`] | the manager's commands, carried out |
//! | [`admin`] | a socket that tells how things stand |
//! | [`metrics`] | the same for Prometheus |
//! | [`config`] | options |

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod admin;
pub mod config;
pub mod control;
pub mod metrics;
pub mod pool;
pub mod worker;
