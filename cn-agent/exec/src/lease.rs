//! A region for one program: created for it, and destroyed after it, however that ends. The agent has it created, and
//! destroys it when this process could not ask for that.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_daemon::to_stderr;
use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::Name;

use super::growth::{Growth, Refusal, Step};
use cxloe_client::client::{self, ClientError};
use cxloe_client::mapping::Owner;
use cxloe_client::message::{Attaching, PagingView, Refused};

/// What memory nodes give away by default; sizes are rounded up to it.
const EXTENT: u64 = 2 << 20;
/// How long a region may take to be attached.
const ATTACH_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks at it.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// It was created and has not been attached.
    #[error(
        "region {name} was created, but the agent has not attached it within {ATTACH_MAX:?}; look at `cn-agent list`"
    )]
    NotAttached {
        /// The region.
        name: Name,
    },
}

/// A region in use.
#[derive(Debug)]
pub struct Lease {
    name: Name,
    bytes: u64,
    /// Bytes of addresses that it has; 0 while they are not known.
    window: u64,
    /// If it was created for the occasion: the agent's socket, and what its size grows by multiples of.
    temporary: Option<(PathBuf, u64)>,
}

/// Has a temporary region grow when it is full. Waits for nothing: the agent is asked by a thread.
#[derive(Debug)]
pub struct Grower {
    name: Name,
    agent: PathBuf,
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
        let (name, unit) = client::create(socket, bytes)?;
        let bytes = bytes.next_multiple_of(EXTENT);
        let mut lease = Lease { name, bytes, window: 0, temporary: Some((socket.into(), unit)) };
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
                Ok(Lease { name, bytes, window: region.window, temporary: None })
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
        let (agent, unit) = self.temporary.clone()?;
        Some(Grower { name: self.name.clone(), agent, growth: Growth::new(unit, self.window), answer: None })
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

    /// Whether the agent has been asked and has not answered yet.
    pub fn is_asking(&self) -> bool {
        self.answer.is_some()
    }

    fn ask(&mut self, bytes: u64) {
        let (tell, answer) = channel();
        self.answer = Some(answer);
        let (agent, name) = (self.agent.clone(), self.name.clone());
        let asked = thread::Builder::new().name("grow".into()).spawn(move || {
            // Who asked may have ended.
            let _ = tell.send(grow(&agent, name, bytes));
        });
        // What it was to tell with is gone with it, and that is heard.
        drop(asked);
    }
}

fn grow(agent: &Path, name: Name, bytes: u64) -> Result<(), Refusal> {
    client::grow(agent, name, bytes).map_err(|error| match error {
        ClientError::Refused {
            reason: Refused::Manager { code: Some(ErrorCode::OverQuota | ErrorCode::NoSpace), text },
            ..
        } => Refusal::TooMuch(text),
        error => Refusal::Other(error.to_string()),
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
