//! What this node does when it is in touch with the manager: it registers, waits for changes to its regions, and has
//! the worker attach and detach them. Trying again when the manager is away is [`daemon::ManagerLink`]'s; what is
//! attached goes on being served meanwhile, from the start, for as long as it likes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use cxloe_gmm::api::{ComputeNodeSync, RegisterComputeNode};
use cxloe_gmm::daemon::{self, Backoff, Break, Connection, Contact};
use cxloe_gmm::model::{CnId, Name, Region};

use crate::attachments::{Attachments, Change};
use crate::daemon::{Order, Orders, OrdersGone};
use crate::local::message::AttachedRegion;
use crate::state_file::StateFile;

/// Where the manager is and what it is to know of this node.
#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// `http://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// This node's name.
    pub name: Name,
    /// Its identity: the address of its link.
    pub cn: CnId,
    /// This process's instance id, the same as in its sessions.
    pub instance: u64,
    /// The pauses between two tries.
    pub backoff: Backoff,
}

impl ManagerLinkOptions {
    /// The usual pauses.
    pub fn new(url: impl Into<String>, name: Name, cn: CnId, instance: u64) -> Self {
        ManagerLinkOptions { url: url.into(), name, cn, instance, backoff: Backoff::default() }
    }
}

/// Why the link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The URL cannot be one, or there is no thread.
    #[error(transparent)]
    Link(#[from] daemon::ManagerLinkError),
    /// No worker.
    #[error(transparent)]
    Worker(#[from] OrdersGone),
}

/// What is attached, as others may look at it.
#[derive(Clone, Debug, Default)]
pub struct Listing(Arc<Mutex<Vec<AttachedRegion>>>);

impl Listing {
    /// A copy of the list.
    pub fn get(&self) -> Vec<AttachedRegion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, list: Vec<AttachedRegion>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }
}

/// A running link to the manager; ends when dropped.
#[derive(Debug)]
pub struct ManagerLink {
    link: daemon::ManagerLink<Shell>,
    listing: Listing,
}

impl ManagerLink {
    /// Attaches what `state` remembers, then starts the link. Returns at once; the manager need not be there.
    ///
    /// # Errors
    /// Any [`ManagerLinkError`].
    pub fn start(
        options: ManagerLinkOptions,
        state: StateFile,
        orders: Orders,
    ) -> Result<Self, ManagerLinkError> {
        let attachments = state.load().unwrap_or_else(|error| {
            tracing::warn!(%error, "starting without remembered regions");
            Attachments::default()
        });
        let (url, backoff) = (options.url.clone(), options.backoff.clone());
        let listing = Listing::default();
        let shell = Shell { attachments, options, state, orders, listing: listing.clone() };
        shell.give(shell.attachments.all().collect())?;
        shell.listing.set(shell.attachments.list());
        let link = daemon::ManagerLink::start(&url, backoff, shell, Shell::registration)?;
        Ok(ManagerLink { link, listing })
    }

    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.link.connection()
    }

    /// What is attached.
    pub fn listing(&self) -> Listing {
        self.listing.clone()
    }
}

struct Shell {
    attachments: Attachments,
    options: ManagerLinkOptions,
    state: StateFile,
    orders: Orders,
    listing: Listing,
}

impl Shell {
    /// From a registration until something breaks it.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, Break> {
        let ManagerLinkOptions { name, cn, instance, .. } = self.options.clone();
        let client = contact.client();
        let request = RegisterComputeNode { cn_id: cn, name, instance_id: instance };
        let answer = contact.ask(client.register_compute_node(&request)).await?;
        self.follow(&answer.regions)?;
        if contact.registered() {
            let (url, regions) = (client.url(), answer.regions.len());
            tracing::info!(%url, name = %request.name, %cn, regions, "registered with the manager");
        }
        let (mut heartbeat_ms, mut after_event) = (answer.heartbeat_ms, answer.after_event);
        loop {
            let sync = ComputeNodeSync {
                registration: answer.registration,
                after_event,
                wait_ms: heartbeat_ms.max(1),
            };
            let synced = contact.ask(client.sync_compute_node(cn, &sync)).await?;
            if let Some(regions) = &synced.regions {
                self.follow(regions)?;
            }
            (heartbeat_ms, after_event) = (synced.heartbeat_ms, synced.after_event);
        }
    }

    /// Takes over what the manager tells: remembered first, so that an address once shown stays.
    fn follow(&mut self, regions: &[Region]) -> Result<(), Break> {
        let mut next = self.attachments.clone();
        let changes = next.follow(regions);
        if next != self.attachments {
            self.state.store(&next)?;
            self.attachments = next;
        }
        self.give(changes).map_err(Break::node)?;
        self.listing.set(self.attachments.list());
        Ok(())
    }

    fn give(&self, changes: Vec<Change>) -> Result<(), OrdersGone> {
        for change in changes {
            self.orders.give(match change {
                Change::Attach(a) => Order::Attach { region: Box::new(a.region), hpa: a.hpa },
                Change::Detach { attachment: a, keep } => {
                    Order::Detach { region: Box::new(a.region), hpa: a.hpa, keep }
                }
            })?;
        }
        Ok(())
    }
}
