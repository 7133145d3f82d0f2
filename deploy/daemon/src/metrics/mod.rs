//! Metrics for Prometheus: every daemon serves its own at the address of `--metrics`.
//!
//! ```text
//!   Prometheus -- GET /metrics --> MetricsServer (a thread) -- sample() --> the daemon's own copy of its counters
//!              <----- text ------     Scrape::encode        <-- Sample ---
//! ```
//!
//! Each daemon has a table of [`Definition`]s, made with [`metrics_table!`](crate::metrics_table), from which both
//! the answers and the documentation are generated.

mod address;
mod document;
mod process;
mod scrape;
mod server;

pub use address::MetricsAddress;
pub use document::document;
pub use scrape::{Definition, MetricKind, Number, PROCESS, Scrape};
pub use server::{MetricsError, MetricsListener, MetricsServer, Sample};
