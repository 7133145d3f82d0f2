//! Measurements of every standard report, and lower limits measured by independent code.
//!
//! ```text
//!   costs (measure)       cycles per line and byte at both ends
//!   load                  p99 and p99.9 of a line at 70 % of the highest rate
//!   evictions (measure)   first touches of pages, with and without eviction
//!   probe                 independent C programs, compiled here, alternating with our measurements of the same limits
//! ```

mod load;
pub mod probe;

pub use load::{LoadPlan, under_load};
