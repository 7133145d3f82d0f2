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
//! The interpreter's lock is released during every wait. A child of `fork` cannot use its parent's connections and
//! mappings: they return an error there.

// In tests this crate is empty: the interpreter provides the symbols that it needs, and a Rust test program contains no
// interpreter.
#![cfg(not(test))]
// Warns about `println!` and the like, which panic when standard output or error is closed. The project's own macros do
// not.
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
