//! Programs as users have them, with part of their memory elsewhere: how much longer do they take?
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
//! What a program prints has to be what it prints in local memory. How much memory it takes is found out by running it
//! there first; shares that may be resident are of that. Trials of all ways take turns.

mod absent;
mod error;
mod figures;
mod group;
pub mod own;
mod program;
mod redis;
mod resident;
mod run;
mod stage;
mod swap;
mod table;
mod text;
mod way;

pub use absent::{Absent, absent_ways};
pub use error::ProgramsError;
pub use figures::{Figure, Paging};
pub use program::{Program, programs};
pub use resident::Resident;
pub use run::{Outcome, Plan, Sized, measure, size};
pub use stage::{Remote, Stage};
pub use swap::restore_forgotten;
pub use table::Table;
pub use way::Way;
