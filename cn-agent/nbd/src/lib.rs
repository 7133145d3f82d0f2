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
//! Each connection has a thread and a port of its own, so that connections share nothing: a write of a part
//! of a line is a patch by the agent, which serialises writers of one line, whether they are connections of
//! one server or of two.
//!
//! **Meaning of an answer.** A write is answered once the memory node has it, whatever flags the client sets:
//! no answered write is lost with this server or with the agent, and a flush has nothing left to do. That
//! costs each write a round trip. It also allows an operation to be retried after a restart of the agent,
//! which swap needs because it never flushes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | the thread that accepts clients; `shared` is the state it shares with the threads that serve them |
//! | `connection` | the thread of one client: bytes between its socket and the agent's port |
//! | [`conversation`] | the protocol as a state machine without I/O; `wire` has its numbers and headers, `contexts` the metadata contexts |
//! | `requests` | requests in progress, cut into operations of the port; `blocks` allocates their data |
//! | `output` | bytes to be sent to a client, in order |
//! | [`port`] | the agent's port, opened again with a successor |
//! | `client_slot` | slots of clients, whose number is limited |
//! | `surplus_clients` | answers to clients beyond the limit |

mod blocks;
mod client_slot;
mod connection;
pub mod conversation;
pub mod output;
pub mod port;
mod requests;
pub mod server;
mod shared;
mod surplus_clients;
mod wire;
