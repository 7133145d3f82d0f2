//! What this node does when it is in touch with the manager: it registers, waits for changes to its regions, and has
//! the worker attach them, let go of them and detach them. What the manager wants back is acknowledged as soon as the
//! worker has let go of it; until then this node asks in short intervals instead of waiting for news. Trying again
//! when the manager is away is [`daemon::ManagerLink`]'s; what is attached goes on being served meanwhile, from the
//! start, for as long as it likes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use cxloe_gmm::api::{ComputeNodeSync, RegisterComputeNode};
use cxloe_gmm::daemon::{self, Backoff, Break, Connection, Contact};
use cxloe_gmm::model::{CnId, LogicalDevice, Name, Region};

use crate::attachments::{Attachments, Change};
use crate::daemon::{LetGo, Order, Orders, OrdersGone};
use crate::local::message::{AttachedRegion, NodeView};
use crate::state_file::StateFile;

/// How long to wait for news while the worker is letting go of something that the manager waits for, in milliseconds.
const ACKNOWLEDGE_MS_MIN: u64 = 5;
const ACKNOWLEDGE_MS_MAX: u64 = 200;

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
pub struct Listing(Arc<Mutex<(Vec<AttachedRegion>, NodeView)>>);

impl Listing {
    /// The regions.
    pub fn regions(&self) -> Vec<AttachedRegion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// How this node stands.
    pub fn node(&self) -> NodeView {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn show(&self, attachments: &Attachments) {
        let node = NodeView { held: attachments.held(), devices: attachments.devices() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (attachments.list(), node);
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
        let_go: LetGo,
    ) -> Result<Self, ManagerLinkError> {
        let mut attachments = state.load().unwrap_or_else(|error| {
            tracing::warn!(%error, "starting without remembered regions");
            Attachments::default()
        });
        let (url, backoff) = (options.url.clone(), options.backoff.clone());
        let listing = Listing::default();
        let changes = attachments.begin();
        let shell = Shell { attachments, options, state, orders, let_go, listing: listing.clone() };
        shell.give(changes)?;
        shell.listing.show(&shell.attachments);
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
    let_go: LetGo,
    listing: Listing,
}

impl Shell {
    /// From a registration until something breaks it.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, Break> {
        let ManagerLinkOptions { name, cn, instance, .. } = self.options.clone();
        let client = contact.client();
        let request = RegisterComputeNode { cn_id: cn, name, instance_id: instance };
        let answer = contact.ask(client.register_compute_node(&request)).await?;
        self.follow(&answer.regions, &answer.devices, answer.held)?;
        if contact.registered() {
            let (url, regions) = (client.url(), answer.regions.len());
            tracing::info!(%url, name = %request.name, %cn, regions, "registered with the manager");
        }
        let (mut heartbeat_ms, mut after_event) = (answer.heartbeat_ms, answer.after_event);
        let mut pause_ms = ACKNOWLEDGE_MS_MIN;
        loop {
            self.hear_worker();
            pause_ms = if self.attachments.is_letting_go() {
                (pause_ms * 2).min(ACKNOWLEDGE_MS_MAX)
            } else {
                ACKNOWLEDGE_MS_MIN
            };
            let wait_ms = if self.attachments.is_letting_go() { pause_ms } else { heartbeat_ms };
            let sync = ComputeNodeSync {
                registration: answer.registration,
                after_event,
                released: self.attachments.released(),
                wait_ms: wait_ms.clamp(1, heartbeat_ms.max(1)),
            };
            let synced = contact.ask(client.sync_compute_node(cn, &sync)).await?;
            if let Some(regions) = &synced.regions {
                self.follow(regions, &synced.devices, synced.held)?;
            }
            (heartbeat_ms, after_event) = (synced.heartbeat_ms, synced.after_event);
        }
    }

    /// Takes over what the manager tells: remembered first, so that an address once shown stays.
    fn follow(&mut self, regions: &[Region], devices: &[LogicalDevice], held: bool) -> Result<(), Break> {
        let mut next = self.attachments.clone();
        let changes = next.follow(regions, held);
        next.follow_devices(devices);
        if next != self.attachments {
            self.state.store(&next)?;
            self.attachments = next;
        }
        self.give(changes).map_err(Break::node)?;
        self.listing.show(&self.attachments);
        Ok(())
    }

    /// Takes note of what the worker has let go of.
    fn hear_worker(&mut self) {
        let mut news = false;
        while let Some(ticket) = self.let_go.next() {
            if let Some(region) = self.attachments.let_go(ticket) {
                tracing::info!(%region, "let go of a region: what was modified is written back");
                news = true;
            }
        }
        if news {
            self.listing.show(&self.attachments);
        }
    }

    fn give(&self, changes: Vec<Change>) -> Result<(), OrdersGone> {
        changes.into_iter().try_for_each(|change| self.orders.give(Order::Follow(Box::new(change))))
    }
}
