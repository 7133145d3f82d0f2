//! A region for one program: created for it, and destroyed after it, however that ends. The agent has its name from before
//! it is created, and destroys it when this process could not.

use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_daemon::to_stderr;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, ErrorCode, GrowRegion};
use cxloe_fabric::client::{self as gmm, Client};
use cxloe_fabric::model::{ByteSize, CnId, Name};

use super::growth::{Growth, Refusal, Step};
use cxloe_client::client::{self, ClientError};
use cxloe_client::mapping::Owner;
use cxloe_client::message::{Attaching, PagingView};
use cxloe_cn_core::mapped::TEMPORARY;

/// What memory nodes give away by default; sizes are rounded up to it.
const EXTENT: u64 = 2 << 20;
/// How long a region may take to be attached.
const ATTACH_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks at it.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How long its destruction is waited for; the manager goes on with it afterwards.
const DESTROY_MS: u64 = 10_000;
/// How long its growth may take; whoever waits for room waits no longer than for memory nodes.
const GROW_MS: u64 = 10_000;

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The manager.
    #[error(transparent)]
    Manager(#[from] gmm::ClientError),
    /// The agent says of itself what cannot be.
    #[error("the agent does not say which compute node it is: {0}; use programs of one release")]
    Node(String),
    /// It was created and has not been attached.
    #[error(
        "region {name} was created, but the agent has not attached it within {ATTACH_MAX:?}; look at `cn-agent list`"
    )]
    NotAttached {
        /// The region.
        name: Name,
    },
    /// The system.
    #[error("cannot talk to the manager: {0}")]
    System(std::io::Error),
}

/// A region in use.
#[derive(Debug)]
pub struct Lease {
    name: Name,
    bytes: u64,
    /// Bytes of addresses that it has; 0 while they are not known.
    window: u64,
    /// Where its manager listens.
    manager: String,
    temporary: Option<(tokio::runtime::Runtime, Client)>,
}

/// Has a temporary region grow when it is full. Waits for nothing: the manager is asked by a thread.
#[derive(Debug)]
pub struct Grower {
    name: Name,
    manager: String,
    growth: Growth,
    answer: Option<Receiver<Result<(), Refusal>>>,
}

