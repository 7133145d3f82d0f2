//! The compiled part of the Python package `cxloe`: lines and mapped regions, over [`cxloe_client`].
//!
//! ```text
//!   program --- cxloe (Python: names, types, errors, the manager's REST)
//!                 |
//!               cxloe._cxloe (this library) --- cxloe-client --- the agent
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `node` | a connection to the agent: lines, bulk transfers |
//! | `mapping` | a mapped region with the buffer protocol |
//! | `region` | a region as the agent lists it |
//! | `buffer` | memory of other Python objects |
//! | `errors` | exceptions |
//!
//! No wait holds the interpreter's lock. A child of `fork` is refused what belongs to its parent.

// The interpreter provides Python's symbols, and a Rust test program has none: in tests, this crate is empty.
#![cfg(not(test))]
// Use the project's own macros: the print macros panic when standard output or error is closed.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod buffer;
mod errors;
mod mapping;
mod node;
mod region;

use pyo3::prelude::*;

/// Compiled part of the package `cxloe`.
#[pymodule]
mod _cxloe {
    #[pymodule_export]
    use super::mapping::Mapping;
    #[pymodule_export]
    use super::node::{Node, connect};
    #[pymodule_export]
    use super::region::Region;
}
