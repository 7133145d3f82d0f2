//! The global memory manager (GMM) of CXL over Ethernet: it records which memory nodes lend memory and which compute
//! node owns which region, and it alone allocates memory.
//!
//! ```text
//!   mn-server, cn-agent, CLI          gmm serve
//!   Client ------------ HTTP/JSON ---> server: listeners, routes, long polls
//!                                        |  commands, one at a time
//!                                        v
//!                                     cxloe_gmm_core::Manager: decides, without I/O
//!                                        |  changes
//!                                        v
//!                                     store: one durable commit, then the answers
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`store`] | persistence of the manager's state |
//! | [`fm_fabric`] | the manager's fabric as switches of the FM API |
//! | [`server`] | the manager as a process: sockets, threads and the clock |
//!
//! The state machine and the rights of callers are in [`cxloe_gmm_core`], the nouns in [`cxloe_fabric`], the FM API
//! itself in [`cxloe_fm`], and code shared with the nodes' daemons in [`cxloe_daemon`].
//!
//! The data path does not need the manager: while it is down, nodes continue to use their mappings, and after a restart
//! the manager continues from the state in its store.

// `print!` and `eprint!` panic when the stream is closed, for example by a pipe that ended.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod fm_fabric;
pub mod server;
pub mod store;
