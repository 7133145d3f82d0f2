//! Ways to access memory, behind one trait, so that each pattern runs over all of them unchanged.
//!
//! ```text
//!   port     requests for lines by the line port, many in flight;   resident: its line cache
//!   mapped   loads and stores; an agent serves page faults;         resident: local pages
//!   inline   loads and stores; this thread serves its faults;       resident: local pages
//!   local    loads and stores on memory of this machine, for comparison
//! ```
//!
//! The working set is a power of two of 64-byte lines. [`Memory::set_resident`] limits the part that may be
//! local.

mod cells;
mod inline;
mod local;
mod mapped;
mod port;

use cxloe_cn_core::cache::Line;

pub(crate) use inline::over_inline;
pub use local::local;
pub(crate) use mapped::over_mapping;
pub(crate) use port::over_port;

use super::Share;
use super::flow::Flow;
use crate::MeasureError;

pub const LINE_BYTES: u64 = cxloe_wire::frame::LINE_SIZE as u64;

cxloe_wire::named! {
    /// Way in which a pattern accesses memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum AccessPath {
        /// Line by line through the line port; resident lines are in its line cache
        Port = "port",
        /// Loads and stores of a mapping whose page faults an agent serves
        Mapped = "mapped",
        /// Loads and stores of a mapping whose page faults the faulting thread serves
        Inline = "inline",
        /// Loads and stores of local memory, for comparison
        Local = "local",
    }
}

/// Working set of a pattern, accessed in one of the ways.
pub trait Memory {
    fn over(&self) -> AccessPath;

    /// Number of lines in the working set, a power of two.
    fn lines(&self) -> u64;

    /// Limits the resident part to this share of the working set. Returns the limit in effect, in bytes.
    fn set_resident(&mut self, share: Share) -> Result<u64, MeasureError>;

    /// Reads the line with index `line` in the working set.
    fn read(&mut self, line: u64) -> Result<Line, MeasureError>;

    /// Writes the line with index `line` in the working set.
    fn write(&mut self, line: u64, content: &Line) -> Result<(), MeasureError>;

    /// Reads consecutive lines from `first` on, by the fastest way that the memory has.
    fn read_run(&mut self, first: u64, out: &mut [Line]) -> Result<(), MeasureError>;

    /// Writes consecutive lines from `first` on, by the fastest way that the memory has.
    fn write_run(&mut self, first: u64, lines: &[Line]) -> Result<(), MeasureError>;

    /// Xors values into words; each pair is a word's index in the working set and a value. If a word occurs several
    /// times, all its values are applied.
    fn update(&mut self, updates: &[(u64, u64)]) -> Result<(), MeasureError>;

    /// Executes a flow of accesses. At most `depth` are in flight, or fewer if the way of access requires
    /// that.
    fn serve(&mut self, flow: &mut Flow<'_>, depth: usize) -> Result<(), MeasureError>;

    /// Waits until all written data are at the memory node.
    fn flush(&mut self) -> Result<(), MeasureError>;

    /// Returns an error after Ctrl-C.
    fn check(&self) -> Result<(), MeasureError>;
}

/// Returns the largest power of two of lines that fits in `bytes` bytes, at least 1.
fn whole_lines(bytes: u64) -> u64 {
    1 << (bytes / LINE_BYTES).max(1).ilog2()
}
