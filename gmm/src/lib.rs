//! The global memory manager (GMM) of CXL over Ethernet: it knows which memory nodes lend memory and which compute node
//! owns what, and it is the only one who gives memory away.
//!
//! ```text
//!   mn-server, cn-agent, CLI          gmm serve
//!   client::Client --- HTTP/JSON ---> server: listeners, routes, long polls
//!                                        |  commands, one at a time
//!                                        v
//!                                     manager::Manager: decides, without I/O
//!                                        |  changes
//!                                        v
//!                                     store: one durable commit, then everyone is told
//! ```
//!
//! * [`model`]: the nouns (nodes, regions, legs, extents, events, commands to nodes)
//! * [`api`]: bodies of requests and answers
//! * [`client`]: the REST interface as typed calls
//! * [`fm`]: the fabric manager API over MCTP and TCP
//! * [`hdm`]: HDM decoders, which spread a range of addresses over several memory nodes
//! * [`manager`]: the state machine and its rules
//! * [`store`]: where its state outlives the process
//! * [`server`]: the shell around it, with sockets, threads and the clock
//! * [`daemon`]: what this daemon and those of the nodes have in common
//! * [`command_line`]: the same for their commands
//!
//! The data path does without the manager: nodes that have what they need go on while it is away, and a manager that
//! starts again over its store goes on where it was.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod api;
pub mod client;
pub mod command_line;
pub mod daemon;
pub mod fm;
pub mod hdm;
pub mod manager;
pub mod model;
pub mod server;
pub mod store;

pub use client::{Client, ClientError};
pub use manager::Manager;
