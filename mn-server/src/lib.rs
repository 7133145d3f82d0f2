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
//! * [`service`]: a request frame in, response frames out; no I/O.
//! * [`worker`]: the thread around it.
//! * [`translation`]: TLB, and the page table, which lies in the pool itself.
//! * [`pool`]: the memory: anonymous, huge pages, a memfd, a file, a DAX device.
//! * [`trace`]: what is told when a request reaches the memory, for those who time it.
//! * [`control`]: the manager's commands, carried out.
//! * [`admin`]: a socket that tells how things stand.
//! * [`metrics`]: the same for Prometheus.
//! * [`config`][]: options.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod admin;
pub mod config;
pub mod congestion;
pub mod control;
pub mod metrics;
pub mod pool;
pub mod service;
pub mod trace;
pub mod translation;
pub mod worker;
