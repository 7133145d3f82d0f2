//! A fabric of real daemons: memory nodes and compute nodes around a switch, and a manager that all of them reach by a
//! Unix socket. Daemons are called `gmm`, `mn0`, `cn0` and so on. Every wait is bounded; all daemons end when the
//! [`Star`] is dropped.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Output};

use cxloe_client::client::{self, Client};
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, LogicalDeviceStatus, Owner};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{ByteSize, CnId, Name, Region, RegionState};
use cxloe_lab::{Lab, compute_node_mac, program};

use crate::command::run;
pub use crate::lines::{check, fill, line, verify};
pub use crate::outcome::{Failed, LIMIT, Outcome, ensure, eventually};
use crate::rig::{Rig, plain};
use crate::text;

/// Time for which the manager may delay its answer to a call that waits for a state, in milliseconds.
pub const WAIT_MS: u64 = 30_000;
pub const MIB: u64 = 1 << 20;

/// Returns `text` as a name of a node or a region.
///
/// # Panics
/// Panics if the text is no valid name.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("names of tests are names")
}

/// CN id of compute node number `index`.
///
/// # Panics
/// Never panics: every address in a star is a valid CN id.
pub fn cn(index: usize) -> CnId {
    compute_node_mac(index).parse().expect("addresses of a star are CN ids")
}

/// The fabric: network, daemons, and a client of the manager.
pub struct Star {
    rig: Rig,
    runtime: tokio::runtime::Runtime,
    /// Client of the manager's REST interface, over its Unix socket.
    pub manager: cxloe_fabric::Client,
}

impl Deref for Star {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Star {
    /// Makes the network and starts a manager with `options`, without nodes.
    ///
    /// # Errors
    /// Returns an error when the network cannot be made, or the manager does not answer.
    pub fn new(memory_nodes: usize, compute_nodes: usize, options: &[&str]) -> Outcome<Star> {
        let rig = Rig::on(Lab::star(memory_nodes, compute_nodes))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = cxloe_fabric::Client::new(&rig.manager_url())?;
        let star = Star { rig, runtime, manager };
        star.start_gmm(options)?;
        Ok(star)
    }

    /// Like [`Star::new`], but starts all nodes as well; each memory node has a pool of the size `pool`.
    pub fn whole(memory_nodes: usize, compute_nodes: usize, pool: &str) -> Outcome<Star> {
        let rig = Star::new(memory_nodes, compute_nodes, &[])?;
        for index in 0..memory_nodes {
            rig.start_mn(index, &["--pool-size", pool])?;
        }
        for index in 0..compute_nodes {
            rig.start_agent(index, &[])?;
        }
        Ok(rig)
    }

    /// Waits for the result of a call to the manager.
    pub fn ask<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        self.runtime.block_on(call)
    }

    fn start_daemon(&self, name: &str, namespace: &str, binary: &str, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(program(binary)?);
        command.args(arguments);
        self.start(name, namespace, command)
    }

    /// Starts the manager and waits until it answers.
    pub fn start_gmm(&self, options: &[&str]) -> Outcome {
        let (store, socket) = (self.path("gmm.redb"), self.path("gmm.sock"));
        let usual = [["--listen", "127.0.0.1:0"], ["--node-timeout-ms", "1000"]];
        let usual: Vec<_> = usual.into_iter().filter(|[flag, _]| !options.contains(flag)).flatten().collect();
        let places = ["--store", text(&store), "--socket", text(&socket)];
        self.start_daemon("gmm", "switch", "gmm", &[&["serve"], &usual[..], &places, options].concat())?;
        eventually("the manager answers", || self.ask(self.manager.health()).ok()).map(drop)
    }

    /// Starts a memory node and waits until the manager reports the node as reachable.
    pub fn start_mn(&self, index: usize, options: &[&str]) -> Outcome {
        self.start_mn_alone(index, options)?;
        self.says(&format!("mn{index}"), "registered with the manager")
    }

    /// Starts a memory node, and does not wait for its registration.
    ///
    /// # Errors
    /// Returns an error when the node cannot be started.
    pub fn start_mn_alone(&self, index: usize, options: &[&str]) -> Outcome {
        let (node, data) = (format!("mn{index}"), self.path(&format!("mn{index}.data")));
        let socket = self.path(&format!("{node}.sock"));
        let usual = ["--name", &node, "-i", &node, "--link", "packet", "--manager", self.manager.url()];
        // Without prefault, a pool occupies only the memory that a test touches.
        let places = ["--data-dir", text(&data), "--socket", text(&socket), "--prefault", "false"];
        // Unless the test sets the option, a killed node loses its memory at once.
        let kept = ["--pool-keep", "0s"];
        let places =
            if options.contains(&"--pool-keep") { places.to_vec() } else { [&places[..], &kept].concat() };
        self.start_daemon(&node, &node, "mn-server", &[&usual[..], &places, options, plain(options)].concat())
    }

    /// Starts the agent of a compute node and waits until it serves.
    pub fn start_agent(&self, index: usize, options: &[&str]) -> Outcome {
        self.start_agent_with(index, "2s", options)
    }

