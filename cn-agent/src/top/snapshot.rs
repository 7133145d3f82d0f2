//! All that an agent tells of itself, at one moment.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cxloe_link::Clock;
use cxloe_wire::time::Time;

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{AttachedRegion, Counters, NodeView, PagingView, Session};

/// How an agent stood.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When, on the asker's clock.
    pub at: Time,
    /// When, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The node.
    pub node: NodeView,
    /// Attached regions.
    pub regions: Vec<AttachedRegion>,
    /// Sessions with memory nodes.
    pub sessions: Vec<Session>,
    /// What was counted.
    pub counters: Counters,
    /// Mapped regions.
    pub mappings: Vec<PagingView>,
}

impl Snapshot {
    /// Asks the agent at `path`.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn take(path: &Path, clock: &Clock) -> Result<Snapshot, ClientError> {
        let node = client::node(path)?;
        let (regions, sessions) = (client::regions(path)?, client::sessions(path)?);
        let (mappings, counters) = (client::paging(path, None)?, client::counters(path)?);
        let unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Ok(Snapshot { at: clock.now(), unix_ms, node, regions, sessions, counters, mappings })
    }
}
