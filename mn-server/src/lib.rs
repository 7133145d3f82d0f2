//! # cxloe-mn: the memory node
//!
//! Lends this machine's memory to compute nodes, 64 bytes at a time or a page at a time, over Ethernet.
//!
//! ```text
//!   frames --> worker (one thread per queue: rings, sessions, TLB)
//!                |  Service: Responder -> NodeMemory
//!                |              translation: (CN id, CMem) -> MPMem   <-- control: the manager's commands
//!                |              pool: the memory itself
//!   frames <-----+
//! ```
//!
//! The logic is in [`cxloe_mn_core`]; this crate does the I/O:
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | the thread around a service: rings in, rings out |
//! | [`pool`] | where the memory comes from: ordinary memory, huge pages, a file, a DAX device |
//! | [`keeper`] | what lets that memory outlive this process |
//! | [`control`] | the manager's commands, carried out |
//! | [`admin`] | socket with the status of a running node |
//! | [`metrics`] | metrics of the node for Prometheus |
//! | [`config`] | options |

// `println!` and the like panic when standard output or standard error is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod admin;
pub mod config;
pub mod control;
pub mod keeper;
pub mod metrics;
pub mod pool;
pub mod worker;
