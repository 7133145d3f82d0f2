//! # cxloe-preload: remote memory for unmodified programs
//!
//! `cn-agent exec` makes the dynamic linker load this library into a program and all of its descendants. The library
//! interposes `malloc` and `mmap`, which then return memory of a window: the agent fetches the window's pages from
//! memory nodes when they are touched, and evicts pages when too many are resident. Without the environment variables
//! that `cn-agent exec` sets, the library does nothing.
//!
//! ```text
//!   hooks ---> process: where memory comes from, from start to fork
//!     |            |
//!     |            +--> settings, helpers (threads), final_message
//!     +--> mapping <-- traps: system calls on the window that bypass the hooks
//!     v            v
//!   heap (dlmalloc) ---> window ---> ranges       addresses and what is known of them
//!     |                    |
//!   boot, next_definition  '---> helpers::announce, madvise
//! ```
//!
//! Nothing here allocates except from the heap that this library provides, and all locks can be reset in a forked
//! child. All records of the window lie outside of it.

// `print!` and `eprint!` are forbidden, since they panic when the stream cannot be written.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(test, allow(dead_code))]
// Large error values are accepted, because a box for them would need the heap.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

mod boot;
mod credentials;
mod final_message;
mod heap;
mod helpers;
#[cfg(not(test))]
mod hooks;
mod lock;
mod loss;
mod mapping;
mod next_definition;
mod process;
mod protection;
mod ranges;
mod robust_locks;
mod settings;
mod stage;
mod sys;
mod thread;
mod traps;
mod window;
mod window_use;

/// Installs the handler of trapped system calls. Called if the window lies at the address at which the kernel traps
/// system calls.
fn placed() {
    traps::install();
}

/// Entry point that the dynamic linker calls when it has loaded the library.
extern "C" fn constructor() {
    process::start();
}

#[cfg(not(test))]
#[expect(unsafe_code, reason = "the dynamic linker calls the functions of this section")]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
