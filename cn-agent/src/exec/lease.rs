//! A region for one program: created for it, and destroyed after it, however that ends. The agent has its name from before
//! it is created, and destroys it when this process could not.

use std::path::Path;
use std::time::{Duration, Instant};

use cxloe_gmm::api::{CreateRegion, DestroyRegion, ErrorCode};
use cxloe_gmm::client::{self as gmm, Client};
use cxloe_gmm::model::{CnId, Name};
use cxloe_gmm::to_stderr;

use crate::client::{self, ClientError};
use crate::local::message::Attaching;
use crate::mapping::Owner;
use crate::paging::TEMPORARY;

/// What memory nodes give away by default; sizes are rounded up to it.
const EXTENT: u64 = 2 << 20;
/// How long a region may take to be attached.
const ATTACH_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks at it.
const PAUSE: Duration = Duration::from_millis(10);
/// How long its destruction is waited for; the manager goes on with it afterwards.
const DESTROY_MS: u64 = 10_000;

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
    temporary: Option<(tokio::runtime::Runtime, Client)>,
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
        let lease = Lease { name, bytes, temporary: Some((runtime, manager)) };
        lease.attached(socket)?;
        Ok(lease)
    }

    /// Uses a region that is attached already, and leaves it as it is. Its content goes.
    ///
    /// # Errors
    /// [`LeaseError::Agent`], [`LeaseError::NotAttached`].
    pub fn existing(socket: &Path, name: Name) -> Result<Lease, LeaseError> {
        let regions = client::regions(socket)?;
        match regions.into_iter().find(|region| region.region == name.as_str()) {
            Some(region) => Ok(Lease { name, bytes: region.size - region.beyond_window, temporary: None }),
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

    fn attached(&self, socket: &Path) -> Result<(), LeaseError> {
        let until = Instant::now() + ATTACH_MAX;
        loop {
            let regions = client::regions(socket)?;
            let there = regions.iter().any(|region| {
                region.region == self.name.as_str() && region.attachment == Attaching::Attached
            });
            if there {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(LeaseError::NotAttached { name: self.name.clone() });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Gives up what `owner` has mapped of the region; if that was created for the occasion, what is in it goes, and then
    /// the region.
    pub fn end(self, owner: Owner) {
        if self.temporary.is_some() {
            // Where there is no agent any more, nobody has it mapped.
            let _ = owner.let_go();
        }
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
