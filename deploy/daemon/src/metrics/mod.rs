//! Metrics, as Prometheus has them: every daemon serves its own where `--metrics` says, and is asked for them there.
//!
//! ```text
//!   Prometheus -- GET /metrics --> MetricsServer (a thread) -- sample() --> the daemon's own copy of its counters
//!              <----- text ------     Scrape::encode        <-- Sample ---
//! ```
//!
//! What a daemon has to offer is a table of [`Definition`]s of its own, made with
//! [`metrics_table!`](crate::metrics_table): what is served and what is documented are the same table.

mod address;
mod document;
mod process;
mod scrape;
mod server;

pub use address::MetricsAddress;
pub use document::document;
pub use scrape::{Definition, Kind, Number, PROCESS, Scrape};
pub use server::{MetricsError, MetricsListener, MetricsServer, Sample};
