//! I/O around [`Follow`]: sends its requests to the manager by HTTP, runs its jobs on a thread, and passes answers to
//! disk and to the workers. [`cxloe_daemon::ManagerLink`] retries while the manager is unreachable.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cxloe_daemon::{
    Backoff, Connection, Contact, NodeIdentity, RegistrationEnd, StateError, StateFile, Stopped,
};
use cxloe_fabric::api::{MemoryNodeSync, RegisterMemoryNode};
use cxloe_fabric::model::{DeviceKind, Name, NameError, Share, UdpPeer, Watermark};
use cxloe_link::LinkHealth;
use cxloe_link::outer::{Peer, Peers};
use cxloe_mn_core::fill::FillBoard;
use cxloe_mn_core::follow::{AnswerUpdate, Follow, FollowStep, ManagerAnswer, ManagerRequest};
use cxloe_mn_core::job::{Job, JobError};
use cxloe_mn_core::mappings::Mappings;
use cxloe_wire::frame::{Mac, PublicKey};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::copying::Copying;
use super::kept_memory::KeptMemory;
use super::kept_shares::KeptShares;
use super::key_ring::KeyRing;
use super::last_answer::{KEEP_EVERY_MS, LastAnswer};
use super::{background, waiting};

/// Interval of progress reports to the manager during a long change, and while regions are copied from other memory
/// nodes. If half the heartbeat interval is shorter, that is used instead.
const PROGRESS_EVERY: Duration = Duration::from_millis(400);

#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// URL of the manager: `https://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// Credentials of this node; `None` before it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    pub name: String,
    pub rack: Option<Name>,
    /// Whether the manager assigns the memory in slices or as a whole.
    pub kind: DeviceKind,
    /// MAC addresses of the node's ports; CNs use the first.
    pub macs: Vec<Mac>,
    /// State of the node's links, which has the UDP address of its ports if frames are inside UDP.
    pub link: LinkHealth,
    /// Table that receives the UDP addresses of compute nodes.
    pub peers: Peers,
    /// MTU of the node's ports in bytes.
    pub mtu: u32,
    pub key: Option<PublicKey>,
    /// Store that receives the keys of compute nodes.
    pub keys: Option<KeyRing>,
    /// Board that receives the orders to copy from other memory nodes, and has the progress with them.
    pub fills: Arc<FillBoard>,
    /// State file of the highest watermark seen; `None`: not stored.
    pub state: Option<StateFile<Watermark>>,
    /// State file of the time since a manager's last answer; `None`: counted from the start of the process.
    pub heard: Option<StateFile<LastAnswer>>,
    /// State file of the shares of sealed memory; `None`: not stored.
    pub shares: Option<StateFile<KeptShares>>,
    /// State file of content that is kept and not served; `None`: not stored.
    pub kept: Option<StateFile<KeptMemory>>,
    pub backoff: Backoff,
}

