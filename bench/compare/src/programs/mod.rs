//! Unmodified programs with part of their memory remote or swapped: their slowdown against local memory.
//!
//! ```text
//!   Program (program) --- in memory of this machine      local       on the machine as it is
//!            |        --- under `cn-agent exec`          exec        between two namespaces (stage)
//!            |        --- with swap                      swap-nbd    in a group of limited memory (group), on an area (swap):
//!            |                                           swap-zram   the same remote memory as a block device, memory
//!            v                                           swap-file   compressed in place, a file
//!   measure ---> Figures: seconds, times those of local ---> table, JSON, CSV, page
//! ```
//!
//! A program's output has to equal its output in local memory. Its footprint is determined by a run in local memory;
//! resident shares refer to it. Trials of all ways alternate.

mod absent;
pub mod children;
mod error;
mod figures;
mod group;
mod memory_backing;
pub mod own;
mod program;
mod redis;
mod resident;
mod run;
mod stage;
mod swap;
mod table;
mod text;

pub use absent::{Absent, absent_ways};
pub use error::ProgramsError;
pub use figures::{Figure, Paging};
pub use memory_backing::MemoryBacking;
pub use program::{Program, programs};
pub use resident::Resident;
pub use run::{ComparisonResults, Plan, Sized, measure, size};
pub use stage::{Remote, Stage};
pub use swap::restore_forgotten;
pub use table::ProgramsTable;
