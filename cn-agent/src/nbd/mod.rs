//! A region as a block device: an NBD server on a Unix socket, so that any kernel, virtual machine or disk tool can keep
//! blocks in remote memory.
//!
//! ```text
//!   client's socket --bytes--> Conversation --requests--> Volume --lines--> Port --rings--> the running agent
//!                  <--bytes--  (the protocol)            (bytes of lines)  (reconnects)
//! ```
//!
//! Each connection is a thread with a port of its own, so that connections share nothing but the locks that keep two
//! writers of one line apart.
//!
//! **What an answer means.** A write is answered once the memory node has it, whatever the client asks for: nothing that
//! was answered is lost with this server or with the agent, and a flush has nothing left to do. That costs each write a
//! round trip, and lets an operation be tried again after the agent was restarted, as swap, which never flushes, needs it.

pub mod conversation;
pub mod port;
pub mod seldom;
pub mod server;
pub mod stripes;
pub mod volume;
mod wire;