impl ManagerLinkOptions {
    /// Makes options for a device in slices (`mld`), with default pauses and without state files.
    pub fn new(url: impl Into<String>, name: impl Into<String>, macs: Vec<Mac>, mtu: u32) -> Self {
        ManagerLinkOptions {
            url: url.into(),
            identity: None,
            name: name.into(),
            rack: None,
            kind: DeviceKind::default(),
            macs,
            link: LinkHealth::default(),
            peers: Peers::default(),
            mtu,
            key: None,
            keys: None,
            fills: Arc::default(),
            state: None,
            heard: None,
            shares: None,
            kept: None,
            backoff: Backoff::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    #[error("node name: {0}")]
    Name(#[from] NameError),
    /// The state file of the time since a manager's last answer cannot be read.
    #[error(transparent)]
    Heard(#[from] StateError),
    /// The URL is not valid, or the thread cannot be started.
    #[error(transparent)]
    Link(#[from] cxloe_daemon::ManagerLinkError),
    #[error("cannot start the thread that copies regions: {0}")]
    Copying(std::io::Error),
}

/// Function that returns the statistics of a node, for each sync. The manager shows them unchanged in its list of
/// memory nodes.
pub type Stats = Box<dyn FnMut() -> serde_json::Value + Send>;

/// A running link to the manager; dropping it stops the link.
#[derive(Debug)]
pub struct ManagerLink(cxloe_daemon::ManagerLink<Shell>);

impl ManagerLink {
    /// Starts the link and returns at once; the manager need not be reachable.
    pub fn start(
        mut mappings: Mappings,
        options: ManagerLinkOptions,
        stats: Stats,
    ) -> Result<Self, ManagerLinkError> {
        if let Some(file) = &options.heard {
            mappings.resume(file.load()?.silent_at(wall_ms()));
        }
        let name = Name::new(options.name.clone())?;
        let (url, backoff) = (options.url.clone(), options.backoff.clone());
        let identity = options.identity.clone();
        let pool = mappings.table().pool();
        let node = RegisterMemoryNode {
            name,
            kind: options.kind,
            macs: options.macs.iter().map(|mac| cxloe_fabric::model::Mac(mac.0)).collect(),
            udp: options.link.outer_address(),
            key: options.key,
            rack: options.rack.clone(),
            pool_bytes: pool.bytes(),
            extent_bytes: pool.extent_bytes(),
            incarnation: pool.incarnation(),
            instance_id: rand::random(),
            // Start time by the wall clock: the manager compares it to determine which of two processes is
            // the later one.
            started_ms: wall_ms(),
            mtu: options.mtu,
            seen: mappings.seen(),
        };
        let (follow, kept, began) = (Follow::new(node), mappings.seen(), Instant::now());
        let kept_shares = mappings.shares().to_vec();
        let kept_memory = KeptMemory::of(&mappings);
        let copying = Copying::start(Arc::clone(mappings.table())).map_err(ManagerLinkError::Copying)?;
        let shell = Shell {
            mappings,
            follow,
            options,
            stats,
            began,
            heard_kept_ms: None,
            kept,
            kept_shares,
            kept_memory,
            _copying: copying,
        };
        Ok(ManagerLink(cxloe_daemon::ManagerLink::start(
            &url,
            identity,
            backoff,
            shell,
            Shell::registration,
        )?))
    }

    pub fn connection(&self) -> Connection {
        self.0.connection()
    }

    /// Receiver that is notified of changes of [`connection`](Self::connection).
    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.0.watch()
    }

    /// Stops the link and returns the mappings. The next start completes a change that is still under way.
    pub fn stop(self) -> Mappings {
        self.0.stop().mappings
    }
}

struct Shell {
    mappings: Mappings,
    follow: Follow,
    options: ManagerLinkOptions,
    stats: Stats,
    /// Origin of the monotonic clock that measures the time since a manager's last answer.
    began: Instant,
    /// Time of the last write of [`LastAnswer`] to disk, in milliseconds since `began`.
    heard_kept_ms: Option<u64>,
    /// Watermark that is stored on disk.
    kept: Watermark,
    /// Shares that are stored on disk.
    kept_shares: Vec<Share>,
    /// Memory kept and not served, as it is stored on disk.
    kept_memory: KeptMemory,
    _copying: Copying,
}

impl Shell {
    /// Registers, and follows the manager until an error ends the registration.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, RegistrationEnd> {
        self.follow.restart();
        // Even if nothing can be stored, the manager's answer has the keys to admit.
        if let Err(error) = self.keep_heard() {
            tracing::warn!(%error, "cannot store the time since the manager's last answer");
        }
        loop {
            let udp = self.options.link.outer_address();
            if udp != self.follow.node().udp {
                // The manager passes the new address on to the compute nodes.
                self.follow.node_mut().udp = udp;
                self.follow.restart();
            }
            let now_ms = self.now_ms();
            let step = self.follow.next(&mut self.mappings, now_ms).map_err(|halt| contact.halted(halt))?;
            // Shares are stored before a result is sent, because the manager relies on them when it has the result.
            self.keep_shares()?;
            self.keep_memory()?;
            match step {
                FollowStep::CarryOut(job) => self.carry_out(job, contact).await?,
                FollowStep::Ask(request) => {
                    let answer = self.ask(request, contact).await?;
                    let now_ms = self.now_ms();
                    match self.follow.on_answer(answer, &mut self.mappings, now_ms) {
                        Ok(Some(news)) => self.keep(&news)?,
                        Ok(None) => {}
                        Err(halt) => return Err(contact.halted(halt)),
                    }
                }
            }
        }
    }

    async fn ask(
        &mut self,
        request: ManagerRequest,
        contact: &mut Contact,
    ) -> Result<ManagerAnswer, RegistrationEnd> {
        let client = contact.client();
        match request {
            ManagerRequest::Register(node) => {
                let registered = contact.register(client.register_memory_node(&node)).await?;
                Ok(registered
                    .map_or(ManagerAnswer::Stale, |answer| ManagerAnswer::Registered(Box::new(answer))))
            }
            ManagerRequest::NotFollowed(body) => {
                contact.not_followed(&body).await.map(|()| ManagerAnswer::Done)
            }
            ManagerRequest::ReportOrphans(report) => {
                self.registered(contact);
                contact.ask(client.report_orphans(self.name(), &report)).await?;
                Ok(ManagerAnswer::Done)
            }
            ManagerRequest::Sync(mut sync) => {
                self.registered(contact);
                // Asked before the progress is read: an order that is completed in between is then reported soon.
                if self.options.fills.is_busy() {
                    let soon = self.progress_every().as_millis();
                    sync.wait_ms = sync.wait_ms.min(u64::try_from(soon).unwrap_or(u64::MAX));
                }
                self.add_reports(&mut sync);
                let synced = contact.ask(client.sync_memory_node(self.name(), &sync)).await?;
                Ok(ManagerAnswer::Synced(Box::new(synced)))
            }
        }
    }

    fn progress_every(&self) -> Duration {
        PROGRESS_EVERY.min(Duration::from_millis(self.follow.heartbeat_ms()) / 2)
    }

    /// Adds to a sync what this module has and [`Follow`] has not.
    fn add_reports(&mut self, sync: &mut MemoryNodeSync) {
        sync.stats = (self.stats)();
        sync.fills = self.options.fills.progress();
    }

    /// Marks the registration as complete when all mappings listed by the manager are served. Logs that the first time.
    fn registered(&self, contact: &mut Contact) {
        if contact.registered() {
            let (client, extents) = (contact.client(), self.mappings.len());
            tracing::info!(url = %client.url(), name = %self.name(), extents, "registered with the manager");
        }
    }

    fn name(&self) -> &Name {
        &self.follow.node().name
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Stores the update of an answer before its commands are carried out: the watermark on disk, peers and keys in
    /// memory, so that a compute node's first Hello is answered.
    fn keep(&mut self, news: &AnswerUpdate) -> Result<(), RegistrationEnd> {
        let peer =
            |peer: &UdpPeer| Peer { mac: Mac(peer.compute_node.mac().octets()), address: peer.address };
        self.options.peers.set_from_manager(news.udp_peers.iter().map(peer).flat_map(Peer::shards));
        // The keys are in force before anything is stored, so that a full disk does not keep a revoked one in force.
        let keys_stored =
            self.options.keys.as_mut().map_or(Ok(()), |ring| ring.set_from_manager(&news.cn_keys));
        self.keep_heard()?;
        // Mappings that the manager does not list are stored before they leave the page table.
        self.keep_memory()?;
        if let Some(file) = self.options.state.as_ref().filter(|_| news.seen != self.kept) {
            file.store(&news.seen)?;
        }
        self.kept = news.seen;
        if let Some(orders) = &news.fills {
            self.options.fills.set_orders(orders);
        }
        Ok(keys_stored?)
    }

    fn keep_shares(&mut self) -> Result<(), RegistrationEnd> {
        if self.mappings.shares() == self.kept_shares {
            return Ok(());
        }
        let shares = self.mappings.shares().to_vec();
        if let Some(file) = &self.options.shares {
            file.store(&KeptShares { shares: shares.clone() })?;
        }
        self.kept_shares = shares;
        Ok(())
    }

    fn keep_memory(&mut self) -> Result<(), RegistrationEnd> {
        let kept = KeptMemory::of(&self.mappings);
        if kept == self.kept_memory {
            return Ok(());
        }
        if let Some(file) = &self.options.kept {
            file.store(&kept)?;
        }
        self.kept_memory = kept;
        Ok(())
    }

    /// Stores the time since a manager's last answer, every [`KEEP_EVERY_MS`].
    fn keep_heard(&mut self) -> Result<(), RegistrationEnd> {
        let now_ms = self.now_ms();
        let due = self.heard_kept_ms.is_none_or(|kept_ms| kept_ms + KEEP_EVERY_MS <= now_ms);
        if let Some(file) = self.options.heard.as_ref().filter(|_| due) {
            file.store(&LastAnswer { kept_ms: wall_ms(), silent_ms: self.mappings.silent_ms(now_ms) })?;
            self.heard_kept_ms = Some(now_ms);
        }
        Ok(())
    }

    /// Runs the job in a separate thread. Until the job ends, sends syncs, so that the manager counts this node as
    /// reachable and knows the job's progress, and this node has the present keys and addresses.
    async fn carry_out(&mut self, job: Job, contact: &Contact) -> Result<(), RegistrationEnd> {
        let (client, stop) = (contact.client(), contact.stop().clone());
        let (table, command) = (self.mappings.table().clone(), job.command());
        let heartbeat = Duration::from_millis(self.follow.heartbeat_ms());
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        let (ended, mut ending) = oneshot::channel();
        let work = move || {
            let outcome =
                waiting::carry_out(&job, &table, stop.flag(), &counter, background::set_lowest_priority);
            // The receiver is dropped only when the process ends.
            let _ = ended.send((job, outcome));
        };
        thread::Builder::new().name("zeroing".into()).spawn(work).map_err(RegistrationEnd::node)?;
        let (job, outcome) = loop {
            match timeout(self.progress_every(), &mut ending).await {
                Ok(done) => break done.map_err(RegistrationEnd::node)?,
                Err(_) => {
                    let done = done.load(Ordering::Relaxed);
                    let mut sync = self.follow.progress(&self.mappings, command, done);
                    self.add_reports(&mut sync);
                    let answer = timeout(heartbeat, client.sync_memory_node(self.name(), &sync)).await;
                    tracing::debug!(answered = matches!(answer, Ok(Ok(_))), "sync during a long change");
                    let Ok(Ok(answer)) = answer else { continue };
                    let now_ms = self.now_ms();
                    if let Some(news) = self.follow.on_progress(answer, &mut self.mappings, now_ms)
                        && let Err(error) = self.keep(&news)
                    {
                        // The job cannot be left; the first sync after it has the same consequence.
                        tracing::warn!(%error, "cannot store an answer of the manager during a long change");
                    }
                }
            }
        };
        let stopped = matches!(outcome, Err(JobError::Stopped));
        self.follow.on_job(job, outcome, &mut self.mappings);
        if stopped { Err(Stopped.into()) } else { Ok(()) }
    }
}

/// Time of the wall clock in milliseconds since the Unix epoch.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
