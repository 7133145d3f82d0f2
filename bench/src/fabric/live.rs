//! A real manager under load: `gmm serve` over a filled store, every memory node connected over HTTP and confirming its
//! commands, and clients that create and destroy regions.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cxloe_fabric::api::{CreateRegion, DestroyRegion, MemoryNodeSync};
use cxloe_fabric::model::{CommandResult, RegionState};
use cxloe_fabric::{Client, ClientError};
use serde::Serialize;
use tokio::task::JoinSet;

use super::node::{EXTENT, cn_id, memory_node, name};
use super::{FabricFiles, Size, TimeCollector, Times, resident_bytes};

/// Maximum wait for the manager's first answer.
const START_MAX: Duration = Duration::from_secs(120);
/// Maximum time for which the manager holds a memory node's request for commands, in milliseconds.
const WAIT_MS: u64 = 1500;

/// Results for a running manager.
#[derive(Debug, Clone, Serialize)]
pub struct Live {
    /// Milliseconds from the start of the process, which reads and checks the store, until the first answer.
    pub restart_ms: f64,
    /// Resident memory of the process at its first answer, in bytes.
    pub memory_bytes: u64,
    /// Time to create a region over HTTP until its memory nodes have confirmed; one region at a time.
    pub create: Times,
    /// Time to destroy a region over HTTP until its memory nodes have confirmed; one region at a time.
    pub destroy: Times,
    /// Regions created per minute by all clients together.
    pub creates_per_minute: f64,
    /// Number of clients that create regions at the same time.
    pub clients: u32,
}

/// Failure of a measurement of a running manager.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("cannot start {}: {source}", .program.display())]
    Start { program: PathBuf, source: std::io::Error },
    #[error("{} does not answer within {START_MAX:?}; its log is {}", .program.display(), .log.display())]
    Silent { program: PathBuf, log: PathBuf },
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("a region is {0} after its creation")]
    NotActive(RegionState),
}

/// Process of a manager; killed on drop.
struct ManagerProcess {
    child: Child,
    client: Client,
    took: Duration,
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ManagerProcess {
    async fn start(place: &FabricFiles) -> Result<Self, LiveError> {
        let (port_file, log) = (place.store.with_extension("port"), place.store.with_extension("log"));
        let _ = std::fs::remove_file(&port_file);
        let program = place.gmm.clone();
        let start = |source| LiveError::Start { program: program.clone(), source };
        let started = Instant::now();
        let child = Command::new(&place.gmm)
            .args(["serve", "--insecure", "--listen", "127.0.0.1:0", "--store"])
            .arg(&place.store)
            .arg("--port-file")
            .arg(&port_file)
            .env("CXLOE_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).map_err(start)?)
            .spawn()
            .map_err(start)?;
        let mut served = Self { child, client: Client::new("http://127.0.0.1:1")?, took: Duration::ZERO };
        while started.elapsed() < START_MAX && served.child.try_wait().map_err(start)?.is_none() {
            if let Some(address) = address(&port_file) {
                served.client = Client::new(&format!("http://{address}"))?;
                served.client.health().await?;
                served.took = started.elapsed();
                return Ok(served);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Err(LiveError::Silent { program: place.gmm.clone(), log })
    }
}

fn address(port_file: &Path) -> Option<SocketAddr> {
    std::fs::read_to_string(port_file).ok()?.trim().parse().ok()
}

/// Acts as a memory node that confirms every command at once.
async fn serve_node(client: Client, index: u32) -> Result<(), ClientError> {
    let node = memory_node(index);
    let answer = client.register_memory_node(&node).await?;
    let (mut acked_seq, mut results) = (answer.acked_seq, Vec::new());
    loop {
        let sync = MemoryNodeSync {
            registration: answer.registration,
            acked_seq,
            results: std::mem::take(&mut results),
            progress: None,
            fills: Vec::new(),
            stats: serde_json::Value::Null,
            wait_ms: WAIT_MS,
        };
        let synced = client.sync_memory_node(&node.name, &sync).await?;
        for command in synced.commands.iter().filter(|command| command.seq > acked_seq) {
            results.push(CommandResult::done(command.seq));
        }
        acked_seq = results.last().map_or(acked_seq, |last| last.seq);
    }
}

/// Starts the manager over the store of `place` and loads it: `creates` regions are created and destroyed one by one,
/// and ten times as many by `clients` at once.
pub async fn measure(place: &FabricFiles, size: Size, creates: u32, clients: u32) -> Result<Live, LiveError> {
    let served = ManagerProcess::start(place).await?;
    let memory_bytes = resident_bytes(served.child.id()).unwrap_or(0);
    let mut nodes = JoinSet::new();
    for index in 0..size.memory_nodes {
        nodes.spawn(serve_node(served.client.clone(), index));
    }
    // Wait until every memory node has registered.
    while served.client.health().await?.memory_nodes.reachable < u64::from(size.memory_nodes)
        || nodes.len() < size.memory_nodes as usize
    {
        if let Some(Ok(Err(error))) = nodes.try_join_next() {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Measurements start after the load caused by the registrations has ended.
    tokio::time::sleep(Duration::from_secs(1)).await;

    let (mut create, mut destroy) = (TimeCollector::new(), TimeCollector::new());
    for number in 0..creates {
        let region =
            CreateRegion::new(name("single", number), EXTENT, cn_id(number % size.compute_nodes.max(1)));
        let began = Instant::now();
        let made = served.client.create_region(&region).await?;
        create.add(began.elapsed());
        if made.state != RegionState::Active {
            return Err(LiveError::NotActive(made.state));
        }
        let began = Instant::now();
        served
            .client
            .destroy_region(&made.name, DestroyRegion { force: true, wait_ms: 10_000, created_ms: None })
            .await?;
        destroy.add(began.elapsed());
    }

    let (next, total) = (Arc::new(AtomicU32::new(0)), creates * 10);
    let began = Instant::now();
    let mut many = JoinSet::new();
    for _ in 0..clients {
        let (client, next) = (served.client.clone(), Arc::clone(&next));
        many.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return Ok(());
                }
                let owner = cn_id(number % size.compute_nodes.max(1));
                let made =
                    client.create_region(&CreateRegion::new(name("many", number), EXTENT, owner)).await?;
                if made.state != RegionState::Active {
                    return Err(LiveError::NotActive(made.state));
                }
            }
        });
    }
    while let Some(ended) = many.join_next().await {
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }
    let creates_per_minute = f64::from(total) * 60.0 / began.elapsed().as_secs_f64();
    nodes.abort_all();
    Ok(Live {
        restart_ms: served.took.as_secs_f64() * 1e3,
        memory_bytes,
        create: create.times(),
        destroy: destroy.times(),
        creates_per_minute,
        clients,
    })
}
