//! What every report of this system has as standard, and the limits that somebody else's code has measured beside it.
//!
//! ```text
//!   costs (measure)       cycles per line and byte at both ends
//!   load                  p99 and p99.9 of a line when 70 % of the most there is is asked for
//!   evictions (measure)   first touches of pages, with and without eviction
//!   probe                 independent C programs, compiled here, by turns with the same of ours
//! ```

mod load;
pub mod probe;

pub use load::{LoadPlan, under_load};
