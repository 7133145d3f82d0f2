//! # cxloe-nbd: a region as a block device
//!
//! An NBD server on a Unix socket, so that any kernel, virtual machine or disk tool can keep
//! blocks in remote memory.
//!
//! ```text
//!   client's socket --headers--> Conversation --> Requests --parts--> Port --rings--> the running agent
//!        | ^                     (the protocol)   (many at once)      (reopened)           |
//!        | +-------------------------- answers, data -----+                                |
//!        +---------- payload ------------> data area of the port <-------------------------+
//! ```
//!
//! Each connection is a thread with a port of its own, so that connections share nothing: who writes a part of a line has
//! the agent change it, which keeps the writers of one line apart, be they connections of one server or of two.
//!
//! **What an answer means.** A write is answered once the memory node has it, whatever the client asks for: nothing that
//! was answered is lost with this server or with the agent, and a flush has nothing left to do. That costs each write a
//! round trip, and lets an operation be tried again after the agent was restarted, as swap, which never flushes, needs it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | the thread that accepts clients; `shared` is what it has in common with those that serve them |
//! | `connection` | the thread of one client: bytes between its socket and the agent's port |
//! | [`conversation`] | the protocol as a state machine without I/O; `wire` has its numbers and headers |
//! | `requests` | requests under way, cut into operations of the port; `blocks` is room for their data |
//! | `output` | what is to be sent to a client, in order |
//! | [`port`] | the agent's port, opened again with a successor |
//! | `client_slot` | the places of clients, which are few |
//! | `turned_away` | what clients beyond them are answered |
//! | `seldom` | log lines that clients cannot flood |

mod blocks;
mod client_slot;
mod connection;
pub mod conversation;
pub mod output;
pub mod port;
mod requests;
mod seldom;
pub mod server;
mod shared;
mod turned_away;
mod wire;
