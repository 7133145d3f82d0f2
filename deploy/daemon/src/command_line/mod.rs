//! Common part of all commands: results go to standard output, everything else to standard error, and each exit code
//! has the same meaning in every program.

pub mod completion;
pub mod doctor;
mod failure;
mod humanize;
mod man;
pub mod output;
mod result_table;

pub use crate::table::{Table, breakdown, new_table};
pub use failure::{Exit, Failure, finish};
pub use humanize::for_people;
pub use man::ManArgs;
