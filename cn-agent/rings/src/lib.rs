//! # cxloe-rings: serves the rings of the agent's clients
//!
//! Operations are read from rings in memory that clients can write at any time, go into the engine, and end as
//! completions.
//!
//! ```text
//!   ring of client 0 --+                                        +--> line operations --+
//!   ring of client 1 --+--> Clients: copied out once, checked --+                      +--> Engine
//!   ring of client n --+    (owner of the region, mapped)       +--> Jobs --> Bulk ----+
//!          ^                                                                           |
//!          +------------------- completions (Sink) <-----------------------------------+
//! ```
//!
//! A client is not trusted: nothing that it writes, at any moment, gives it access to another user's regions
//! or delays another client.
//!
//! | module | what it holds |
//! |---|---|
//! | [`client`] | one client: its rings, its socket, its user |
//! | [`client_slot`] | slots for clients, and the share of each user |
//! | [`clients`] | all clients, served in rounds |
//! | [`bulk`] | operations on several lines, or on part of one |
//! | [`jobs`] | the jobs of one client |
//! | [`owners`] | which addresses belong to which user |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bulk;
pub mod client;
pub mod client_slot;
pub mod clients;
pub mod jobs;
pub mod owners;
