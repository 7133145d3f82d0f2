//! The link to the manager: registers this compute node, waits for changes to its regions, and has the worker
//! attach and detach them. A thread with a small runtime of its own; the data path never waits for it.
//!
//! The manager may be away, from the start or later, for as long as it likes: what is attached goes on being
//! served, and the link starts over, pausing longer each time. Each change of the connection's state is logged
//! once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_gmm::api::{ComputeNodeSync, ErrorCode, RegisterComputeNode};
use cxloe_gmm::client::{Client, ClientError};
use cxloe_gmm::model::{CnId, Name, Region};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::attachments::{Attachments, Change};
use crate::daemon::{Order, Orders, OrdersGone};
use crate::local::message::AttachedRegion;
use crate::state_file::{StateError, StateFile};

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
    /// The pause after the first failure; it doubles with each further one.
    pub retry_min: Duration,
    /// The longest pause between two tries.
    pub retry_max: Duration,
}

impl ManagerLinkOptions {
    /// Pauses of 200 ms to 5 s.
    pub fn new(url: impl Into<String>, name: Name, cn: CnId, instance: u64) -> Self {
        ManagerLinkOptions {
            url: url.into(),
            name,
            cn,
            instance,
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(5),
        }
    }
}

/// How things stand with the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Not heard of yet.
    Connecting,
    /// Registered; its regions are attached.
    Registered,
    /// Not reachable or not to be followed, for this reason; what is attached goes on being served.
    Away(String),
}

/// Why the link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The URL cannot be one.
    #[error(transparent)]
    Url(ClientError),
    /// No thread.
    #[error("cannot start the thread that talks to the manager: {0}")]
    Thread(std::io::Error),
    /// No worker.
    #[error(transparent)]
    Worker(#[from] OrdersGone),
}

/// What ended a registration.
#[derive(Debug, thiserror::Error)]
enum Break {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Worker(#[from] OrdersGone),
    #[error("stopped")]
    Stopped,
}

#[derive(Debug, Default)]
struct Stop {
    flag: AtomicBool,
    wake: Notify,
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
    connection: watch::Receiver<Connection>,
    listing: Listing,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
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
        let client = Client::new(&options.url).map_err(ManagerLinkError::Url)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ManagerLinkError::Thread)?;
        let attachments = state.load().unwrap_or_else(|error| {
            tracing::warn!(%error, "starting without remembered regions");
            Attachments::default()
        });
        let (tell, connection) = watch::channel(Connection::Connecting);
        let (listing, stop) = (Listing::default(), Arc::new(Stop::default()));
        let mut shell = Shell {
            attachments,
            options,
            client,
            state,
            orders,
            tell,
            listing: listing.clone(),
            stop: stop.clone(),
        };
        shell.give(shell.attachments.all().collect())?;
        shell.listing.set(shell.attachments.list());
        let thread = thread::Builder::new()
            .name("manager-link".into())
            .spawn(move || runtime.block_on(shell.run()))
            .map_err(ManagerLinkError::Thread)?;
        Ok(ManagerLink { connection, listing, stop, thread: Some(thread) })
    }

    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.connection.borrow().clone()
    }

    /// What is attached.
    pub fn listing(&self) -> Listing {
        self.listing.clone()
    }
}

impl Drop for ManagerLink {
    fn drop(&mut self) {
        self.stop.flag.store(true, Ordering::Relaxed);
        self.stop.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Shell {
    attachments: Attachments,
    options: ManagerLinkOptions,
    client: Client,
    state: StateFile,
    orders: Orders,
    tell: watch::Sender<Connection>,
    listing: Listing,
    stop: Arc<Stop>,
}

impl Shell {
    async fn run(&mut self) {
        let mut pause = self.options.retry_min;
        loop {
            let Err(reason) = self.registration(&mut pause).await;
            match reason {
                Break::Stopped => return,
                // The manager restarted or forgot this node: nothing is wrong, it only has to be told again.
                Break::Client(error) if error.code() == Some(ErrorCode::NotRegistered) => {
                    tracing::info!(url = %self.options.url, "the manager asks this node to register again");
                }
                reason => self.away(reason.to_string()),
            }
            let jittered = pause.mul_f64(rand::random_range(0.5..=1.0));
            if self.unless_stopped(sleep(jittered)).await.is_err() {
                return;
            }
            pause = (pause * 2).min(self.options.retry_max);
        }
    }

    /// From a registration until something breaks it.
    async fn registration(&mut self, pause: &mut Duration) -> Result<std::convert::Infallible, Break> {
        let ManagerLinkOptions { name, cn, instance, .. } = self.options.clone();
        let client = self.client.clone();
        let request = RegisterComputeNode { cn_id: cn, name, instance_id: instance };
        let answer = self.unless_stopped(client.register_compute_node(&request)).await??;
        self.follow(&answer.regions)?;
        if self.tell.send_replace(Connection::Registered) != Connection::Registered {
            let (url, regions) = (&self.options.url, answer.regions.len());
            tracing::info!(%url, name = %request.name, %cn, regions, "registered with the manager");
        }
        *pause = self.options.retry_min;
        let (mut heartbeat_ms, mut after_event) = (answer.heartbeat_ms, answer.after_event);
        loop {
            let sync = ComputeNodeSync {
                registration: answer.registration,
                after_event,
                wait_ms: heartbeat_ms.max(1),
            };
            let synced = self.unless_stopped(client.sync_compute_node(cn, &sync)).await??;
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
        self.give(changes)?;
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

    fn away(&self, reason: String) {
        let url = &self.options.url;
        match self.tell.send_replace(Connection::Away(reason.clone())) {
            Connection::Away(old) if old == reason => tracing::debug!(%url, %reason, "still no manager"),
            _ => tracing::warn!(%url, %reason, "no manager; what is attached goes on being served"),
        }
    }

    async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Result<T, Break> {
        if self.stop.flag.load(Ordering::Relaxed) {
            return Err(Break::Stopped);
        }
        tokio::select! {
            () = self.stop.wake.notified() => Err(Break::Stopped),
            done = future => Ok(done),
        }
    }
}
