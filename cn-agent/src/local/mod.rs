//! The way other processes of this machine reach the line port of the running agent.
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
//!      <-- one byte: wake up --------------------  (the same socket; its end says that the other is gone)
//! ```
//!
//! * [`message`]: requests and answers on the socket.
//! * [`memory`]: the shared memory, and with [`vectored`] the only `unsafe` here.
//! * [`vectored`]: bytes between a socket and shared memory.
//! * [`ring`]: the two rings in it, seen from both ends.
//! * [`status`]: errors as numbers in a completion, and back.
//! * [`mapping`]: regions that programs map, and their members.
//! * [`server`]: the agent's listener.
//!
//! Why a socket wakes and not an eventfd: an eventfd is one open file for both ends, so a client could make it
//! blocking, fill or drain it, and stop the agent's only data thread in a system call. On a socket the agent's
//! calls never block, whatever the client does with its end, and a dead end is noticed by the same `poll`.

pub mod mapping;
pub mod memory;
pub mod message;
pub mod ring;
pub mod server;
pub mod status;
pub mod vectored;

use std::path::PathBuf;

/// The CPU this thread runs on, if the kernel says so.
#[inline]
pub fn this_cpu() -> Option<u32> {
    nix::sched::sched_getcpu().ok().map(|cpu| cpu as u32)
}

/// Where the agent listens unless told otherwise: `/run/cxloe/cn-agent.sock` as root, else below
/// `$XDG_RUNTIME_DIR`.
pub fn default_socket() -> PathBuf {
    cxloe_daemon::places::socket("cn-agent.sock")
}
