//! Daemons around one switch: a manager, memory nodes and compute nodes as real processes in namespaces, with sealed
//! frames. Any of them can be ended and started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_client::client;
use cxloe_client::message::Attaching;
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Health, Name, Protection};
use cxloe_fabric::{Client, ClientError};
use cxloe_lab::{Interrupt, Lab, Process, program};
use nix::sys::signal::Signal;

use crate::eventually::eventually;

/// Any failure of a run over these daemons.
pub type StarError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum wait for a daemon to start or end, and for an order that copies nothing.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Maximum wait for an answer from the manager to a question; it may have been killed.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time for which the manager may delay its answer to an order, in milliseconds; shorter than the time in which a
/// command has to end after Ctrl-C.
pub const ORDER_MS: u64 = 5_000;

/// Daemons `gmm`, `mn0`, `mn1`, … and `cn0`, `cn1`, …, and the network that they are in.
pub struct Star {
    // Fields are dropped in this order: the processes have to end before their network is removed.
    processes: BTreeMap<String, Process>,
    /// Number of processes of each daemon so far; each has a log of its own.
    starts: BTreeMap<String, u32>,
    pub lab: Lab,
    pub folder: PathBuf,
    memory_nodes: usize,
    compute_nodes: usize,
    pub manager: Client,
    runtime: tokio::runtime::Runtime,
}

/// CN id of compute node number `cn`.
pub fn cn_id(cn: usize) -> Result<CnId, StarError> {
    Ok(cxloe_lab::compute_node_mac(cn).parse()?)
}

impl Star {
    /// Makes the network; the daemons' files will be below `folder`.
    pub fn new(folder: &Path, memory_nodes: usize, compute_nodes: usize) -> Result<Star, StarError> {
        let (processes, starts) = Default::default();
        Ok(Star {
            processes,
            starts,
            lab: Lab::star(memory_nodes, compute_nodes).build()?,
            folder: folder.to_owned(),
            memory_nodes,
            compute_nodes,
            manager: Client::new(&format!("unix:{}", folder.join("gmm.sock").display()))?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// Names of all daemons, the manager's first.
    pub fn names(&self) -> Vec<String> {
        let memory = (0..self.memory_nodes).map(|node| format!("mn{node}"));
        let compute = (0..self.compute_nodes).map(|node| format!("cn{node}"));
        ["gmm".to_owned()].into_iter().chain(memory).chain(compute).collect()
    }

    /// Path of a file of the daemon `name`.
    pub fn path(&self, name: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{name}{end}"))
    }

    /// Socket of the agent of compute node number `cn`.
    pub fn socket(&self, cn: usize) -> PathBuf {
        self.path(&format!("cn{cn}"), ".sock")
    }

    /// Process of a daemon that runs.
    pub fn process(&self, name: &str) -> Option<&Process> {
        self.processes.get(name)
    }

    /// Starts a daemon with further options, and with the state that its earlier processes have left.
    pub fn start(&mut self, name: &str, options: &[&str]) -> Result<(), StarError> {
        let binary = match name {
            "gmm" => "gmm",
            _ if name.starts_with("cn") => "cn-agent",
            _ => "mn-server",
        };
        let mut command = Command::new(program(binary)?);
        if binary == "gmm" {
            command.args(["serve", "--listen", "127.0.0.1:0", "--store"]).arg(self.path(name, ".redb"));
        } else {
            command.args((binary == "cn-agent").then_some("run"));
            command.args(["--name", name, "-i", name, "--manager", self.manager.url()]);
            command.arg("--data-dir").arg(self.path(name, ".data"));
            command.arg("--node-key").arg(self.path(name, ".key"));
        }
        command.args(options).arg("--socket").arg(self.path(name, ".sock"));
        let number = self.starts.entry(name.to_owned()).or_default();
        *number += 1;
        let log = self.folder.join(format!("{name}.{number}.log"));
        Process::log_to(&mut command, &log)?;
        let process = self.lab.spawn(if binary == "gmm" { "switch" } else { name }, command)?;
        self.processes.insert(name.to_owned(), process);
        Ok(())
    }

    /// Sends a signal to a daemon, and waits for its end.
    pub fn end(&mut self, name: &str, signal: Signal) -> Result<(), StarError> {
        if let Some(mut process) = self.processes.remove(name) {
            process.signal(signal)?;
            process.wait(LIMIT)?;
        }
        Ok(())
    }

    /// Sends a question to the manager; `None` if it does not answer in time.
    pub fn ask<T>(&self, question: impl Future<Output = Result<T, ClientError>>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, question).await.ok()?.ok() })
    }

    /// Gives an order to the manager.
    pub fn order<T>(&self, order: impl Future<Output = Result<T, ClientError>>) -> Result<T, StarError> {
        Ok(self.runtime.block_on(order)?)
    }

    /// Waits until the manager can reach all nodes.
    pub fn wait_reachable(&self, interrupt: &Interrupt) -> Result<(), StarError> {
        eventually("the nodes register", LIMIT, interrupt, || {
            let memory = self.ask(self.manager.memory_nodes()).unwrap_or_default();
            let compute = self.ask(self.manager.compute_nodes()).unwrap_or_default();
            let memory = memory.iter().filter(|status| status.node.health == Health::Reachable).count();
            let compute = compute.iter().filter(|node| node.health == Health::Reachable).count();
            (memory, compute) == (self.memory_nodes, self.compute_nodes)
        })
    }

    /// Creates a region of `cn0`, and waits until its agent has attached it.
    pub fn create(
        &self,
        region: &str,
        bytes: u64,
        protect: Protection,
        interrupt: &Interrupt,
    ) -> Result<(), StarError> {
        let create = CreateRegion {
            protect,
            wait_ms: ORDER_MS,
            ..CreateRegion::new(Name::new(region)?, bytes, cn_id(0)?)
        };
        self.order(self.manager.create_region(&create))?;
        let what = format!("region {region} is attached");
        eventually(&what, LIMIT, interrupt, || self.is_attached(0, region))
    }

    /// True if the agent of compute node number `cn` has attached a region.
    pub fn is_attached(&self, cn: usize, region: &str) -> bool {
        let all = client::regions(&self.socket(cn)).unwrap_or_default();
        all.iter().any(|one| one.region == region && one.attachment == Attaching::Attached)
    }
}
