//! # cxloe-client: use of regions through the agent of the same machine
//!
//! A program reads and writes lines through a [`Client`](client::Client), or maps a region into its address space by a
//! [`Mapping`](mapping::Mapping). The agent uses the same rings and messages at its end.
//!
//! ```text
//!   program                                   cn-agent
//!   Client --- request (JSON) --------------> Server: regions, sessions, counters
//!      |                                         | a port is asked for
//!      |<-- answer + memfd (SCM_RIGHTS) ---------+--> worker
//!      |
//!      +== submissions: read, write, flush =====> worker: Engine
//!      <== completions: line, done, error ======   (shared memory, no system call while both are awake)
//!      +-- one byte: wake up ------------------->
//!      <-- one byte: wake up --------------------  (the same socket; closed when one end is gone)
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`client`] | a program's port: requests, reads and writes of lines, of many lines at once |
//! | [`mapping`] | regions as memory, paged by the agent |
//! | [`message`] | requests and answers on the socket |
//! | [`ring`] | the two rings in shared memory, seen from both ends |
//! | [`memory`] | the shared memory |
//! | [`vectored`] | bytes between a socket and shared memory |
//! | [`status`] | errors as numbers in a completion, and back |
//! | [`defaults`] | default path of the socket, and the CPU of this thread |
//!
//! Wake-ups go over a socket, not an eventfd: an eventfd is one open file for both ends, so a client could make it
//! blocking, fill or drain it, and block the agent's only data thread in a system call. On a socket the agent's calls
//! never block, whatever the client does with its end, and the same `poll` notices the other end's death.

#![warn(missing_docs)]

pub mod client;
pub mod defaults;
pub mod mapping;
pub mod memory;
pub mod message;
pub mod ring;
pub mod ring_memory;
pub mod status;
pub mod vectored;
