//! What this node does when it is in touch with the manager: it registers, waits for commands, carries them out, and
//! reports results. Trying again when the manager is away is [`cxloe_daemon::ManagerLink`]'s.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cxloe_daemon::{Backoff, Break, Connection, Contact, NodeIdentity, StateError, StateFile, Stopped};
use cxloe_fabric::api::{
    ErrorCode, MemoryNodeRegistered, MemoryNodeSync, NotFollowed, Party, Progress, RegisterMemoryNode,
    ReportOrphans,
};
use cxloe_fabric::model::{
    ComputeNodeKey, DeviceKind, Name, NameError, NodeAction, NodeCommand, UdpPeer, Watermark,
};
use cxloe_link::outer::{Peer, Peers};
use cxloe_wire::frame::{Mac, PublicKey};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::background;
use super::heard::{Heard, KEEP_EVERY_MS};
use super::job::{Job, JobError};
use super::key_ring::KeyRing;
use super::mappings::{Mappings, Refusal};

/// How often the manager hears how far a long change has come; more often where its heartbeat is faster than that.
const PROGRESS_EVERY: Duration = Duration::from_millis(400);

/// Where the manager is and what it is to know of this node.
#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// `https://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// What this node shows the manager, if it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    /// This node's name, its identity in the fabric.
    pub name: String,
    /// Whether it is given away in slices or whole.
    pub kind: DeviceKind,
    /// The addresses of its ports; CNs use the first.
    pub macs: Vec<Mac>,
    /// Where frames for these go over the `udp` link, if it uses it.
    pub udp: Option<SocketAddr>,
    /// Who hears where compute nodes are over UDP.
    pub peers: Peers,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// This node's public key, if it has one.
    pub key: Option<PublicKey>,
    /// Who hears which keys belong to which compute nodes.
    pub keys: Option<KeyRing>,
    /// Where the highest term and revision seen are kept; `None` forgets them with the process.
    pub state: Option<StateFile<Watermark>>,
    /// Where it is kept for how long no manager has been heard; `None` counts from the start of the process.
    pub heard: Option<StateFile<Heard>>,
    /// The pauses between two tries.
    pub backoff: Backoff,
}

impl ManagerLinkOptions {
    /// A multi-logical device with the usual pauses and no state file.
    pub fn new(url: impl Into<String>, name: impl Into<String>, macs: Vec<Mac>, mtu: u32) -> Self {
        ManagerLinkOptions {
            url: url.into(),
            identity: None,
            name: name.into(),
            kind: DeviceKind::default(),
            macs,
            udp: None,
            peers: Peers::default(),
            mtu,
            key: None,
            keys: None,
            state: None,
            heard: None,
            backoff: Backoff::default(),
        }
    }
}

/// Why the link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The name cannot be one.
    #[error("node name: {0}")]
    Name(#[from] NameError),
    /// When a manager was heard last cannot be read.
    #[error(transparent)]
    Heard(#[from] StateError),
    /// The URL cannot be one, or there is no thread.
    #[error(transparent)]
    Link(#[from] cxloe_daemon::ManagerLinkError),
}

/// What a node reports of itself with each sync; shown as it is in the manager's list of memory nodes.
pub type Stats = Box<dyn FnMut() -> serde_json::Value + Send>;

/// A running link to the manager; ends when dropped.
#[derive(Debug)]
pub struct ManagerLink(cxloe_daemon::ManagerLink<Shell>);

impl ManagerLink {
    /// Starts the link. Returns at once; the manager need not be there.
    ///
    /// # Errors
    /// Any [`ManagerLinkError`].
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
        let (instance, started_ms, began) = (rand::random(), wall_ms(), Instant::now());
        let shell =
            Shell { mappings, options, stats, name, instance, started_ms, began, heard_kept_ms: None };
        Ok(ManagerLink(cxloe_daemon::ManagerLink::start(
            &url,
            identity,
            backoff,
            shell,
            Shell::registration,
        )?))
    }

    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.0.connection()
    }

    /// A receiver that hears of every change of [`connection`](Self::connection).
    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.0.watch()
    }

    /// Ends the link and returns the mappings as they are. A change under way is left for the next start.
    pub fn stop(self) -> Mappings {
        self.0.stop().mappings
    }
}

