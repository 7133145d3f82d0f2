//! # cxloe-cn-core: the decisions of a compute node
//!
//! Everything here is a function of its inputs: operations, frames, faults, the manager's answers, and the time. No
//! code here reads a clock, opens a file, starts a thread or calls the kernel: callers that own a link and memory
//! call these types and carry out their decisions. So the same code runs in the agent, in a program with its own
//! link, and in simulations.
//!
//! ```text
//!   manager's regions --> attachments --changes--> attach: routes, miss policy, local memory +
//!                                    `--changes--> drain: dirty lines written back ------+
//!                                                                                        v
//!   reads, writes of lines -----------------------------------------------------> engine (cache) --> sessions --> frames
//!                                                                                        ^
//!   faults --> pager --fetch, write--> transfers: a page as bursts ----------------------+
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`node`] | one round: the order in which a link, an engine and its users are driven |
//! | [`engine`] | line operations in, frames and completions out |
//! | [`cache`] | the set-associative line cache of the engine |
//! | [`attachments`] | regions and their addresses, and the changes to carry out |
//! | [`backing`] | backing of a region: Ethernet, or a device of this machine |
//! | [`attach`] | from a region to peers, routes and local memory of an engine |
//! | [`drain`] | regions that are being drained |
//! | [`pager`] | resident pages of a region, fetching and eviction |
//! | [`transfers`] | transfers of pages between page buffers and memory nodes |
//! | [`fault_times`] | durations of faults |
//! | [`mapped`] | common description of a mapped region |
//! | [`follow`], [`quiet`] | registration with the manager and the effects of its answers; end of earlier operations |
//! | [`leases`] | regions that exist for one program each |
//! | [`events`], [`refusals`] | log messages for the engine's events; refusals that may pass by themselves |
//! | [`user_shares`] | shares of one user in resources that all users need |
//! | [`workers`] | which worker serves what, and which workers a change concerns |
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
pub mod follow;
pub mod leases;
pub mod mapped;
pub mod node;
pub mod pager;
pub mod quiet;
pub mod refusals;
pub mod transfers;
pub mod untrusted;
pub mod user_shares;
pub mod workers;
