//! The measured fabric: a manager, memory nodes and compute nodes as real processes in namespaces around one switch, with
//! sealed frames. Orders about regions return when the nodes have carried them out.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cxloe_client::client;
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_fabric::api::{
    CloneRegion, CreateRegion, DestroyRegion, Owner, ProtectRegion, SealRegion, ShareRegion,
};
use cxloe_fabric::model::{CnId, Health, LegState, Name, Protection, Region, RegionState};
use cxloe_fabric::{Client, ClientError};
use cxloe_lab::{Interrupt, Lab, Process, program};
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use nix::sys::signal::Signal;

use super::SurvivalError;
use crate::eventually::{eventually, moment};

/// Number of memory nodes: two for the copies of a region, and one to move to.
pub const MEMORY_NODES: usize = 3;
/// Maximum wait for a daemon to start or end, and for an order that copies nothing.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum wait for an order that copies a region.
const COPY_LIMIT: Duration = Duration::from_secs(900);
/// Maximum wait for an answer from the manager to a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time for which the manager may delay its answer to an order, in milliseconds; shorter than the time in which a
/// command has to end after Ctrl-C.
const ORDER_MS: u64 = 5_000;
/// Interval of checks for the end of something short, while nothing else is measured.
pub const OFTEN: Duration = Duration::from_millis(1);
/// Interval of checks beside a load, which they should not disturb.
pub const SELDOM: Duration = Duration::from_millis(5);
/// Metric of a memory node: bytes of clones and snapshots that are not copied yet.
const COPY_LEFT: &str = "cxloe_mn_copy_bytes_left";

/// Sizes and options of the daemons.
#[derive(Clone, Debug)]
pub struct FabricSetup {
    /// Size of each memory node's pool, in bytes.
    pub pools: [u64; MEMORY_NODES],
    pub compute_nodes: usize,
    /// Link of all nodes.
    pub link: Backend,
    /// Waiting style of all nodes.
    pub wait: WaitStyle,
}

/// Daemons, and the network that they are in.
pub struct SurvivalFabric {
    // Fields are dropped in this order: the processes have to end before their network is removed.
    daemons: BTreeMap<String, Process>,
    starts: BTreeMap<String, u32>,
    lab: Lab,
    folder: PathBuf,
    setup: FabricSetup,
    manager: Client,
    runtime: tokio::runtime::Runtime,
}

/// CN id of compute node number `cn`.
fn cn_id(cn: usize) -> Result<CnId, SurvivalError> {
    Ok(cxloe_lab::compute_node_mac(cn).parse()?)
}

impl SurvivalFabric {
    /// Starts all daemons, with files below `folder`, and waits until all nodes have registered.
    ///
    /// # Errors
    /// The network cannot be made, or a daemon does not start.
    pub fn start(
        folder: &Path,
        setup: FabricSetup,
        interrupt: &Interrupt,
    ) -> Result<SurvivalFabric, SurvivalError> {
        let lab = Lab::star(MEMORY_NODES, setup.compute_nodes).build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = Client::new(&format!("unix:{}", folder.join("gmm.sock").display()))?;
        let (daemons, starts) = Default::default();
        let folder = folder.to_owned();
        let mut fabric = SurvivalFabric { daemons, starts, lab, folder, setup, manager, runtime };
        fabric.start_daemon("gmm")?;
        (0..MEMORY_NODES).try_for_each(|node| fabric.start_daemon(&format!("mn{node}")))?;
        (0..fabric.setup.compute_nodes).try_for_each(|node| fabric.start_daemon(&format!("cn{node}")))?;
        eventually("the nodes register", LIMIT, interrupt, || fabric.are_reachable())?;
        Ok(fabric)
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{name}{end}"))
    }

    /// Socket of the agent of compute node number `cn`.
    pub fn socket(&self, cn: usize) -> PathBuf {
        self.path(&format!("cn{cn}"), ".sock")
    }

