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
//! * [`process_files`]: the files through which the agent reads the memory of a process.
//! * [`helper`]: the helper thread.
//! * [`line`](mod@line): requests to the helper thread from the other threads.
//! * [`local_report`]: what a process tells `cn-agent exec` that cannot become a member.
//! * [`own_calls`]: system calls on paged memory, marked as this library's own.
//! * [`parent_memory`]: the message that a forked child prints when it touches memory that only its parent
//!   can use.
//! * [`bounded_write`]: lines on the program's standard error.
//! * [`uffd`]: making a userfaultfd.
//!
//! Nothing here allocates, and no call but [`HelperLine::discard`](line::HelperLine::discard) waits for
//! another thread: this crate runs in processes whose heap may itself be paged memory, so a helper thread
//! that touched the heap could wait for itself.

// `print!` and `eprint!` are forbidden, since they panic when the stream cannot be written.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// Large error values are accepted, because a box for them would need the heap.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

pub mod bounded_write;
pub mod helper;
pub mod join;
pub mod line;
pub mod local_report;
pub mod own_calls;
pub mod parent_memory;
pub mod process_files;
#[cfg(test)]
mod sleep_counter;
pub mod socket;
pub mod uffd;
pub mod wire;
