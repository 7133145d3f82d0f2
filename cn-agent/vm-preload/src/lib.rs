//! # cxloe-vm-preload: guest memory that lies in memory nodes, for unmodified virtual machine monitors
//!
//! `cn-agent vm` has the dynamic linker load this library into QEMU, and passes it a file that represents a region.
//! Where the monitor maps that file, this library makes the mapping a member of the region's space: from then on the
//! agent serves the guest's page faults and evicts pages.
//!
//! ```text
//!   monitor --mmap--------> hooks ---> mappings: userfaultfd, Join, a helper thread ---> agent
//!           --madvise-----> hooks ---> discard first, then the call   (a balloon gives pages back)
//!           --fallocate---> hooks ---'
//!           --munmap------> hooks ---> leave, then the call
//! ```
//!
//! Everything else that the monitor does is passed to the kernel unchanged, and so is everything in a process
//! without the environment variables that `cn-agent vm` sets. If a mapping cannot become a member, the reason
//! is printed on standard error and the monitor's `mmap` fails.

// `print!` and `eprint!` are forbidden, since they panic when the stream cannot be written.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(test, allow(dead_code, reason = "what hooks use is there for them alone"))]

#[cfg(not(test))]
mod hooks;
mod mappings;
mod outsiders;
mod reentry;
mod settings;
mod spans;
