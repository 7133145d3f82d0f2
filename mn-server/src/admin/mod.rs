//! Administration socket: a Unix socket on which a running node answers with its status.
//!
//! ```text
//!   mn-server sessions, counters          mn-server
//!   client::ask  ---- connect ---->  server::Server (a thread)
//!                                       |  asks each worker, waits a moment
//!                <--- NodeStatus ----   v  JSON, then the end of the stream
//! ```
//!
//! The server reads nothing from clients, and sends the same answer to all. Only the node's user can open the socket
//! (mode 0600). The socket hardly delays the data path: a worker writes a report only on request, between two batches.

pub mod client;
pub mod server;

use std::path::PathBuf;
use std::time::Duration;

use cxloe_link::LinkDown;
use serde::{Deserialize, Serialize};

use crate::worker::WorkerReport;

/// Version of the answer's form; client and node must have the same.
pub const VERSION: u32 = 1;
/// Maximum length of an answer in bytes: about twice that of a node with the maximum number of sessions.
pub const ANSWER_MAX: u64 = 64 << 20;

/// Age below which a report is shown without its age.
pub const FRESH: Duration = Duration::from_secs(2);

/// Status of a node, sent as JSON to each client of the socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Version of the answer's form ([`VERSION`]).
    pub version: u32,
    pub name: String,
    pub interface: String,
    /// Maximum number of unanswered reads of a stream, and of unanswered writes (R1).
    pub window: usize,
    /// Reason why the link is down; `None` while it works.
    #[serde(default)]
    pub link_down: Option<LinkDown>,
    /// Number of times the links were reopened since the node started.
    #[serde(default)]
    pub link_reopened: u64,
    pub workers: Vec<WorkerStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub worker: usize,
    /// Age of the report in nanoseconds; `None` before the worker's first report.
    pub age_ns: Option<u64>,
    #[serde(flatten)]
    pub report: WorkerReport,
}

/// Default path of the socket: `/run/cxloe/mn-server.sock` as root, else below `$XDG_RUNTIME_DIR`.
pub fn default_socket() -> PathBuf {
    cxloe_daemon::default_paths::socket("mn-server.sock")
}
