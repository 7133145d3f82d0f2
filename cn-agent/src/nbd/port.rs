//! A region's lines through a port of the running agent, for as long as the export is there: when the agent ends, the
//! port is opened again, and an operation waits for that a bounded time.
//!
//! An operation may be tried again because it was not answered: reads change nothing, and a write that is made twice
//! leaves what it would have left once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_wire::session::OpError;

use super::volume::Lines;
use crate::cache::Line;
use crate::client::{self, Client, ClientError};
use crate::engine::EngineError;
use crate::local::message::{AttachedRegion, Refused};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a line.
const LINE: usize = size_of::<Line>();

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

/// The lines of a region, for one connection.
#[derive(Debug)]
pub struct Port {
    place: Place,
    hpa: u64,
    size: u64,
    /// Addresses of the memory nodes that the region lies on.
    nodes: Vec<String>,
    client: Option<Client>,
    hpas: Vec<u64>,
    placed: Vec<(u64, Line)>,
}

impl Place {
    /// The region as the agent has it now.
    fn find(&self) -> Result<AttachedRegion, PortError> {
        let found = client::regions(&self.agent)?.into_iter().find(|region| region.region == self.region);
        found.ok_or_else(|| PortError::NoRegion { region: self.region.clone(), agent: self.agent.clone() })
    }

    /// Opens the region's lines.
    ///
    /// # Errors
    /// Any [`PortError`]; at once, whatever the patience.
    pub fn open(self) -> Result<Port, PortError> {
        let region = self.find()?;
        let client = Client::connect(&self.agent)?;
        Ok(Port {
            hpa: region.hpa,
            size: region.size.saturating_sub(region.beyond_window),
            nodes: region.memory_nodes.into_iter().map(|leg| leg.mac).collect(),
            place: self,
            client: Some(client),
            hpas: Vec::new(),
            placed: Vec::new(),
        })
    }
}

impl Port {
    /// Bytes of the region, as it was when this was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Carries `operation` out, again if need be.
    fn carry(
        &mut self,
        mut operation: impl FnMut(&mut Client) -> Result<(), ClientError>,
    ) -> Result<(), PortError> {
        let deadline = Instant::now() + self.place.patience;
        loop {
            let Err(error) = self.carry_once(&mut operation) else { return Ok(()) };
            if self.place.ending.load(Ordering::Relaxed) {
                return Err(PortError::Ending);
            }
            if !may_pass(&error) || Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(PAUSE);
        }
    }

    fn carry_once(
        &mut self,
        operation: &mut impl FnMut(&mut Client) -> Result<(), ClientError>,
    ) -> Result<(), PortError> {
        let client = match &mut self.client {
            Some(client) => client,
            None => {
                let client = self.reconnect()?;
                self.client.insert(client)
            }
        };
        let outcome = operation(client);
        if !matches!(outcome, Ok(()) | Err(ClientError::Engine(_))) {
            self.client = None;
        }
        Ok(outcome?)
    }

    fn reconnect(&mut self) -> Result<Client, PortError> {
        let AttachedRegion { region, hpa: found, memory_nodes, .. } = self.place.find()?;
        if found != self.hpa {
            return Err(PortError::Moved { region, expected: self.hpa, found });
        }
        self.nodes = memory_nodes.into_iter().map(|leg| leg.mac).collect();
        Ok(Client::connect(&self.place.agent)?)
    }
}

impl Lines for Port {
    type Error = PortError;

    fn read(&mut self, offset: u64, out: &mut [Line]) -> Result<(), PortError> {
        let mut hpas = std::mem::take(&mut self.hpas);
        hpas.clear();
        hpas.extend((self.hpa + offset..).step_by(LINE).take(out.len()));
        let outcome = self.carry(|client| client.read_batch(&hpas, out));
        self.hpas = hpas;
        outcome
    }

    fn write(&mut self, offset: u64, lines: &[Line]) -> Result<(), PortError> {
        let mut placed = std::mem::take(&mut self.placed);
        placed.clear();
        placed.extend((self.hpa + offset..).step_by(LINE).zip(lines.iter().copied()));
        let nodes = self.nodes.clone();
        let outcome = self.carry(|client| {
            client.write_batch(&placed)?;
            client.flush().or_else(|error| of_others(&error, &nodes).then_some(()).ok_or(error))
        });
        self.placed = placed;
        outcome
    }
}

/// Whether a flush failed only for what lies on memory nodes other than these: the agent flushes everything it has.
fn of_others(error: &ClientError, nodes: &[String]) -> bool {
    let ClientError::Engine(error) = error else { return false };
    match error {
        EngineError::NotConnected(mac) | EngineError::DataLost(mac) | EngineError::Failed { mac, .. } => {
            !nodes.contains(&mac.to_string())
        }
        _ => false,
    }
}

/// Whether it can be otherwise in a moment: an agent that starts, a session that is being opened.
fn may_pass(error: &PortError) -> bool {
    match error {
        PortError::NoRegion { .. } => true,
        PortError::Moved { .. } | PortError::Ending => false,
        PortError::Agent(error) => match error {
            ClientError::NoAgent { .. } | ClientError::AgentGone(_) => true,
            ClientError::Refused { reason, .. } => matches!(reason, Refused::Full { .. } | Refused::Ending),
            ClientError::Protocol { .. } | ClientError::Silent { .. } => false,
            ClientError::Engine(error) => matches!(
                error,
                EngineError::Unmapped(_)
                    | EngineError::Held(_)
                    | EngineError::Withdrawn(_)
                    | EngineError::NotConnected(_)
                    | EngineError::Failed { error: OpError::SessionDead | OpError::Closed, .. }
            ),
        },
    }
}
