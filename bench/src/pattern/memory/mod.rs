//! The ways memory is reached: each pattern runs over all of them unchanged.
//!
//! ```text
//!   port     lines asked of the line port, many in flight;      resident: its line cache
//!   mapped   loads and stores; an agent serves page faults;     resident: pages here
//!   inline   loads and stores; this thread serves its faults;   resident: pages here
//!   local    loads and stores on memory of this machine: what all others are held against
//! ```
//!
//! The working set is counted in lines of 64 bytes, a power of two of them. How much of it may be here is
//! [`Memory::set_resident`].

mod cells;
mod inline;
mod local;
mod mapped;
mod port;

use std::fmt;

use cxloe_cn_core::cache::Line;

pub use inline::over_inline;
pub use local::local;
pub use mapped::over_mapping;
pub use port::over_port;

use super::Share;
use super::flow::Flow;
use crate::measure::MeasureError;

/// Bytes of a line.
pub const LINE_BYTES: u64 = cxloe_wire::frame::LINE_SIZE as u64;

/// How memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// Line by line through the line port; what is resident lies in its line cache
    Port,
    /// Loads and stores of a mapping whose page faults an agent serves
    Mapped,
    /// Loads and stores of a mapping whose page faults are served by the thread that has them
    Inline,
    /// Loads and stores of memory of this machine, to compare with
    Local,
}

impl Over {
    /// As it stands in names of results and options.
    pub fn name(self) -> &'static str {
        match self {
            Over::Port => "port",
            Over::Mapped => "mapped",
            Over::Inline => "inline",
            Over::Local => "local",
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A working set, reached in one of the ways.
pub trait Memory {
    /// Which way.
    fn over(&self) -> Over;

    /// Lines of the working set: a power of two.
    fn lines(&self) -> u64;

    /// Lets this share of it be here. Returns the bytes that may be; the nearest possible.
    fn set_resident(&mut self, share: Share) -> Result<u64, MeasureError>;

    /// Reads a line.
    fn read(&mut self, line: u64) -> Result<Line, MeasureError>;

    /// Writes a line.
    fn write(&mut self, line: u64, content: &Line) -> Result<(), MeasureError>;

    /// Reads neighbouring lines in the quickest way there is.
    fn read_run(&mut self, first: u64, out: &mut [Line]) -> Result<(), MeasureError>;

    /// Writes neighbouring lines in the quickest way there is.
    fn write_run(&mut self, first: u64, lines: &[Line]) -> Result<(), MeasureError>;

    /// Xors values into words, by their index in the working set. Each counts, also where one word is named several times.
    fn update(&mut self, updates: &[(u64, u64)]) -> Result<(), MeasureError>;

    /// Carries out a flow of accesses, as many at once as the way and `depth` allow.
    fn serve(&mut self, flow: &mut Flow<'_>, depth: usize) -> Result<(), MeasureError>;

    /// Waits until everything written is at the memory node.
    fn flush(&mut self) -> Result<(), MeasureError>;

    /// Ends the measurement if the user asked for it.
    fn check(&self) -> Result<(), MeasureError>;
}

/// The largest power of two of lines in so many bytes.
fn whole_lines(bytes: u64) -> u64 {
    1 << (bytes / LINE_BYTES).max(1).ilog2()
}
