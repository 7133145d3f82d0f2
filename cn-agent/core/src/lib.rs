//! # cxloe-cn-core: what a compute node decides
//!
//! Everything here is a function of what comes in: operations, frames, faults, the manager's news, and the time. Nothing
//! reads a clock, opens a file, starts a thread or calls the kernel: whoever owns a link and memory calls these types and
//! does what they say. So the same code runs in the agent, in a program that has a link of its own, and in simulations.
//!
//! ```text
//!   manager's regions --> attachments --changes--> attach: routes, miss policy, local memory +
//!                                    `--changes--> drain: what is modified goes home ----+
//!                                                                                        v
//!   reads, writes of lines -----------------------------------------------------> engine (cache) --> sessions --> frames
//!                                                                                        ^
//!   faults --> pager --fetch, write--> transfers: a page as bursts ----------------------+
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | line operations in, frames and completions out |
//! | [`cache`] | the set-associative line cache of the engine |
//! | [`attachments`] | which regions have which addresses, and what has to change |
//! | [`backing`] | what serves a region: Ethernet, or a device of this machine |
//! | [`attach`] | from a region to peers, routes and local memory of an engine |
//! | [`drain`] | regions on their way out |
//! | [`pager`] | which pages of a region are in memory, and how they come and go |
//! | [`transfers`] | pages on their way between page buffers and memory nodes |
//! | [`fault_times`] | how long faults take |
//! | [`mapped`] | a mapped region as all sides describe it |
//! | [`leases`] | regions that are there for one program each |
//! | [`events`] | what the engine reports, as lines of a log |
//! | [`untrusted`] | words that another process can write at any time |

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod attach;
pub mod attachments;
pub mod backing;
pub mod cache;
pub mod drain;
pub mod engine;
pub mod events;
pub mod fault_times;
pub mod leases;
pub mod mapped;
pub mod pager;
pub mod transfers;
pub mod untrusted;
