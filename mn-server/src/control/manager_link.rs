//! The link to the manager: registers this node, waits for commands, reports results, and starts over for ever
//! when the manager is away. A thread with a small runtime of its own; the data path never waits for it.
//!
//! Each change of the connection's state is logged once, however often it is tried again meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cxloe_gmm::api::{ErrorCode, MemoryNodeRegistered, MemoryNodeSync, RegisterMemoryNode};
use cxloe_gmm::client::{Client, ClientError};
use cxloe_gmm::model::{Name, NodeCommand, Watermark};
use cxloe_wire::frame::Mac;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::job::{Job, JobError};
use super::mappings::{Mappings, Refusal};
use super::state_file::{StateError, StateFile};

/// Where the manager is and what it is to know of this node.
#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// `http://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// This node's name, its identity in the fabric.
    pub name: String,
    /// The addresses of its ports; CNs use the first.
    pub macs: Vec<Mac>,
    /// The MTU of its ports in bytes.
    pub mtu: u32,
    /// Where the highest term and revision seen are kept; `None` forgets them with the process.
    pub state: Option<StateFile>,
    /// The pause after the first failure; it doubles with each further one.
    pub retry_min: Duration,
    /// The longest pause between two tries.
    pub retry_max: Duration,
}

impl ManagerLinkOptions {
    /// Pauses of 200 ms to 5 s, no state file.
    pub fn new(url: impl Into<String>, name: impl Into<String>, macs: Vec<Mac>, mtu: u32) -> Self {
        ManagerLinkOptions {
            url: url.into(),
            name: name.into(),
            macs,
            mtu,
            state: None,
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
    /// Registered; its commands are carried out.
    Registered,
    /// Not reachable or not to be followed, for this reason; what is mapped goes on being served.
    Away(String),
}

/// Why the link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ManagerLinkError {
    /// The name cannot be one.
    #[error("node name: {0}")]
    Name(#[from] cxloe_gmm::model::NameError),
    /// The URL cannot be one.
    #[error(transparent)]
    Url(ClientError),
    /// No thread.
    #[error("cannot start the thread that talks to the manager: {0}")]
    Thread(std::io::Error),
}

/// What ended a registration.
#[derive(Debug, thiserror::Error)]
enum Break {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("stopped")]
    Stopped,
}

#[derive(Debug, Default)]
struct Stop {
    flag: AtomicBool,
    wake: Notify,
}

/// What a node reports of itself with each sync; shown as it is in the manager's list of memory nodes.
pub type Stats = Box<dyn FnMut() -> serde_json::Value + Send>;

/// A running link to the manager; ends when dropped.
#[derive(Debug)]
pub struct ManagerLink {
    connection: watch::Receiver<Connection>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Mappings>>,
}

impl ManagerLink {
    /// Starts the link. Returns at once; the manager need not be there.
    pub fn start(
        mappings: Mappings,
        options: ManagerLinkOptions,
        stats: Stats,
    ) -> Result<Self, ManagerLinkError> {
        let name = Name::new(options.name.clone())?;
        let client = Client::new(&options.url).map_err(ManagerLinkError::Url)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ManagerLinkError::Thread)?;
        let (tell, connection) = watch::channel(Connection::Connecting);
        let stop = Arc::new(Stop::default());
        let mut shell = Shell {
            mappings,
            options,
            stats,
            name,
            client,
            tell,
            stop: stop.clone(),
            instance: rand::random(),
        };
        let thread = thread::Builder::new().name("manager-link".into()).spawn(move || {
            runtime.block_on(shell.run());
            shell.mappings
        });
        let thread = Some(thread.map_err(ManagerLinkError::Thread)?);
        Ok(ManagerLink { connection, stop, thread })
    }

    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.connection.borrow().clone()
    }

    /// A receiver that hears of every change of [`connection`](Self::connection).
    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.connection.clone()
    }

    /// Ends the link and returns the mappings as they are. A change under way is left for the next start.
    pub fn stop(mut self) -> Mappings {
        self.signal();
        let thread = self.thread.take().expect("only stop takes it");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn signal(&self) {
        self.stop.flag.store(true, Ordering::Relaxed);
        self.stop.wake.notify_one();
    }
}

impl Drop for ManagerLink {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.signal();
            let _ = thread.join();
        }
    }
}

