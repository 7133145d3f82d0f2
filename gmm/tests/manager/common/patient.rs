//! A memory node whose pace the test sets: it refuses to map on request, and zeroes only as many bytes as the test
//! permits. Also an agent that releases regions on request, if the test permits.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cxloe_fabric::Client;
use cxloe_fabric::api::{
    ComputeNodeSync, MemoryNodeSync, Progress, RegisterComputeNode, RegisterMemoryNode, ReleasedRegion,
    VppbError,
};
use cxloe_fabric::model::{CommandResult, NodeAction, Region, UnbindOption};
use serde_json::Value;

/// Interval at which changes made by the test take effect.
const PACE: Duration = Duration::from_millis(10);

/// Settings of a memory node, which the test changes.
#[derive(Debug, Default)]
pub struct Orders {
    /// Reason with which the node refuses to map; none: it maps.
    pub refuse: Option<String>,
    /// Maximum number of bytes that the node zeroes; none: all.
    pub zero_only: Option<u64>,
    /// Report that the node sends with each sync.
    pub stats: Value,
}

/// A memory node that follows its [`Orders`]. Dropping it ends its requests.
pub struct PatientNode {
    orders: Arc<Mutex<Orders>>,
    task: tokio::task::JoinHandle<()>,
}

impl PatientNode {
    pub async fn start(client: Client, node: RegisterMemoryNode) -> Self {
        let registered = client.register_memory_node(&node).await.unwrap();
        let orders: Arc<Mutex<Orders>> = Arc::default();
        let told = Arc::clone(&orders);
        let mut sync = MemoryNodeSync {
            registration: registered.registration,
            acked_seq: registered.acked_seq,
            results: Vec::new(),
            progress: None,
            fills: Vec::new(),
            stats: Value::Null,
            wait_ms: 20,
        };
        let task = tokio::spawn(async move {
            loop {
                sync.stats = told.lock().unwrap().stats.clone();
                if let Ok(synced) = client.sync_memory_node(&node.name, &sync).await {
                    (sync.results, sync.progress) = (Vec::new(), None);
                    for command in synced.commands {
                        let orders = told.lock().unwrap();
                        let refused = orders
                            .refuse
                            .clone()
                            .filter(|_| matches!(command.action, NodeAction::MapCmem(_)));
                        let halted =
                            orders.zero_only.filter(|_| matches!(command.action, NodeAction::UnmapCmem(_)));
                        if let Some(done) = halted {
                            sync.progress = Some(Progress { seq: command.seq, done });
                            break;
                        }
                        sync.acked_seq = command.seq;
                        sync.results.push(CommandResult { seq: command.seq, error: refused });
                    }
                }
                tokio::time::sleep(PACE).await;
            }
        });
        Self { orders, task }
    }

    pub fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap()
    }
}

impl Drop for PatientNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State of an agent, and its settings, which the test changes.
#[derive(Debug, Default)]
pub struct Agent {
    /// The agent's regions, from the manager's latest answer.
    pub regions: Vec<Region>,
    /// True to keep regions that the agent is asked to release.
    pub clings: bool,
    /// True while the manager holds the agent in reset.
    pub held: bool,
    /// Errors generated at the agent's vPPBs.
    pub errors: Vec<VppbError>,
}

/// An agent that follows the settings in [`Agent`]. Dropping it ends its requests.
pub struct PatientAgent {
    agent: Arc<Mutex<Agent>>,
    task: tokio::task::JoinHandle<()>,
}

impl PatientAgent {
    pub async fn start(client: Client, node: RegisterComputeNode) -> Self {
        let registered = client.register_compute_node(&node).await.unwrap();
        let (regions, held) = (registered.regions, registered.held);
        let agent = Arc::new(Mutex::new(Agent { regions, held, clings: false, errors: Vec::new() }));
        let known = Arc::clone(&agent);
        let mut sync = ComputeNodeSync {
            registration: registered.registration,
            after_event: registered.after_event,
            released: Vec::new(),
            quiet: 0,
            settled: false,
            wait_ms: 20,
        };
        let task = tokio::spawn(async move {
            loop {
                if let Ok(synced) = client.sync_compute_node(node.cn_id, &sync).await {
                    sync.after_event = synced.after_event;
                    let mut agent = known.lock().unwrap();
                    agent.held = synced.held;
                    agent.errors.extend(synced.errors);
                    if let Some(regions) = synced.regions {
                        agent.regions = regions;
                    }
                    let asked = |region: &&Region| {
                        let release = region.release.filter(|release| !release.done);
                        release.is_some_and(|release| release.option == UnbindOption::Managed)
                    };
                    let asked = agent.regions.iter().filter(asked).filter(|_| !agent.clings);
                    sync.released = asked
                        .map(|region| ReleasedRegion {
                            name: region.name.clone(),
                            created_ms: region.created_ms,
                        })
                        .collect();
                }
                tokio::time::sleep(PACE).await;
            }
        });
        Self { agent, task }
    }

    pub fn agent(&self) -> MutexGuard<'_, Agent> {
        self.agent.lock().unwrap()
    }
}

impl Drop for PatientAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
