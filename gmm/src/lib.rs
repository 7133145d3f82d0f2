//! The global memory manager (GMM) of CXL over Ethernet: it knows which memory nodes lend memory and which compute node
//! owns what, and it is the only one who gives memory away.
//!
//! ```text
//!   mn-server, cn-agent, CLI          gmm serve
//!   Client ------------ HTTP/JSON ---> server: listeners, routes, long polls
//!                                        |  commands, one at a time
//!                                        v
//!                                     manager::Manager: decides, without I/O
//!                                        |  changes
//!                                        v
//!                                     store: one durable commit, then everyone is told
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`manager`] | the state machine and its rules |
//! | [`rights`] | who somebody is, and whether they may do what they ask for |
//! | [`store`] | where its state outlives the process |
//! | [`fm_fabric`] | the manager's fabric as the FM API shows and changes it |
//! | [`server`] | the shell around it, with sockets, threads and the clock |
//!
//! What it speaks of is in [`cxloe_fabric`], the FM API itself in [`cxloe_fm`], and what it has in common with the nodes'
//! daemons in [`cxloe_daemon`].
//!
//! The data path does without the manager: nodes that have what they need go on while it is away, and a manager that
//! starts again over its store goes on where it was.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod fm_fabric;
pub mod manager;
pub mod rights;
pub mod server;
pub mod store;

pub use manager::Manager;
