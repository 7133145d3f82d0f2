//! The fabric under chaos: a manager, memory nodes and a compute node as real processes in namespaces around one switch,
//! with sealed frames. Any of them can be killed and started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_client::client;
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateRegion, EventsQuery};
use cxloe_fabric::model::{CnId, Health, Name, Protection, RegionState};
use cxloe_lab::{Interrupt, Lab, Process, program};
use nix::sys::signal::Signal;

use super::{ChaosError, WHOLE_LIMIT};
use crate::eventually::eventually;

/// Maximum wait for a daemon to start or end.
const DAEMON_LIMIT: Duration = Duration::from_secs(30);
/// Maximum wait for an answer from the manager, which may have been killed.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const REGION: &str = "chaos";
const COMPUTE_NODE: &str = "cn0";
/// Space in each pool beyond the copy of the region, in bytes.
const POOL_ROOM: u64 = 64 << 20;

/// Daemons, and the network that they are in.
pub struct ChaosFabric {
    // Fields are dropped in this order: the processes have to end before their network is removed.
    daemons: BTreeMap<String, Process>,
    starts: BTreeMap<String, u32>,
    lab: Lab,
    folder: PathBuf,
    bytes: u64,
    manager: Client,
    runtime: tokio::runtime::Runtime,
}

impl ChaosFabric {
    /// Starts all daemons and makes the mirrored region.
    pub fn start(
        folder: &Path,
        memory_nodes: usize,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<ChaosFabric, ChaosError> {
        let lab = Lab::star(memory_nodes, 1).build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = Client::new(&format!("unix:{}", folder.join("gmm.sock").display()))?;
        let (daemons, starts) = Default::default();
        let mut fabric =
            ChaosFabric { daemons, starts, lab, folder: folder.to_owned(), bytes, manager, runtime };
        let names = ["gmm".to_owned()].into_iter().chain((0..memory_nodes).map(|index| format!("mn{index}")));
        for name in names.chain([COMPUTE_NODE.to_owned()]) {
            fabric.start_again(&name, false)?;
        }
        eventually("the nodes register", DAEMON_LIMIT, interrupt, || fabric.all_reachable(memory_nodes))?;
        let owner: CnId = cxloe_lab::compute_node_mac(0).parse()?;
        let create = CreateRegion {
            protect: Protection::Mirror,
            wait_ms: DAEMON_LIMIT.as_millis() as u64,
            ..CreateRegion::new(Name::new(REGION)?, bytes, owner)
        };
        fabric.runtime.block_on(fabric.manager.create_region(&create))?;
        fabric.wait_whole(WHOLE_LIMIT, interrupt)?;
        eventually("the region is attached", DAEMON_LIMIT, interrupt, || {
            !client::regions(&fabric.agent_socket()).unwrap_or_default().is_empty()
        })?;
        Ok(fabric)
    }

    pub fn daemons(&self) -> Vec<String> {
        self.daemons.keys().cloned().collect()
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.folder.join("cn0.sock")
    }

    /// Kills a daemon with SIGKILL, and waits for its end.
    pub fn kill(&mut self, name: &str) -> Result<(), ChaosError> {
        if let Some(mut process) = self.daemons.remove(name) {
            process.signal(Signal::SIGKILL)?;
            process.wait(DAEMON_LIMIT)?;
        }
        Ok(())
    }

    /// Starts a daemon with the state that its earlier processes have left. If `emptied`, a memory node
    /// starts without the content of its pool.
    pub fn start_again(&mut self, name: &str, emptied: bool) -> Result<(), ChaosError> {
        let (binary, namespace) = match name {
            "gmm" => ("gmm", "switch"),
            COMPUTE_NODE => ("cn-agent", name),
            _ => ("mn-server", name),
        };
        let path = |end: &str| self.folder.join(format!("{name}{end}"));
        let mut command = Command::new(program(binary)?);
        if binary == "gmm" {
            command.args(["serve", "--listen", "127.0.0.1:0", "--node-timeout-ms", "1000"]);
            command.arg("--store").arg(path(".redb")).arg("--socket").arg(path(".sock"));
        } else {
            if binary == "cn-agent" {
                // Without a line cache, an acknowledged write has reached the memory nodes.
                command.args(["run", "--cache-size", "0", "--session-timeout", "2s"]);
            } else {
                let pool = (self.bytes + POOL_ROOM).next_multiple_of(2 << 20).to_string();
                command.args(["--pool-size", &pool, "--prefault", "false"]);
            }
            command.args(["--name", name, "-i", name, "--link", "packet", "--manager", self.manager.url()]);
            command.arg("--data-dir").arg(path(".data")).arg("--socket").arg(path(".sock"));
            command.arg("--node-key").arg(path(".key"));
            if emptied {
                command.arg("--pool-discard");
            }
        }
        let number = self.starts.entry(name.to_owned()).or_default();
        *number += 1;
        Process::log_to(&mut command, &self.folder.join(format!("{name}.{number}.log")))?;
        let process = self.lab.spawn(namespace, command)?;
        self.daemons.insert(name.to_owned(), process);
        Ok(())
    }

    /// Sends a request to the manager; `None` if it does not answer in time.
    fn ask<T, E>(&self, question: impl Future<Output = Result<T, E>>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, question).await.ok()?.ok() })
    }

    fn all_reachable(&self, memory_nodes: usize) -> bool {
        let nodes = self.ask(self.manager.memory_nodes()).unwrap_or_default();
        let reachable = nodes.iter().filter(|status| status.node.health == Health::Reachable).count();
        let compute = self.ask(self.manager.compute_nodes()).unwrap_or_default();
        reachable == memory_nodes && compute.iter().any(|node| node.health == Health::Reachable)
    }

    /// True if both copies of the region are in sync, on memory nodes that are reachable.
    pub fn is_whole(&self) -> bool {
        let region = Name::new(REGION).ok().and_then(|name| self.ask(self.manager.region(&name)));
        region.is_some_and(|region| region.state == RegionState::Active)
    }

    /// Waits until both copies are in sync.
    pub fn wait_whole(&self, limit: Duration, interrupt: &Interrupt) -> Result<(), ChaosError> {
        eventually("both copies are in sync", limit, interrupt, || self.is_whole())
    }

    /// Numbers of manager events: legs (copies on one memory node) that became stale, and legs that were filled again.
    pub fn leg_events(&self) -> Result<(u64, u64), ChaosError> {
        let count = |kind: &str| -> Result<u64, ChaosError> {
            let (mut count, mut after) = (0, 0);
            loop {
                let query = EventsQuery { after, kind: Some(kind.to_owned()), ..EventsQuery::default() };
                let events = self.runtime.block_on(self.manager.events(query))?;
                count += events.events.len() as u64;
                if events.through >= events.newest || events.through <= after {
                    return Ok(count);
                }
                after = events.through;
            }
        };
        Ok((count("leg_stale")?, count("leg_filled")?))
    }
}
