//! A port (connection to the agent for reads and writes) to a region, for as long as the export exists. When the agent
//! ends, a port of the next agent replaces this one, and the data that waits is copied to its data area.
//!
//! Without an agent, data waits in memory of this process: an agent that counts as dead because it did not answer may
//! run again, read the writes that it had been given, and put what it has read into the data area that it shares.

use std::io;
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
use cxloe_client::ring::{DATA_BYTES, Operation, Submission};
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
    #[error("no memory for the data of a client: {0}")]
    Memory(io::Error),
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
    /// Port of the present agent, or of the last one.
    client: client::Port,
    is_there: bool,
    /// The data area while there is no agent.
    kept: SharedMemory,
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
        // Takes up no memory before data is kept in it.
        let kept = SharedMemory::create(DATA_BYTES).map_err(PortError::Memory)?;
        Ok(Port { place, hpa, client, is_there: true, kept })
    }

    /// The port of the present agent; `None` without an agent.
    pub fn client(&mut self) -> Option<&mut client::Port> {
        self.is_there.then_some(&mut self.client)
    }

    /// The memory with the data area, and the offset of the data area in it; available also without an agent.
    pub fn data(&self) -> (&SharedMemory, usize) {
        if self.is_there { self.client.data() } else { (&self.kept, 0) }
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

    /// Records that there is no agent any more. The blocks at these offsets of the data area are kept.
    pub fn mark_lost(&mut self, blocks: impl Iterator<Item = usize>) {
        if self.is_there {
            copy(self.client.data(), (&self.kept, 0), blocks);
            self.is_there = false;
        }
    }

    /// Connects to the agent that replaces the dead one, and copies the blocks at these offsets to the new data area.
    ///
    /// # Errors
    /// Any [`PortError`]; does not wait.
    pub fn reopen(&mut self, blocks: impl Iterator<Item = usize>) -> Result<(), PortError> {
        let client = connect(&self.place, self.hpa)?;
        copy(self.data(), client.data(), blocks);
        (self.client, self.is_there) = (client, true);
        Ok(())
    }
}

/// Copies blocks from one data area to another; each area is at an offset in its memory.
fn copy(from: (&SharedMemory, usize), to: (&SharedMemory, usize), blocks: impl Iterator<Item = usize>) {
    let mut block = vec![0; BLOCK];
    for at in blocks {
        from.0.take(from.1 + at, &mut block);
        to.0.put(to.1 + at, &block);
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
        PortError::Moved { .. } | PortError::Ending | PortError::Memory(_) => false,
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc;
    use std::thread;

    use cxloe_client::memory::send_with_descriptor;
    use cxloe_client::message::{self, AgentAnswer, AgentCall, AgentRequest, AttachedRegion, REQUEST_MAX};
    use cxloe_client::ring::{AgentEnd, PORT_BYTES};

    use super::*;

    const HPA: u64 = 1 << 40;

    /// Acts as an agent with one region, until it has opened this many ports.
    fn serve(listener: &UnixListener, ports: usize, opened: &mpsc::Sender<(AgentEnd, UnixStream)>) {
        let mut count = 0;
        while count < ports {
            let (mut socket, _) = listener.accept().unwrap();
            let request: AgentRequest = message::read(&mut socket, REQUEST_MAX).unwrap();
            match request.ask {
                AgentCall::Regions => {
                    let (region, size) = ("disk".into(), 1 << 20);
                    let found = AttachedRegion { region, hpa: HPA, size, ..AttachedRegion::default() };
                    message::write(&mut socket, &AgentAnswer::Regions(vec![found])).unwrap();
                }
                AgentCall::Port => {
                    let end = AgentEnd::new(SharedMemory::create(PORT_BYTES).unwrap());
                    let answer = AgentAnswer::Port { bytes: PORT_BYTES as u64, workers: 1 };
                    let answer = message::encode(&answer);
                    send_with_descriptor(&socket, &answer, end.memory().descriptor()).unwrap();
                    opened.send((end, socket)).unwrap();
                    count += 1;
                }
                other => panic!("no request of a port: {other:?}"),
            }
        }
    }

    #[test]
    fn an_agent_that_runs_again_leaves_data_alone_that_came_in_the_meantime() {
        let agent = std::env::temp_dir().join(format!("cxloe-nbd-port-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&agent);
        let listener = UnixListener::bind(&agent).unwrap();
        let (tell, opened) = mpsc::channel();
        thread::spawn(move || serve(&listener, 2, &tell));
        let place = RegionLocation {
            agent: agent.clone(),
            region: "disk".into(),
            wait_limit: Duration::ZERO,
            ending: Arc::default(),
        };
        let mut port = Port::open(place, HPA).unwrap();
        let (slow, _socket) = opened.recv().unwrap();
        let put = |port: &Port, at: usize, byte: u8| {
            let (memory, base) = port.data();
            memory.put(base + at, &[byte; BLOCK]);
        };
        put(&port, BLOCK, 1);
        let base = port.data().1;
        port.mark_lost([BLOCK].into_iter());
        // The first block was that of a read which has failed, and is now that of a write.
        put(&port, 0, 2);
        slow.memory().put(base, &[9; BLOCK]);
        port.reopen([0, BLOCK].into_iter()).unwrap();
        let mut data = vec![0; 2 * BLOCK];
        let (memory, base) = port.data();
        memory.take(base, &mut data);
        assert!(data[..BLOCK].iter().all(|byte| *byte == 2), "the payload of the write");
        assert!(data[BLOCK..].iter().all(|byte| *byte == 1), "what waited before");
        std::fs::remove_file(&agent).unwrap();
    }
}
