//! # cxloe-preload: remote memory for programs that do not know of it
//!
//! `cn-agent exec` has the dynamic linker load this library into a program and into all that it starts. It takes the place
//! of `malloc` and `mmap` and gives them memory of a window whose pages the agent fetches from memory nodes when they are
//! touched and takes back when too many are resident. Without the environment that `cn-agent exec` gives, it does
//! nothing.
//!
//! ```text
//!   hooks ---> process: where memory comes from, from start to fork
//!     |            |
//!     |            +--> settings, helpers (threads), last_words
//!     v            v
//!   heap (dlmalloc) ---> window ---> ranges       addresses and what is known of them
//!     |                    |
//!   boot, next             '---> helpers::announce, madvise
//! ```
//!
//! Nothing here allocates but through the heap that it is, and its locks can be put right in a forked child. Everything
//! known about the window lies outside of it.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(test, allow(dead_code))]
// What went wrong is told without a heap.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

mod boot;
mod credentials;
mod heap;
mod helpers;
#[cfg(not(test))]
mod hooks;
mod last_words;
mod lock;
mod loss;
mod next;
mod process;
mod ranges;
mod settings;
mod stage;
mod sys;
mod thread;
mod window;

/// Called by the dynamic linker when it has loaded the library.
extern "C" fn constructor() {
    process::start();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
