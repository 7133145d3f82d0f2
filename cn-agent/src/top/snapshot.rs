//! All figures of an agent at one moment; two snapshots give the rates that `cn-agent top` shows.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cxloe_link::Clock;
use cxloe_wire::time::Time;

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{
    AgentCounters, AttachedRegion, Counters, NodeView, PagingView, Session, WorkerCounters,
};

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time by the clock of this process, for rates.
    pub at: Time,
    /// Time in milliseconds since the Unix epoch, for output.
    pub unix_ms: u64,
    pub node: NodeView,
    pub regions: Vec<AttachedRegion>,
    pub sessions: Vec<Session>,
    /// Counters since the start of the agent.
    pub counters: Counters,
    /// Counters of each worker; empty if the agent has one worker.
    pub workers: Vec<WorkerCounters>,
    /// Paging state of the mapped regions.
    pub mappings: Vec<PagingView>,
}

impl Snapshot {
    /// Queries the agent whose socket is at `path`.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn take(path: &Path, clock: &Clock) -> Result<Snapshot, ClientError> {
        let node = client::node(path)?;
        let (regions, sessions) = (client::regions(path)?, client::sessions(path)?);
        let mappings = client::paging(path, None)?;
        let AgentCounters { all: counters, workers } = client::counters_by_worker(path)?;
        let unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Ok(Snapshot { at: clock.now(), unix_ms, node, regions, sessions, counters, workers, mappings })
    }
}
