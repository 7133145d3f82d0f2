//! # cxloe-mn-core: what a memory node decides
//!
//! A request frame in, response frames out; which memory belongs to whom. No I/O, no clock, no threads: a worker
//! (`cxloe-mn`) and the simulation (`cxloe-sim`) run the same machine.
//!
//! ```text
//!   request frame --> Service: Responder (order, retries, from cxloe-wire)
//!                        |  (CN id, CMem)
//!                        v
//!                     Tlb --miss--> PageTable  <-- PageTableWriter: one thread, which carries out the manager's commands
//!                        |  MPMem
//!                        v
//!                     Pool: lines in memory that the shell has mapped (Backing)
//!                        |
//!   response frame <-----+        CongestionWatch: when to ask compute nodes for less
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`service`] | a request frame in, response frames out |
//! | [`translation`] | TLB, and the page table, which lies in the pool itself (paper, section III.C) |
//! | [`pool`] | lines, extents, superblock, layout |
//! | [`keys`] | which public key belongs to which compute node |
//! | [`congestion`] | when the receive queue is too long |
//! | [`trace`] | what is told when a request reaches the memory, for those who time it |

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod congestion;
pub mod keys;
pub mod pool;
pub mod service;
pub mod trace;
pub mod translation;