struct Shell {
    mappings: Mappings,
    options: ManagerLinkOptions,
    stats: Stats,
    name: Name,
    instance: u64,
    /// By the wall clock, for the manager, to which this process is later than those before it.
    started_ms: u64,
    /// What the time is counted from by which authorisations end.
    began: Instant,
    /// When it was kept last for how long no manager had been heard, on the same clock.
    heard_kept_ms: Option<u64>,
}

impl Shell {
    /// From a registration until something breaks it.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, Break> {
        self.mappings.expire(self.now_ms());
        self.keep_heard()?;
        let request = self.introduction();
        let client = contact.client();
        let answered = contact.ask(client.register_memory_node(&request)).await;
        if answered.as_ref().is_err_and(is_stale) {
            self.say_not_followed(contact).await?;
        }
        let answer = answered?;
        if let Err(refusal) = self.mappings.accept(answer.watermark, &answer.lineage) {
            self.say_not_followed(contact).await?;
            return Err(Break::node(refusal));
        }
        self.mappings.confirm(self.now_ms());
        self.remember(request.seen)?;
        self.hear_peers(&answer.udp_peers);
        self.hear_keys(&answer.cn_keys)?;
        let job = self.mappings.registered(&answer).map_err(Break::node)?;
        let mut heartbeat = Duration::from_millis(answer.heartbeat_ms.max(1));
        self.carry_out(job, contact, &answer, heartbeat).await?;
        if contact.registered() {
            let (url, extents) = (client.url(), self.mappings.len());
            tracing::info!(%url, name = %self.name, extents, "registered with the manager");
        }
        loop {
            self.report_orphans(answer.registration, contact).await?;
            let sync = self.sync(answer.registration, heartbeat);
            let reported = sync.results.len();
            let synced = contact.ask(client.sync_memory_node(&self.name, &sync)).await?;
            self.mappings.reported(reported);
            heartbeat = Duration::from_millis(synced.heartbeat_ms.max(1));
            let before = self.mappings.seen();
            self.mappings.hear(synced.watermark).map_err(|refusal| match refusal {
                Refusal::AnotherRun => Break::Anew,
                refusal => Break::node(refusal),
            })?;
            self.mappings.confirm(self.now_ms());
            self.keep_heard()?;
            self.remember(before)?;
            // Before a compute node is given memory here, so that it is heard when it says Hello.
            self.hear_peers(&synced.udp_peers);
            self.hear_keys(&synced.cn_keys)?;
            for command in &synced.commands {
                if let Some(job) = self.mappings.start(command).map_err(Break::node)? {
                    log(command);
                    self.carry_out(job, contact, &answer, heartbeat).await?;
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Keeps for how long no manager has been heard, from time to time.
    fn keep_heard(&mut self) -> Result<(), Break> {
        let now_ms = self.now_ms();
        let due = self.heard_kept_ms.is_none_or(|kept_ms| kept_ms + KEEP_EVERY_MS <= now_ms);
        if let Some(file) = self.options.heard.as_ref().filter(|_| due) {
            file.store(&Heard { kept_ms: wall_ms(), silent_ms: self.mappings.silent_ms(now_ms) })?;
            self.heard_kept_ms = Some(now_ms);
        }
        Ok(())
    }

    /// Takes over where compute nodes are.
    fn hear_peers(&self, peers: &[UdpPeer]) {
        let peer =
            |peer: &UdpPeer| Peer { mac: Mac(peer.compute_node.mac().octets()), address: peer.address };
        self.options.peers.tell(peers.iter().map(peer).flat_map(Peer::shards));
    }

    /// Takes over whose keys are whose.
    fn hear_keys(&mut self, keys: &[ComputeNodeKey]) -> Result<(), Break> {
        Ok(self.options.keys.as_mut().map_or(Ok(()), |ring| ring.tell(keys))?)
    }

    /// Lets the manager show that this node does not follow, and what it holds. A manager that does not understand need not.
    async fn say_not_followed(&self, contact: &Contact) -> Result<(), Break> {
        let (node, seen) = (Party::MemoryNode(self.name.clone()), self.mappings.seen());
        let said = NotFollowed { node, seen, holds: self.mappings.held() };
        let client = contact.client();
        if let Err(error) = contact.stop().or(client.not_followed(&said)).await? {
            tracing::debug!(%error, "the manager was not told that this node does not follow");
        }
        Ok(())
    }

    /// Lets the manager know what this node holds that no region has.
    async fn report_orphans(&mut self, registration: u64, contact: &Contact) -> Result<(), Break> {
        let orphans = self.mappings.orphans_to_report();
        if orphans.is_empty() {
            return Ok(());
        }
        let client = contact.client();
        let report = ReportOrphans { registration, orphans };
        match contact.ask(client.report_orphans(&self.name, &report)).await {
            // A manager of a release before: it cannot know.
            Err(Break::Client(error)) if error.code() == Some(ErrorCode::NotFound) => {}
            answered => answered?,
        }
        self.mappings.orphans_reported();
        Ok(())
    }

    fn introduction(&self) -> RegisterMemoryNode {
        let pool = self.mappings.table().pool();
        RegisterMemoryNode {
            name: self.name.clone(),
            kind: self.options.kind,
            macs: self.options.macs.iter().map(|mac| cxloe_fabric::model::Mac(mac.0)).collect(),
            udp: self.options.udp,
            key: self.options.key,
            pool_bytes: pool.bytes(),
            extent_bytes: pool.extent_bytes(),
            incarnation: pool.incarnation(),
            instance_id: self.instance,
            started_ms: self.started_ms,
            mtu: self.options.mtu,
            seen: self.mappings.seen(),
        }
    }

    fn sync(&mut self, registration: u64, wait: Duration) -> MemoryNodeSync {
        MemoryNodeSync {
            registration,
            acked_seq: self.mappings.acked(),
            results: self.mappings.results().to_vec(),
            progress: None,
            stats: (self.stats)(),
            wait_ms: wait.as_millis() as u64,
        }
    }

    /// Has the job done on a thread of its own, and lets the manager know meanwhile that this node lives and how far it
    /// has come.
    async fn carry_out(
        &mut self,
        job: Job,
        contact: &Contact,
        registered: &MemoryNodeRegistered,
        heartbeat: Duration,
    ) -> Result<(), Break> {
        if job.is_quick() {
            self.mappings.finish(job, Ok(()));
            return Ok(());
        }
        let (client, stop) = (contact.client(), contact.stop().clone());
        let (table, command) = (self.mappings.table().clone(), job.command());
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        let (tell, mut told) = oneshot::channel();
        let work = move || {
            let outcome = job.carry_out(&table, stop.flag(), &counter, background::step_behind);
            // Whoever waits for it gives up only with this process.
            let _ = tell.send((job, outcome));
        };
        thread::Builder::new().name("zeroing".into()).spawn(work).map_err(Break::node)?;
        let (job, outcome) = loop {
            match timeout(PROGRESS_EVERY.min(heartbeat / 2), &mut told).await {
                Ok(done) => break done.map_err(Break::node)?,
                Err(_) => {
                    let done = done.load(Ordering::Relaxed);
                    let mut sync = self.sync(registered.registration, Duration::ZERO);
                    sync.progress = command.map(|seq| Progress { seq, done });
                    let alive = timeout(heartbeat, client.sync_memory_node(&self.name, &sync)).await;
                    tracing::debug!(answered = matches!(alive, Ok(Ok(_))), "sync during a long change");
                }
            }
        };
        let stopped = matches!(outcome, Err(JobError::Stopped));
        self.mappings.finish(job, outcome);
        if stopped { Err(Stopped.into()) } else { Ok(()) }
    }

    /// Keeps the watermark on disk if it has moved, before anything that came with it is carried out.
    fn remember(&self, before: Watermark) -> Result<(), Break> {
        match &self.options.state {
            Some(file) if self.mappings.seen() != before => Ok(file.store(&self.mappings.seen())?),
            _ => Ok(()),
        }
    }
}

/// The wall clock, in milliseconds since the Unix epoch.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn is_stale(reason: &Break) -> bool {
    matches!(reason, Break::Client(error) if error.code() == Some(ErrorCode::StaleManager))
}

fn log(command: &NodeCommand) {
    let mapping = command.action.mapping();
    let what = match &command.action {
        NodeAction::MapCmem(_) => "map",
        NodeAction::UnmapCmem(_) => "unmap",
    };
    tracing::info!(
        seq = command.seq, what, region = %mapping.region, cn = %mapping.cn,
        base = format_args!("{:#x}", mapping.cmem_base), bytes = mapping.bytes(), "command of the manager"
    );
}
