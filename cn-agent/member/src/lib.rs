//! # cxloe-member: a process whose memory the compute node's agent pages
//!
//! ```text
//!   program's threads                helper thread                          cn-agent
//!      |  Line::discard  ---------------- DISCARD ----------------------------> |
//!      |  <------------------------------ DISCARDED -------------------------- |
//!      |                                <- DROP: these pages leave ------------ |
//!      |                        madvise, DROPPED ->                             |
//!      |                                hang-up: the agent has died             |
//!      |                        connect again, Join with resume -> its successor
//! ```
//!
//! * [`wire`]: the messages, for both ends.
//! * [`socket`]: a connection to the agent, with descriptors.
//! * [`join`]: becoming a member.
//! * [`helper`]: what the helper thread does from then on.
//! * [`line`](mod@line): how other threads of the process reach it.
//! * [`parent_memory`]: what a forked child says that touches memory it does not have.
//! * [`told`]: lines on the program's standard error.
//! * [`uffd`]: making a userfaultfd.
//!
//! Nothing here allocates, and no call but [`Line::discard`](line::Line::discard) waits for another thread: it all runs
//! in processes whose allocator's memory is the paged memory itself, where a helper thread that touched it would wait
//! for itself.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// What went wrong is told without a heap.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

pub mod helper;
pub mod join;
pub mod line;
pub mod parent_memory;
pub mod socket;
pub mod told;
pub mod uffd;
pub mod wire;
