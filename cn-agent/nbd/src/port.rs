//! A port (connection to the agent for reads and writes) to a region, for as long as the export exists. When the agent
//! ends, a port of the next agent replaces this one, and the data that waits in the old data area is copied.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::session::OpError;

use super::blocks::BLOCK;
use super::requests::PortOrder;
use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::memory::SharedMemory;
use cxloe_client::message::RefusalReason;
use cxloe_client::ring::{Operation, Submission};
use cxloe_cn_core::engine::EngineError;

#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("region {region} is not attached at the agent at {}; `cn-agent list` shows those that are", .agent.display())]
    NoRegion { region: String, agent: PathBuf },
    #[error(
        "region {region} is at HPA {found:#x} now, no longer at {expected:#x}: it is another region of that name"
    )]
    Moved {
        region: String,
        /// Address of the region when the client connected.
        expected: u64,
        /// Present address of the region.
        found: u64,
    },
    #[error("the server is ending")]
    Ending,
    /// The agent's error, or a memory node's.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// Location of a region, and the limits of waiting for it.
#[derive(Clone, Debug)]
pub struct RegionLocation {
    pub agent: PathBuf,
    pub region: String,
    /// Longest time that an operation waits for an absent agent or memory node.
    pub wait_limit: Duration,
    /// Set when the server shuts down; operations then fail instead of waiting.
    pub ending: Arc<AtomicBool>,
}

/// A port to a region, for one connection.
#[derive(Debug)]
pub struct Port {
    place: RegionLocation,
    hpa: u64,
    /// Port of the present agent. If that agent is dead, the port is kept until there is a next one, because data waits
    /// in the port's memory.
    client: client::Port,
    is_there: bool,
}

/// A region that is attached at the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRegion {
    /// Host physical address of the region's first byte.
    pub hpa: u64,
    /// Size of the region's address range in bytes.
    pub size: u64,
}

impl RegionLocation {
    /// Finds the region at the agent.
    ///
    /// # Errors
    /// Any [`PortError`]; does not wait.
    pub fn find(&self) -> Result<AgentRegion, PortError> {
        let regions = client::regions(&self.agent)?;
        let Some(found) = regions.into_iter().find(|region| region.region == self.region) else {
            return Err(PortError::NoRegion { region: self.region.clone(), agent: self.agent.clone() });
        };
        Ok(AgentRegion { hpa: found.hpa, size: found.size.saturating_sub(found.beyond_window) })
    }

    /// Longest time that requests may wait at present; zero during shutdown.
    pub fn retry_limit(&self) -> Duration {
        if self.ending.load(Ordering::Relaxed) { Duration::ZERO } else { self.wait_limit }
    }
}

impl Port {
    /// Opens a port to the region that [`RegionLocation::find`] found at `hpa`.
    ///
    /// # Errors
    /// Any [`PortError`]; does not wait.
    pub fn open(place: RegionLocation, hpa: u64) -> Result<Port, PortError> {
        let client = connect(&place, hpa)?;
        Ok(Port { place, hpa, client, is_there: true })
    }

    /// The port of the present agent; `None` without an agent.
    pub fn client(&mut self) -> Option<&mut client::Port> {
        self.is_there.then_some(&mut self.client)
    }

    /// The shared memory, and the offset of the data area in it; available also without an agent.
    pub fn data(&self) -> (&SharedMemory, usize) {
        self.client.data()
    }

    /// Submits an operation to the agent. If there is no agent, the operation is dropped.
    pub fn submit(&mut self, order: &PortOrder) {
        let (memory, base) = self.client.data();
        let mut line = [0; LINE_SIZE];
        let patch = matches!(order.operation, Operation::Patch(_));
        if let Some(at) = order.line.filter(|_| patch) {
            memory.take(base + at, &mut line);
        }
        let PortOrder { tag, offset, operation, .. } = *order;
        self.client.submit(Submission { tag, operation, hpa: self.hpa + offset }, patch.then_some(&line));
    }

    pub fn mark_lost(&mut self) {
        self.is_there = false;
    }

    /// Connects to the agent that replaces the dead one, and copies the blocks at these offsets from the old data area
    /// to the new one.
    ///
    /// # Errors
    /// Any [`PortError`]; does not wait.
    pub fn reopen(&mut self, blocks: impl Iterator<Item = usize>) -> Result<(), PortError> {
        let client = connect(&self.place, self.hpa)?;
        {
            let ((from, from_base), (to, to_base)) = (self.client.data(), client.data());
            let mut block = vec![0; BLOCK];
            for at in blocks {
                from.take(from_base + at, &mut block);
                to.put(to_base + at, &block);
            }
        }
        (self.client, self.is_there) = (client, true);
        Ok(())
    }
}

fn connect(place: &RegionLocation, expected: u64) -> Result<client::Port, PortError> {
    let AgentRegion { hpa: found, .. } = place.find()?;
    if found != expected {
        return Err(PortError::Moved { region: place.region.clone(), expected, found });
    }
    Ok(Client::connect(&place.agent)?.into_port_at(found)?)
}

/// Whether the error may be temporary: an agent that is starting, or a session that is being opened.
pub fn is_transient(error: &PortError) -> bool {
    match error {
        // An agent that has just started has not attached its regions yet.
        PortError::NoRegion { .. } => true,
        PortError::Moved { .. } | PortError::Ending => false,
        PortError::Agent(error) => match error {
            ClientError::NoAgent { .. } | ClientError::AgentGone(_) => true,
            ClientError::Refused { reason, .. } => {
                matches!(reason, RefusalReason::Full { .. } | RefusalReason::Ending)
            }
            ClientError::NotPermitted { .. } | ClientError::Protocol { .. } | ClientError::Silent { .. } => {
                false
            }
            ClientError::Engine(error) => is_passing(*error),
        },
    }
}

/// Whether an operation that failed with this error may succeed when it is retried.
pub fn is_passing(error: EngineError) -> bool {
    matches!(
        error,
        EngineError::Unmapped(_)
            | EngineError::InReset(_)
            | EngineError::Draining(_)
            | EngineError::NotConnected(_)
            | EngineError::Failed { error: OpError::SessionDead | OpError::Closed, .. }
    )
}