    /// Starts an agent that fails operations on an unreachable memory node after `patience`.
    pub fn start_agent_with(&self, index: usize, patience: &str, options: &[&str]) -> Outcome {
        let (node, data) = (format!("cn{index}"), self.path(&format!("cn{index}.data")));
        let socket = self.socket(index);
        let usual =
            ["run", "--name", &node, "-i", &node, "--link", "packet", "--manager", self.manager.url()];
        let places = ["--data-dir", text(&data), "--socket", text(&socket), "--session-timeout", patience];
        self.start_daemon(
            &node,
            &node,
            "cn-agent",
            &[&usual[..], &places, options, plain(options)].concat(),
        )?;
        self.says(&node, "serving")
    }

    /// Socket of the agent of compute node number `index`, for programs.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.path(&format!("cn{index}.sock"))
    }

    /// Opens a port of the agent of compute node number `index`.
    pub fn connect(&self, index: usize) -> Outcome<Client> {
        Ok(Client::connect(&self.socket(index))?)
    }

    /// Runs a command of `cn-agent` that uses the socket of an agent.
    ///
    /// # Errors
    /// Returns an error when the command cannot be started.
    pub fn cli(&self, index: usize, arguments: &[&str]) -> Outcome<Output> {
        run("cn-agent", arguments, Some(&self.socket(index)))
    }

    /// Creates a region interleaved over these memory nodes, and waits until its owner has attached it.
    pub fn create(
        &self,
        name: &str,
        owner: usize,
        size: u64,
        on: &[usize],
        granularity: u32,
    ) -> Outcome<u64> {
        let on: Vec<Name> = on.iter().map(|index| self::name(&format!("mn{index}"))).collect();
        let ways = Ways::try_from(on.len() as u32)?;
        let granularity = Granularity::try_from(granularity)?;
        let create = CreateRegion {
            ways,
            granularity,
            on,
            wait_ms: WAIT_MS,
            ..CreateRegion::new(self::name(name), size, cn(owner))
        };
        self.ask(self.manager.create_region(&create))?;
        Ok(self.attached(owner, name)?.hpa)
    }

    /// Destroys a region, and waits until the manager no longer lists the region.
    pub fn destroy(&self, name: &str) -> Outcome {
        let destroy = DestroyRegion { force: true, wait_ms: WAIT_MS, created_ms: None };
        self.ask(self.manager.destroy_region(&self::name(name), destroy))?;
        eventually(&format!("region {name} is gone"), || {
            self.ask(self.manager.region(&self::name(name))).is_err().then_some(())
        })
    }

    /// Waits until a region is attached and usable.
    pub fn attached(&self, owner: usize, name: &str) -> Outcome<AttachedRegion> {
        let region = self.listed(owner, name, |region| {
            region.attachment == Attaching::Attached && region.state == "active"
        })?;
        let mut port = self.connect(owner)?;
        // Last error of a read, for the message of a failure.
        let mut last = None;
        // A successful read from each leg (a part of the region on one memory node) shows that the leg is mapped and
        // its session is open.
        for leg in &region.memory_nodes {
            let hpa = region.hpa + leg.offset;
            eventually(&format!("{name} can be read"), || port.read(hpa).map_err(|e| last = Some(e)).ok())
                .map_err(|e| format!("{}; last: {last:?}", e.message().unwrap_or_default()))?;
        }
        Ok(region)
    }

    /// Waits until an agent lists a region as `wanted` requires.
    pub fn listed(
        &self,
        owner: usize,
        name: &str,
        wanted: impl Fn(&AttachedRegion) -> bool,
    ) -> Outcome<AttachedRegion> {
        let mut seen = None;
        eventually(&format!("region {name} at cn{owner}"), || {
            let regions = client::regions(&self.socket(owner)).ok()?;
            seen = regions.into_iter().find(|region| region.region == name);
            seen.clone().filter(&wanted)
        })
        .map_err(|e| format!("{}; it is {seen:?}", e.message().unwrap_or_default()).into())
    }

    /// Waits until the manager reports this state of a region.
    pub fn region_is(&self, name: &str, state: RegionState) -> Outcome<Region> {
        eventually(&format!("region {name} is {state}"), || {
            let region = self.ask(self.manager.region(&self::name(name))).ok()?;
            (region.state == state).then_some(region)
        })
    }

    /// Logical device of compute node `owner` on memory node `memory_node`, if there is one.
    pub fn device(&self, memory_node: usize, owner: usize) -> Outcome<Option<LogicalDeviceStatus>> {
        let node = self::name(&format!("mn{memory_node}"));
        let devices = self.ask(self.manager.logical_devices())?;
        Ok(devices.into_iter().find(|status| {
            let bound = status.device.binding.as_ref().map(|binding| binding.compute_node);
            status.device.memory_node == node && bound == Some(cn(owner))
        }))
    }

    pub fn set_quota(&self, owner: usize, bytes: u64) -> Outcome {
        self.ask(self.manager.set_quota(&Owner::CnId(cn(owner)), Some(bytes)))?;
        Ok(())
    }
}

pub fn size(bytes: u64) -> ByteSize {
    ByteSize(bytes)
}