    /// Starts a daemon with the state that its earlier processes have left.
    ///
    /// # Errors
    /// The program is missing or cannot be started.
    pub fn start_daemon(&mut self, name: &str) -> Result<(), SurvivalError> {
        let (binary, namespace) = match name {
            "gmm" => ("gmm", "switch"),
            _ if name.starts_with("cn") => ("cn-agent", name),
            _ => ("mn-server", name),
        };
        let mut command = Command::new(program(binary)?);
        if binary == "gmm" {
            command.args(["serve", "--listen", "127.0.0.1:0", "--node-timeout-ms", "1000"]);
            command.arg("--store").arg(self.path(name, ".redb"));
        } else {
            match name.strip_prefix("mn").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => {
                    let metrics = format!("unix:{}", self.path(name, ".metrics").display());
                    let pool = self.setup.pools[number].to_string();
                    command.args(["--pool-size", &pool, "--metrics", &metrics]);
                }
                // Without a line cache, an acknowledged write has reached the memory nodes.
                None => {
                    command.args(["run", "--cache-size", "0", "--session-timeout", "2s"]);
                }
            }
            let (link, wait) = (self.setup.link.to_string(), self.setup.wait.to_string());
            command.args(["--name", name, "-i", name, "--link", &link, "--wait", &wait]);
            command.args(["--manager", self.manager.url()]);
            command.arg("--data-dir").arg(self.path(name, ".data"));
            command.arg("--node-key").arg(self.path(name, ".key"));
        }
        command.arg("--socket").arg(self.path(name, ".sock"));
        let number = self.starts.entry(name.to_owned()).or_default();
        *number += 1;
        let log = self.folder.join(format!("{name}.{number}.log"));
        Process::log_to(&mut command, &log)?;
        let process = self.lab.spawn(namespace, command)?;
        self.daemons.insert(name.to_owned(), process);
        Ok(())
    }

    /// Kills a daemon with SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// It does not end.
    pub fn kill(&mut self, name: &str) -> Result<(), SurvivalError> {
        if let Some(mut process) = self.daemons.remove(name) {
            process.signal(Signal::SIGKILL)?;
            process.wait(LIMIT)?;
        }
        Ok(())
    }

    /// Sends a question to the manager; `None` if it does not answer in time.
    fn ask<T>(&self, question: impl Future<Output = Result<T, ClientError>>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, question).await.ok()?.ok() })
    }

    /// Gives an order to the manager.
    fn order<T>(&self, order: impl Future<Output = Result<T, ClientError>>) -> Result<T, SurvivalError> {
        Ok(self.runtime.block_on(order)?)
    }

    fn are_reachable(&self) -> bool {
        let memory = self.ask(self.manager.memory_nodes()).unwrap_or_default();
        let compute = self.ask(self.manager.compute_nodes()).unwrap_or_default();
        let memory = memory.iter().filter(|status| status.node.health == Health::Reachable).count();
        let compute = compute.iter().filter(|node| node.health == Health::Reachable).count();
        (memory, compute) == (MEMORY_NODES, self.setup.compute_nodes)
    }

    fn region(&self, name: &Name) -> Option<Region> {
        self.ask(self.manager.region(name))
    }

    /// Waits until the manager describes a region as `wanted`, with checks at the interval `every`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    fn described(
        &self,
        (name, what): (&Name, &str),
        every: Duration,
        interrupt: &Interrupt,
        wanted: impl Fn(&Region) -> bool,
    ) -> Result<Instant, SurvivalError> {
        let what = format!("region {name} {what}");
        moment(&what, every, COPY_LIMIT, interrupt, || {
            self.region(name).is_some_and(|region| wanted(&region))
        })
    }

    /// Waits until a region is in this state, with checks at the interval `every`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn wait_for(
        &self,
        region: &str,
        state: RegionState,
        every: Duration,
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        let (name, what) = (Name::new(region)?, format!("is {state}"));
        self.described((&name, what.as_str()), every, interrupt, |region| region.state == state)
    }

    /// Creates a region of `cn0` on these memory nodes, waits until it can be used, and returns its HPA.
    ///
    /// # Errors
    /// The manager refuses it, it cannot be used in time, or Ctrl-C.
    pub fn create(
        &self,
        region: &str,
        bytes: u64,
        protect: Protection,
        on: &[&str],
        interrupt: &Interrupt,
    ) -> Result<u64, SurvivalError> {
        let on = on.iter().map(|node| Name::new(*node)).collect::<Result<Vec<_>, _>>()?;
        let create = CreateRegion {
            protect,
            on,
            wait_ms: ORDER_MS,
            ..CreateRegion::new(Name::new(region)?, bytes, cn_id(0)?)
        };
        self.order(self.manager.create_region(&create))?;
        self.wait_for(region, RegionState::Active, SELDOM, interrupt)?;
        self.readable(0, region, interrupt)
    }

    /// Destroys a region, and waits until its memory is free.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn destroy(&self, region: &str, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let name = Name::new(region)?;
        let destroy = DestroyRegion { force: true, wait_ms: ORDER_MS, created_ms: None };
        self.order(self.manager.destroy_region(&name, destroy))?;
        eventually(&format!("region {region} is destroyed"), LIMIT, interrupt, || {
            let all = self.ask(self.manager.regions());
            all.is_some_and(|all| all.iter().all(|region| region.name != name))
        })
    }

    fn listed(&self, cn: usize, region: &str) -> Option<AttachedRegion> {
        let all = client::regions(&self.socket(cn)).ok()?;
        all.into_iter().find(|one| one.region == region && one.attachment == Attaching::Attached)
    }

    /// Waits until the agent of compute node number `cn` has attached these regions, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn attached(
        &self,
        cn: usize,
        regions: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        let what = format!("cn{cn} attaches {}", regions.join(" and "));
        moment(&what, OFTEN, LIMIT, interrupt, || {
            regions.iter().all(|region| self.listed(cn, region).is_some())
        })
    }

    /// Waits until compute node number `cn` can read a region, and returns the region's HPA there.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn readable(&self, cn: usize, region: &str, interrupt: &Interrupt) -> Result<u64, SurvivalError> {
        let mut found = 0;
        eventually(&format!("cn{cn} can read region {region}"), LIMIT, interrupt, || {
            let Some(listed) = self.listed(cn, region) else { return false };
            found = listed.hpa;
            client::Client::connect(&self.socket(cn)).and_then(|mut port| port.read(found)).is_ok()
        })?;
        Ok(found)
    }

    /// Makes a clone, or a snapshot if `sealed`, for the same compute node, and returns the time until the memory nodes
    /// serve it.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn make_clone(
        &self,
        source: &str,
        copy: &str,
        sealed: bool,
        interrupt: &Interrupt,
    ) -> Result<Duration, SurvivalError> {
        let name = Name::new(copy)?;
        let order = CloneRegion {
            name: name.clone(),
            owner: None,
            uid: None,
            sealed,
            force: false,
            wait_ms: ORDER_MS,
        };
        let began = Instant::now();
        let made = self.order(self.manager.clone_region(&Name::new(source)?, &order))?;
        if made.state == RegionState::Creating {
            let is_made = |region: &Region| region.state != RegionState::Creating;
            self.described((&name, "is made"), OFTEN, interrupt, is_made)?;
        }
        Ok(began.elapsed())
    }

    /// Changes the protection of a region, and returns the time until all its copies, and no others, are in sync.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn protect(
        &self,
        region: &str,
        protect: Protection,
        interrupt: &Interrupt,
    ) -> Result<Duration, SurvivalError> {
        let (name, copies) = (Name::new(region)?, usize::from(protect.copies()));
        let began = Instant::now();
        let order = ProtectRegion { protect, on: Vec::new(), wait_ms: 0 };
        self.order(self.manager.protect_region(&name, &order))?;
        let whole = |region: &Region| region.state == RegionState::Active && region.legs.len() == copies;
        let ended = self.described((&name, "is protected as ordered"), SELDOM, interrupt, whole)?;
        Ok(ended.duration_since(began))
    }

    /// Name of the memory node that a region without a second copy is on.
    ///
    /// # Errors
    /// The manager does not answer, or the region has no part on a memory node.
    pub fn home(&self, region: &str) -> Result<Name, SurvivalError> {
        let region = self.order(self.manager.region(&Name::new(region)?))?;
        let leg = region.legs.iter().find(|leg| leg.state != LegState::Unmapping);
        Ok(leg.ok_or_else(|| format!("region {} is on no memory node", region.name))?.memory_node.clone())
    }

    /// Drains a memory node, and returns the time until nothing of the region is served from there. Afterwards regions may
    /// be placed there again.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn drain(&self, node: &Name, region: &str, interrupt: &Interrupt) -> Result<Duration, SurvivalError> {
        let name = Name::new(region)?;
        let began = Instant::now();
        self.order(self.manager.drain_memory_node(node, true))?;
        let left = |region: &Region| {
            region.legs.iter().all(|leg| &leg.memory_node != node || leg.state == LegState::Unmapping)
        };
        let what = format!("leaves {node}");
        let ended = self.described((&name, what.as_str()), SELDOM, interrupt, left)?;
        self.order(self.manager.drain_memory_node(node, false))?;
        let whole = |region: &Region| region.state == RegionState::Active && region.legs.len() == 1;
        self.described((&name, "has one copy"), SELDOM, interrupt, whole)?;
        Ok(ended.duration_since(began))
    }

    /// Seals a region.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn seal(&self, region: &str, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let name = Name::new(region)?;
        let order = SealRegion { force: false, wait_ms: ORDER_MS };
        self.order(self.manager.seal_region(&name, &order))?;
        let sealed = |region: &Region| region.sealed && region.state == RegionState::Active;
        self.described((&name, "is sealed"), SELDOM, interrupt, sealed)?;
        Ok(())
    }

    /// Lets compute node number `cn` read a sealed region, and returns the region's HPA there.
    ///
    /// # Errors
    /// The manager refuses it, it takes too long, or Ctrl-C.
    pub fn share(&self, region: &str, cn: usize, interrupt: &Interrupt) -> Result<u64, SurvivalError> {
        let order = ShareRegion { with: Owner::CnId(cn_id(cn)?), end: false, uid: None, wait_ms: ORDER_MS };
        self.order(self.manager.share_region(&Name::new(region)?, &order))?;
        self.readable(cn, region, interrupt)
    }

    /// Number of bytes of a memory node's pool that belong to regions.
    ///
    /// # Errors
    /// The manager does not answer, or does not know the memory node.
    pub fn used_bytes(&self, node: &str) -> Result<u64, SurvivalError> {
        let nodes = self.order(self.manager.memory_nodes())?;
        let status = nodes.iter().find(|status| status.node.name.as_str() == node);
        let status = status.ok_or_else(|| format!("the manager does not know memory node {node}"))?;
        Ok(status.node.pool_bytes.saturating_sub(status.free_bytes))
    }

    /// Number of the latest registration of compute node 0.
    pub fn registration(&self) -> Option<u64> {
        let (own, nodes) = (cn_id(0).ok()?, self.ask(self.manager.compute_nodes())?);
        nodes.iter().find(|node| node.cn_id == own).map(|node| node.registration)
    }

    /// Waits until compute node 0 has a later registration than `before`, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn registered_after(
        &self,
        before: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<Instant, SurvivalError> {
        moment("the new agent registers", OFTEN, LIMIT, interrupt, || self.registration() > before)
    }

    /// Number of sessions that the agent of compute node 0 has opened.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn sessions(&self) -> Result<u64, SurvivalError> {
        let all = client::sessions(&self.socket(0))?;
        Ok(all.iter().map(|session| session.status.counters.sessions).sum())
    }

    /// Waits until the agent of compute node 0 has opened more than `before` sessions, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn session_opened(&self, before: u64, interrupt: &Interrupt) -> Result<Instant, SurvivalError> {
        moment("cn0 opens a session", OFTEN, LIMIT, interrupt, || {
            self.sessions().is_ok_and(|now| now > before)
        })
    }

    /// Number of bytes that the agent of compute node 0 has sent.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn sent_bytes(&self) -> Result<u64, SurvivalError> {
        Ok(client::counters(&self.socket(0))?.link.tx_bytes)
    }

    /// Number of bytes of clones and snapshots that a memory node has not copied yet.
    ///
    /// # Errors
    /// The memory node does not answer.
    pub fn left_to_copy(&self, node: &str) -> Result<u64, SurvivalError> {
        let mut stream = UnixStream::connect(self.path(node, ".metrics"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let left = metric(&answer, COPY_LEFT);
        left.ok_or_else(|| format!("{node} serves no metric {COPY_LEFT}: {answer}").into())
    }

    /// Waits until a memory node has copied all clones and snapshots, and returns the moment.
    ///
    /// # Errors
    /// That does not happen in time, or Ctrl-C.
    pub fn copied(&self, node: &str, interrupt: &Interrupt) -> Result<Instant, SurvivalError> {
        moment(&format!("{node} has copied all clones"), OFTEN, COPY_LIMIT, interrupt, || {
            self.left_to_copy(node).is_ok_and(|left| left == 0)
        })
    }
}

/// Value of a metric without labels in a daemon's answer.
fn metric(answer: &str, name: &str) -> Option<u64> {
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse::<f64>().ok().map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let answer =
            "HTTP/1.1 200 OK\r\n\r\n# HELP copied x\n# TYPE copied gauge\ncopied_more 3\ncopied 65536\n";
        assert_eq!(metric(answer, "copied"), Some(65536));
        assert_eq!(metric(answer, "copied_more"), Some(3));
        assert_eq!(metric(answer, "copie"), None);
        assert_eq!(metric("copied x\n", "copied"), None);
    }
}
