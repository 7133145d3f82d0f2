//! Errors in a trace, and the limits that a trace has.

use std::io;

/// Maximum number of accesses: 16 bytes of memory each.
pub const ACCESSES_MAX: usize = 10_000_000;
/// Maximum number of different pages, 16 GiB together.
pub const PAGES_MAX: usize = 1 << 22;

/// Reason why a trace cannot be replayed or converted.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("it cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("what it is converted into cannot be written: {0}")]
    Write(#[source] io::Error),
    #[error("line {line}: {fault}")]
    Line {
        /// Number of the line, from 1 on.
        line: u64,
        fault: String,
    },
    #[error("it has no access")]
    Empty,
    #[error("it has more than {max} accesses; take a part of it, for example with head", max = ACCESSES_MAX)]
    TooLong,
    #[error("it touches more than {max} pages of 4 KiB; take a part of it, for example with head", max = PAGES_MAX)]
    TooWide,
}