impl Lease {
    /// Creates a region of at least `bytes` bytes through the manager that the agent at `socket` follows, and waits until
    /// it is attached.
    ///
    /// # Errors
    /// Any [`LeaseError`]; nothing is left behind then.
    pub fn create(socket: &Path, bytes: u64) -> Result<Lease, LeaseError> {
        let node = client::node(socket)?;
        let owner: CnId = node.cn.parse().map_err(|error| LeaseError::Node(format!("{error}")))?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LeaseError::System)?;
        let manager = Client::new(&node.manager)?;
        let name = format!("{TEMPORARY}{}-{:08x}", std::process::id(), rand::random::<u32>());
        let name = Name::new(name).map_err(|error| LeaseError::Node(error.to_string()))?;
        let bytes = bytes.next_multiple_of(EXTENT);
        client::lease(socket, name.clone())?;
        runtime.block_on(manager.create_region(&CreateRegion::new(name.clone(), bytes, owner)))?;
        let mut lease =
            Lease { name, bytes, window: 0, manager: node.manager, temporary: Some((runtime, manager)) };
        lease.window = lease.attached(socket)?;
        Ok(lease)
    }

    /// Uses a region that is attached already, and leaves it as it is. Its content goes.
    ///
    /// # Errors
    /// [`LeaseError::Agent`], [`LeaseError::NotAttached`].
    pub fn existing(socket: &Path, name: Name) -> Result<Lease, LeaseError> {
        let regions = client::regions(socket)?;
        match regions.into_iter().find(|region| region.region == name.as_str()) {
            Some(region) => {
                let bytes = region.size - region.beyond_window;
                Ok(Lease { name, bytes, window: region.window, manager: String::new(), temporary: None })
            }
            None => Err(LeaseError::NotAttached { name }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What has the region grow, if it was created for the occasion.
    pub fn grower(&self) -> Option<Grower> {
        let (runtime, manager) = self.temporary.as_ref()?;
        let nodes = runtime.block_on(manager.memory_nodes()).unwrap_or_default();
        let unit = nodes.iter().map(|node| node.node.extent_bytes).fold(EXTENT, u64::max);
        let growth = Growth::new(unit, self.window);
        Some(Grower { name: self.name.clone(), manager: self.manager.clone(), growth, answer: None })
    }

    /// Waits until it is attached; bytes of addresses it has.
    fn attached(&self, socket: &Path) -> Result<u64, LeaseError> {
        let until = Instant::now() + ATTACH_MAX;
        loop {
            let regions = client::regions(socket)?;
            let there = regions.iter().find(|region| {
                region.region == self.name.as_str() && region.attachment == Attaching::Attached
            });
            if let Some(region) = there {
                return Ok(region.window);
            }
            if Instant::now() > until {
                return Err(LeaseError::NotAttached { name: self.name.clone() });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Gives up what `owner` has mapped of the region; if that was created for the occasion, what is in it goes, and then
    /// the region.
    pub fn end(self, owner: Owner) {
        if self.temporary.is_some() {
            // Where there is no agent any more, nobody has it mapped.
            let _ = owner.discard();
        }
    }
}

impl Grower {
    /// Goes on, with how the region stands at the agent if that could be seen. What there is to say.
    pub fn go_on(&mut self, view: Option<&PagingView>) -> Option<String> {
        let mut step = match self.answer.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return None,
            Some(answer) => {
                self.answer = None;
                let ended = Err(Refusal::Other("the thread that asked the manager has ended".into()));
                self.growth.answered(answer.unwrap_or(ended))
            }
            None => None,
        };
        if step.is_none() {
            step = view.and_then(|view| self.growth.look(view.full, view.bytes));
        }
        match step? {
            Step::Ask(bytes) => {
                self.ask(bytes);
                None
            }
            Step::Say(why) => Some(format!(
                "region {} is full and does not grow: {why}; a process of the program is ended if that lasts for longer \
                 than --lost-wait",
                self.name
            )),
        }
    }

    /// Whether the manager has been asked and has not answered yet.
    pub fn is_asking(&self) -> bool {
        self.answer.is_some()
    }

    fn ask(&mut self, bytes: u64) {
        let (tell, answer) = channel();
        self.answer = Some(answer);
        let (manager, name) = (self.manager.clone(), self.name.clone());
        let asked = thread::Builder::new().name("grow".into()).spawn(move || {
            // Who asked may have ended.
            let _ = tell.send(grow(&manager, &name, bytes));
        });
        // What it was to tell with is gone with it, and that is heard.
        drop(asked);
    }
}

/// With a client of its own: connections are those of the thread that made them.
fn grow(manager: &str, name: &Name, bytes: u64) -> Result<(), Refusal> {
    let other = |error: std::io::Error| Refusal::Other(LeaseError::System(error).to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(other)?;
    let manager = Client::new(manager).map_err(|error| Refusal::Other(error.to_string()))?;
    let grow = GrowRegion { size: ByteSize(bytes), on: Vec::new(), wait_ms: GROW_MS };
    match runtime.block_on(manager.grow_region(name, &grow)) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.code(), Some(ErrorCode::OverQuota | ErrorCode::NoSpace)) => {
            Err(Refusal::TooMuch(error.to_string()))
        }
        Err(error) => Err(Refusal::Other(error.to_string())),
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((runtime, manager)) = self.temporary.take() else { return };
        let now = DestroyRegion { force: true, wait_ms: DESTROY_MS };
        let name = &self.name;
        match runtime.block_on(manager.destroy_region(name, now)) {
            Ok(_) => {}
            Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
            Err(error) => to_stderr!(
                "cn-agent: region {name} is not destroyed yet: {error}; the agent does that when the manager answers it"
            ),
        }
    }
}
