//! A region's lines through a port of the running agent, for as long as the export is there: when the agent ends, the port
//! of its successor takes over, with the data that waits in the old one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::session::OpError;

use super::blocks::BLOCK;
use super::requests::Order;
use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::memory::SharedMemory;
use cxloe_client::message::Refused;
use cxloe_client::ring::{Operation, Submission};
use cxloe_cn_core::engine::EngineError;

/// Why a region's lines are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The agent has no such region.
    #[error("region {region} is not attached at the agent at {}; `cn-agent list` shows those that are", .agent.display())]
    NoRegion {
        /// The region.
        region: String,
        /// The agent's socket.
        agent: PathBuf,
    },
    /// It is not what it was when the client came.
    #[error(
        "region {region} is at HPA {found:#x} now, no longer at {expected:#x}: it is another region of that name"
    )]
    Moved {
        /// The region.
        region: String,
        /// Where it was.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// The server is ending.
    #[error("the server is ending")]
    Ending,
    /// The agent, or a memory node.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// Where a region is, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The agent's socket.
    pub agent: PathBuf,
    /// The region's name.
    pub region: String,
    /// How long an operation waits for an agent or a memory node that is away.
    pub patience: Duration,
    /// Set when the server ends: nothing waits from then on.
    pub ending: Arc<AtomicBool>,
}

/// A region's lines, for one connection.
#[derive(Debug)]
pub struct Port {
    place: Place,
    hpa: u64,
    /// Of an agent that has gone too, until the next one is found: data waits in its memory.
    client: Client,
    is_there: bool,
}

/// A region as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its first address.
    pub hpa: u64,
    /// Its bytes that have addresses.
    pub size: u64,
}

impl Place {
    /// The region as the agent has it now.
    ///
    /// # Errors
    /// Any [`PortError`]; at once, whatever the patience.
    pub fn find(&self) -> Result<Found, PortError> {
        let regions = client::regions(&self.agent)?;
        let Some(found) = regions.into_iter().find(|region| region.region == self.region) else {
            return Err(PortError::NoRegion { region: self.region.clone(), agent: self.agent.clone() });
        };
        Ok(Found { hpa: found.hpa, size: found.size.saturating_sub(found.beyond_window) })
    }

    /// How long requests wait now.
    pub fn patience(&self) -> Duration {
        if self.ending.load(Ordering::Relaxed) { Duration::ZERO } else { self.patience }
    }
}

impl Port {
    /// Opens the lines of the region that was found at `hpa`.
    ///
    /// # Errors
    /// Any [`PortError`]; at once, whatever the patience.
    pub fn open(place: Place, hpa: u64) -> Result<Port, PortError> {
        let client = connect(&place, hpa)?;
        Ok(Port { place, hpa, client, is_there: true })
    }

    /// The port of the agent, if there is one at present.
    pub fn client(&mut self) -> Option<&mut Client> {
        self.is_there.then_some(&mut self.client)
    }

    /// The shared memory, and the byte of it that is the data area's first; also when the agent has gone.
    pub fn data(&self) -> (&SharedMemory, usize) {
        self.client.data()
    }

    /// Gives an operation to the agent, if it is there.
    pub fn submit(&mut self, order: &Order) {
        let (memory, base) = self.client.data();
        let mut line = [0; LINE_SIZE];
        let patch = matches!(order.operation, Operation::Patch(_));
        if let Some(at) = order.line.filter(|_| patch) {
            memory.take(base + at, &mut line);
        }
        let Order { tag, offset, operation, .. } = *order;
        self.client.submit(Submission { tag, operation, hpa: self.hpa + offset }, patch.then_some(&line));
    }

    /// The agent is of no use any more.
    pub fn lose(&mut self) {
        self.is_there = false;
    }

    /// Finds the agent's successor, and takes what is in these blocks of the data area along.
    ///
    /// # Errors
    /// Any [`PortError`]; at once, whatever the patience.
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

fn connect(place: &Place, expected: u64) -> Result<Client, PortError> {
    let Found { hpa: found, .. } = place.find()?;
    if found != expected {
        return Err(PortError::Moved { region: place.region.clone(), expected, found });
    }
    Ok(Client::connect(&place.agent)?)
}

/// Whether it can be otherwise in a moment: an agent that starts, a session that is being opened.
pub fn may_pass(error: &PortError) -> bool {
    match error {
        PortError::NoRegion { .. } => true,
        PortError::Moved { .. } | PortError::Ending => false,
        PortError::Agent(error) => match error {
            ClientError::NoAgent { .. } | ClientError::AgentGone(_) => true,
            ClientError::Refused { reason, .. } => matches!(reason, Refused::Full { .. } | Refused::Ending),
            ClientError::Protocol { .. } | ClientError::Silent { .. } => false,
            ClientError::Engine(error) => is_passing(*error),
        },
    }
}

/// Whether an operation that failed of this may be done in a moment.
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
