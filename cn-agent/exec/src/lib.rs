//! # cxloe-exec: unmodified programs with remote memory
//!
//! What `cn-agent exec` does before, while and after a program runs.
//!
//! ```text
//!   cn-agent exec                                   program, and all that it starts
//!     Program: can it be served?                      libcxloe_preload.so, by LD_PRELOAD
//!     Lease: a region for it ---> agent ---> manager    |  malloc, mmap: memory of its window
//!     Owner: maps the region ---> agent <--- Join ------'  faults, forks
//!     Session: starts it, passes signals on, finds the agent's successor, waits
//!     counters, then all of it is given back
//! ```
//!
//! The agent asks the manager for the region, and for its growth and its end: who runs a program needs no right there. The
//! region belongs to the user who does.
//!
//! The region is a pool of pages: every process below gets a view of its own, a forked child that of its parent as it
//! stood. The supervisor holds the region from before the program starts until after its end; processes that go on in the
//! background after that keep their memory as long as they live, except that a temporary region is not destroyed under
//! them: the supervisor waits for them.
//!
//! A temporary region that becomes full (what processes have changed since a fork takes up room for each of them) grows: the
//! supervisor sees at the agent that processes wait for room, and has the agent ask the manager for more.
//!
//! If the supervisor is killed, the program gets SIGTERM: what nobody watches over any more ends, in the way a program is
//! usually asked to. Its memory stays whole until its last process has ended; then the agent has the temporary region
//! destroyed, as it does when the manager was away at the program's end.
//!
//! | module | what it holds |
//! |---|---|
//! | [`program`] | whether a program can be served |
//! | [`library`] | where the library is that programs are given |
//! | [`lease`] | a region for one program |
//! | [`session`] | the program under supervision |
//! | [`growth`] | whether a full region is to grow, and by how much |
//! | [`children`] | forked children that only the agent knows |
//! | [`stayed`] | how much memory stayed in this machine, and why |
//! | [`gate`], [`refused`] | system calls that programs with remote memory are refused |

pub mod children;
pub mod gate;
pub mod growth;
pub mod lease;
pub mod library;
pub mod program;
pub mod refused;
pub mod session;
pub mod stayed;

/// The exit code of a process whose memory has gone out of reach: that of a temporary failure in `sysexits.h`.
pub const OUT_OF_REACH: i32 = 75;
