//! A region as a block device: an NBD server on a Unix socket, so that any kernel, virtual machine or disk tool can keep
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

mod blocks;
mod connection;
pub mod conversation;
mod output;
pub mod port;
mod requests;
mod seat;
mod seldom;
pub mod server;
mod shared;
mod wire;
