//! # cxloe-exec: unmodified programs with remote memory
//!
//! The work of `cn-agent exec` before, during and after a program's run.
//!
//! ```text
//!   cn-agent exec                                   program, and all that it starts
//!     Program: can it be served?                      libcxloe_preload.so, by LD_PRELOAD
//!     Lease: a region for it ---> agent ---> manager    |  malloc, mmap: memory of its window
//!     Owner: maps the region ---> agent <--- Join ------'  faults, forks
//!     Session: starts it, passes signals on, finds the agent's successor, waits
//!     prints counters, then releases everything
//! ```
//!
//! The agent makes the requests to the manager for the region, its growth and its end: the user of `exec`
//! needs no rights at the manager. The region belongs to that user.
//!
//! The region is a pool of pages: every process of the program has a view of its own, and the view of a
//! forked child begins as a copy of its parent's. The supervisor holds the region from before the program
//! starts until after its end. Processes that stay in the background keep their memory as long as they live:
//! the supervisor waits for them before it destroys a temporary region.
//!
//! A temporary region that becomes full (pages that processes have changed since a fork take up room for each of them)
//! grows: the supervisor sees at the agent that processes wait for room, and has the agent request more from the
//! manager.
//!
//! If the supervisor is killed, the program gets SIGTERM. Its memory stays whole until its last process has ended; then
//! the agent has the temporary region destroyed, as it does when the manager was unreachable at the program's end.
//!
//! | module | content |
//! |---|---|
//! | [`program`] | whether a program can be served |
//! | [`sanitizer`] | programs that are built with a sanitizer |
//! | [`library`] | path of the preloaded library |
//! | [`lease`] | a region for one program |
//! | [`session`] | the program under supervision |
//! | [`growth`] | growth of a full region |
//! | [`children`] | forked children of which only the agent has a record |
//! | [`local_memory`] | memory that stayed in this machine |
//! | [`memory_limit`] | limits of this machine on a program's memory |
//! | [`gate`], [`seccomp`], `bpf` | system calls that programs with remote memory are refused, and executions |
//! | [`trapped_calls`] | system calls on remote memory, which the preloaded library carries out |
//! | [`executions`] | programs that are executed with memory of this machine alone |
//! | [`questions`] | what the gate is asked, and the answers |
//! | `keeper`, `open_question` | answer the gate's questions after the supervisor's end |

mod bpf;
pub mod children;
pub mod executions;
pub mod gate;
pub mod growth;
mod keeper;
pub mod lease;
pub mod library;
pub mod local_memory;
pub mod memory_limit;
mod open_question;
pub mod program;
pub mod questions;
pub mod sanitizer;
pub mod seccomp;
pub mod session;
pub mod trapped_calls;
