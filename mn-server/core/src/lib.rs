//! # cxloe-mn-core: logic of a memory node
//!
//! Request frames in, response frames out, and the ownership of memory. No I/O, no clock, no threads: a worker
//! (`cxloe-mn`) and the simulation (`cxloe-sim`) run the same state machine.
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
//!   response frame <-----+        CongestionWatch: when to ask compute nodes to slow down
//!
//!   manager <-- requests -- Follow -- commands --> Mappings --> jobs: extents to be zeroed
//!                             |
//!                             '-- orders to copy --> FillBoard --> Filler: a requester of another memory node
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`follow`] | registration with the manager, and what follows from its answers |
//! | [`mappings`], [`job`] | what this node serves, the rules by which that changes, and the slow part of a change |
//! | [`static_map`] | what it serves where there is no manager |
//! | [`service`] | a request frame in, response frames out |
//! | [`fill`] | copies of regions that no compute node uses, from other memory nodes |
//! | [`translation`] | TLB, and the page table, which lies in the pool itself (paper, section III.C) |
//! | [`pool`] | lines, extents, superblock, layout |
//! | [`keeping`] | which process has the use of a pool's memory, and when it is freed |
//! | [`keys`] | which public key belongs to which compute node |
//! | [`congestion`] | when the receive queue is too long |
//! | [`trace`] | observation of accesses to memory, for measurements |

// `println!` and the like panic when standard output or standard error is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod congestion;
pub mod fill;
pub mod follow;
pub mod job;
pub mod keeping;
pub mod keys;
pub mod mappings;
pub mod pool;
pub mod service;
pub mod static_map;
pub mod trace;
pub mod translation;
