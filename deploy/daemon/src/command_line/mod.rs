//! What the commands of a fabric have in common: results go to standard output, all else to standard error, and the exit
//! code says how it ended, the same number for the same reason in every program.

pub mod doctor;
mod failure;
mod man;
pub mod output;
mod shown;
mod table;

pub use failure::{Exit, Failure, finish};
pub use man::ManArgs;
pub use table::{breakdown, new_table};
