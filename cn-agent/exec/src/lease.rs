//! A region for one program: created before the program starts, and destroyed after the program has ended for
//! any reason. The agent creates and destroys the region. If this process cannot request the destruction, the
//! agent destroys the region without a request.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_daemon::to_stderr;
use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::Name;

use super::growth::{Growth, GrowthRefusal, GrowthStep};
use cxloe_client::client::{self, ClientError};
use cxloe_client::mapping::Owner;
use cxloe_client::message::{Attaching, PagingView, RefusalReason};

/// Default allocation unit of memory nodes, to which sizes of regions are rounded up.
const EXTENT: u64 = 2 << 20;
/// Maximum wait until a new region is attached.
const ATTACH_MAX: Duration = Duration::from_secs(30);
/// Interval of checks while a region is being attached.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The agent refused the request, or could not be reached.
    #[error(transparent)]
    Agent(#[from] ClientError),
    #[error("no region {name} is attached; `cn-agent list` shows those that are")]
    NoRegion { name: Name },
    #[error(
        "region {name} was created, but the agent has not attached it within {ATTACH_MAX:?}; look at `cn-agent list`"
    )]
    NotAttached { name: Name },
}

/// A region that one program uses. A temporary region is destroyed when this is dropped.
#[derive(Debug)]
pub struct Lease {
    name: Name,
    bytes: u64,
    /// Size in bytes of the region's address range; 0 while unknown.
    window: u64,
    /// For a temporary region: path of the agent's socket, and the unit of the region's size in bytes.
    temporary: Option<(PathBuf, u64)>,
}

/// Enlarges a temporary region when it is full. Does not block: a thread makes the request to the agent.
#[derive(Debug)]
pub struct Grower {
    name: Name,
    agent: PathBuf,
    growth: Growth,
    answer: Option<Receiver<Result<(), GrowthRefusal>>>,
}

impl Lease {
    /// Creates a region of at least `bytes` bytes through the manager that the agent at `socket` follows, and waits
    /// until the region is attached.
    ///
    /// # Errors
    /// Any [`LeaseError`]; then no region is left behind.
    pub fn create(socket: &Path, bytes: u64) -> Result<Lease, LeaseError> {
        let (name, unit) = client::create(socket, bytes)?;
        let bytes = bytes.next_multiple_of(EXTENT);
        let mut lease = Lease { name, bytes, window: 0, temporary: Some((socket.into(), unit)) };
        lease.window = lease.attached(socket)?;
        Ok(lease)
    }

    /// Uses a region that is attached already, and does not destroy it at the end. The content of the region is lost.
    ///
    /// # Errors
    /// [`LeaseError::Agent`], [`LeaseError::NoRegion`].
    pub fn existing(socket: &Path, name: Name) -> Result<Lease, LeaseError> {
        let regions = client::regions(socket)?;
        match regions.into_iter().find(|region| region.region == name.as_str()) {
            Some(region) => {
                let bytes = region.size - region.beyond_window;
                Ok(Lease { name, bytes, window: region.window, temporary: None })
            }
            None => Err(LeaseError::NoRegion { name }),
        }
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The grower of the region, if it is temporary.
    pub fn grower(&self) -> Option<Grower> {
        let (agent, unit) = self.temporary.clone()?;
        Some(Grower { name: self.name.clone(), agent, growth: Growth::new(unit, self.window), answer: None })
    }

    /// Waits until the region is attached; returns the size in bytes of its address range.
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

    /// Discards the memory that `owner` has mapped of the region. A temporary region loses its whole content, and is
    /// then destroyed.
    pub fn end(self, owner: Owner) {
        if self.temporary.is_some() {
            // An error means that there is no agent, so no memory is mapped.
            let _ = owner.discard();
        }
    }
}

impl Grower {
    /// Advances the growth according to the region's state at the agent; `view` is `None` if the agent did
    /// not answer. Returns the message to print, if any.
    pub fn advance(&mut self, view: Option<&PagingView>) -> Option<String> {
        let mut step = match self.answer.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return None,
            Some(answer) => {
                self.answer = None;
                let ended = Err(GrowthRefusal::Other("the thread that asked the manager has ended".into()));
                self.growth.answered(answer.unwrap_or(ended))
            }
            None => None,
        };
        if step.is_none() {
            step = view.and_then(|view| self.growth.observe(view.full, view.bytes));
        }
        match step? {
            GrowthStep::Ask(bytes) => {
                self.ask(bytes);
                None
            }
            GrowthStep::Say(why) => Some(format!(
                "region {} is full and does not grow: {why}; a process of the program is ended if that lasts for longer \
                 than --lost-wait",
                self.name
            )),
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.answer.is_some()
    }

    fn ask(&mut self, bytes: u64) {
        let (tell, answer) = channel();
        self.answer = Some(answer);
        let (agent, name) = (self.agent.clone(), self.name.clone());
        let asked = thread::Builder::new().name("grow".into()).spawn(move || {
            // A failure to send is ignored: the receiver may have been dropped.
            let _ = tell.send(grow(&agent, name, bytes));
        });
        // The thread is not joined. If it could not be started, its sender is dropped, and the receiver finds the
        // channel closed.
        drop(asked);
    }
}

fn grow(agent: &Path, name: Name, bytes: u64) -> Result<(), GrowthRefusal> {
    client::grow(agent, name, bytes).map_err(|error| match error {
        ClientError::Refused {
            reason: RefusalReason::Manager { code: Some(ErrorCode::OverQuota | ErrorCode::NoSpace), text },
            ..
        } => GrowthRefusal::TooMuch(text),
        error => GrowthRefusal::Other(error.to_string()),
    })
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((agent, _)) = self.temporary.take() else { return };
        let name = &self.name;
        if let Err(error) = client::destroy(&agent, name.clone()) {
            to_stderr!(
                "cn-agent: region {name} is not destroyed yet: {error}; the agent does that when it is back and the manager \
                 answers it"
            );
        }
    }
}
