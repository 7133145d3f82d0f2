//! # cxloe-gmm-core: what the manager decides
//!
//! The state machine of the global memory manager (GMM), and the rights of its callers. Commands and the time go in;
//! changes of the state, events and commands for nodes come out. It uses no operating system, so the simulation runs
//! the same code as `gmm serve`.
//!
//! ```text
//!   caller, route --> rights: identity, right
//!                        |  command, now_ms
//!                        v
//!                     Manager::apply --> Outcome: changes (to be stored before the answers), events, answer
//!                        |
//!                        v
//!                     State: nodes, regions, logical devices, commands without a result
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`manager`] | the state machine and its rules |
//! | [`rights`] | identities and rights of callers |
//! | [`machine`] | the contract by which the manager is driven, as every machine |

// The macros `println!` and `eprintln!` panic when the stream is closed, so this crate does not use them.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod manager;
pub mod rights;

pub use cxloe_wire::machine;
pub use manager::Manager;
