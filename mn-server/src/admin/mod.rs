//! How operators look into a running node: a Unix socket on which it tells how things stand.
//!
//! ```text
//!   mn-server sessions, counters          mn-server
//!   client::ask  ---- connect ---->  server::Server (a thread)
//!                                       |  asks each worker, waits a moment
//!                <--- NodeStatus ----   v  JSON, then the end of the stream
//! ```
//!
//! Nothing is read from who connects: there is one answer for all, so there is nothing to get wrong. The socket is
//! the user's own (mode 0600), and the data path knows nothing of it: workers write a report between two batches when
//! one is wanted.

pub mod client;
pub mod server;

use std::path::PathBuf;
use std::time::Duration;

use cxloe_link::LinkDown;
use serde::{Deserialize, Serialize};

use crate::worker::WorkerReport;

/// Version of the answer; both ends have to have the same.
pub const VERSION: u32 = 1;
/// The longest answer in bytes: that of a node with all the sessions there can be has about half of it.
pub const ANSWER_MAX: u64 = 64 << 20;

/// Reports older than this are shown with their age.
pub const FRESH: Duration = Duration::from_secs(2);

/// How things stand at a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// [`VERSION`].
    pub version: u32,
    /// The node's name in the fabric.
    pub name: String,
    /// The interface it serves on.
    pub interface: String,
    /// Reads, and as many writes, that a stream may have unanswered (R1).
    pub window: usize,
    /// Why it has no link at present; `None` while it has one.
    #[serde(default)]
    pub link_down: Option<LinkDown>,
    /// How often its links have been opened again since it started.
    #[serde(default)]
    pub link_reopened: u64,
    /// Its workers, by number.
    pub workers: Vec<WorkerStatus>,
}

/// How things stand at a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub worker: usize,
    /// How old the report is, in nanoseconds; `None` when there is none, for the worker has not come to it yet.
    pub age_ns: Option<u64>,
    /// What it has done.
    #[serde(flatten)]
    pub report: WorkerReport,
}

/// Where a node listens unless told otherwise: `/run/cxloe/mn-server.sock` as root, else below `$XDG_RUNTIME_DIR`.
pub fn default_socket() -> PathBuf {
    cxloe_daemon::places::socket("mn-server.sock")
}