struct Shell {
    mappings: Mappings,
    options: ManagerLinkOptions,
    stats: Stats,
    name: Name,
    client: Client,
    tell: watch::Sender<Connection>,
    stop: Arc<Stop>,
    instance: u64,
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
        let request = self.introduction();
        let client = self.client.clone();
        let answer = self.unless_stopped(client.register_memory_node(&request)).await??;
        self.mappings.hear(answer.watermark)?;
        self.remember(request.seen)?;
        let job = self.mappings.registered(&answer)?;
        let mut heartbeat = Duration::from_millis(answer.heartbeat_ms.max(1));
        self.carry_out(job, &answer, heartbeat).await?;
        if self.tell.send_replace(Connection::Registered) != Connection::Registered {
            let (url, extents) = (&self.options.url, self.mappings.len());
            tracing::info!(%url, name = %self.name, extents, "registered with the manager");
        }
        *pause = self.options.retry_min;
        loop {
            let sync = self.sync(answer.registration, heartbeat);
            let reported = sync.results.len();
            let name = self.name.clone();
            let synced = self.unless_stopped(client.sync_memory_node(&name, &sync)).await??;
            self.mappings.reported(reported);
            heartbeat = Duration::from_millis(synced.heartbeat_ms.max(1));
            let before = self.mappings.seen();
            self.mappings.hear(synced.watermark)?;
            self.remember(before)?;
            for command in &synced.commands {
                if let Some(job) = self.mappings.start(command)? {
                    self.log(command);
                    self.carry_out(job, &answer, heartbeat).await?;
                }
            }
        }
    }

    fn introduction(&self) -> RegisterMemoryNode {
        let pool = self.mappings.table().pool();
        RegisterMemoryNode {
            name: self.name.clone(),
            macs: self.options.macs.iter().map(|mac| cxloe_gmm::model::Mac(mac.0)).collect(),
            pool_bytes: pool.bytes(),
            extent_bytes: pool.extent_bytes(),
            incarnation: pool.incarnation(),
            instance_id: self.instance,
            mtu: self.options.mtu,
            seen: self.mappings.seen(),
        }
    }

    fn sync(&mut self, registration: u64, wait: Duration) -> MemoryNodeSync {
        MemoryNodeSync {
            registration,
            acked_seq: self.mappings.acked(),
            results: self.mappings.results().to_vec(),
            stats: (self.stats)(),
            wait_ms: wait.as_millis() as u64,
        }
    }

    /// Has the job done on a thread of its own, and lets the manager know meanwhile that this node lives.
    async fn carry_out(
        &mut self,
        job: Job,
        registered: &MemoryNodeRegistered,
        heartbeat: Duration,
    ) -> Result<(), Break> {
        if job.is_quick() {
            self.mappings.finish(job, Ok(()));
            return Ok(());
        }
        let (table, stop) = (self.mappings.table().clone(), self.stop.clone());
        let mut work = tokio::task::spawn_blocking(move || {
            let outcome = job.carry_out(&table, &stop.flag);
            (job, outcome)
        });
        let (job, outcome) = loop {
            match timeout(heartbeat / 2, &mut work).await {
                Ok(done) => break done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())),
                Err(_) => {
                    let sync = self.sync(registered.registration, Duration::ZERO);
                    let alive = timeout(heartbeat, self.client.sync_memory_node(&self.name, &sync)).await;
                    tracing::debug!(answered = matches!(alive, Ok(Ok(_))), "sync during a long change");
                }
            }
        };
        let stopped = matches!(outcome, Err(JobError::Stopped));
        self.mappings.finish(job, outcome);
        if stopped { Err(Break::Stopped) } else { Ok(()) }
    }

    /// Keeps the watermark on disk if it has moved, before anything that came with it is carried out.
    fn remember(&self, before: Watermark) -> Result<(), Break> {
        match &self.options.state {
            Some(file) if self.mappings.seen() != before => Ok(file.store(self.mappings.seen())?),
            _ => Ok(()),
        }
    }

    fn away(&self, reason: String) {
        let url = &self.options.url;
        let before = self.tell.send_replace(Connection::Away(reason.clone()));
        match before {
            Connection::Away(old) if old == reason => tracing::debug!(%url, %reason, "still no manager"),
            _ => tracing::warn!(%url, %reason, "no manager; what is mapped goes on being served"),
        }
    }

    fn log(&self, command: &NodeCommand) {
        let mapping = command.action.mapping();
        let what = match &command.action {
            cxloe_gmm::model::NodeAction::MapCmem(_) => "map",
            cxloe_gmm::model::NodeAction::UnmapCmem(_) => "unmap",
        };
        tracing::info!(
            seq = command.seq, what, region = %mapping.region, cn = %mapping.cn,
            base = format_args!("{:#x}", mapping.cmem_base), bytes = mapping.bytes(), "command of the manager"
        );
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
