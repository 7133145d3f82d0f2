//! A fabric of real daemons for one test: memory nodes and compute nodes around a switch, and a manager all of them reach
//! by a Unix socket. Every wait is bounded; everything ends with the rig.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{self, Client};
use cxloe_client::message::{AttachedRegion, Attaching};
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, LogicalDeviceStatus, Owner};
use cxloe_fabric::model::{ByteSize, CnId, Name, Region, RegionState};
use cxloe_lab::{Lab, Process, compute_node_mac, program};
use libtest_mimic::Failed;
use nix::sys::signal::Signal;
use tempfile::TempDir;

pub type Outcome<T = ()> = Result<T, Failed>;

/// Bound of every wait for something that should happen.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long calls of the manager may wait, in milliseconds.
pub const WAIT_MS: u64 = 30_000;
pub const MIB: u64 = 1 << 20;

pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Waits until `probe` gives something, at most [`LIMIT`].
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> Outcome<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        ensure(Instant::now() < deadline, format!("did not happen: {what}"))?;
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("names of tests are names")
}

/// The CN id of compute node number `index`.
pub fn cn(index: usize) -> CnId {
    compute_node_mac(index).parse().expect("addresses of a star are CN ids")
}

pub struct Rig {
    pub lab: Lab,
    pub dir: TempDir,
    /// Running daemons, by name: `gmm`, `mn0`, `cn0` ….
    daemons: RefCell<BTreeMap<String, Process>>,
    /// How often each was started.
    starts: RefCell<BTreeMap<String, usize>>,
    runtime: tokio::runtime::Runtime,
    pub manager: cxloe_fabric::Client,
}

impl Rig {
    /// The network, a manager with `options`, and no node yet.
    pub fn new(memory_nodes: usize, compute_nodes: usize, options: &[&str]) -> Outcome<Rig> {
        let dir = tempfile::tempdir()?;
        let url = format!("unix:{}", dir.path().join("gmm.sock").display());
        let rig = Rig {
            lab: Lab::star(memory_nodes, compute_nodes).build()?,
            dir,
            daemons: RefCell::default(),
            starts: RefCell::default(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            manager: cxloe_fabric::Client::new(&url)?,
        };
        rig.start_gmm(options)?;
        Ok(rig)
    }

    /// The same with all nodes, pools of `pool` each.
    pub fn whole(memory_nodes: usize, compute_nodes: usize, pool: &str) -> Outcome<Rig> {
        let rig = Rig::new(memory_nodes, compute_nodes, &[])?;
        for index in 0..memory_nodes {
            rig.start_mn(index, &["--pool-size", pool])?;
        }
        for index in 0..compute_nodes {
            rig.start_agent(index, &[])?;
        }
        Ok(rig)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a call of the manager comes to.
    pub fn ask<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        self.runtime.block_on(call)
    }

    fn start(&self, name: &str, namespace: &str, binary: &str, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(program(binary)?);
        command.args(arguments);
        *self.starts.borrow_mut().entry(name.into()).or_default() += 1;
        Process::log_to(&mut command, &self.log(name))?;
        self.daemons.borrow_mut().insert(name.into(), self.lab.spawn(namespace, command)?);
        Ok(())
    }

    /// The log of the latest start of a daemon.
    pub fn log(&self, name: &str) -> PathBuf {
        let starts = self.starts.borrow().get(name).copied().unwrap_or_default();
        self.path(&format!("{name}.{starts}.log"))
    }

    /// Waits until the latest start of a daemon has said `words`.
    pub fn says(&self, name: &str, words: &str) -> Outcome {
        let log = self.log(name);
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        eventually(&format!("{name} says {words:?}"), || said().contains(words).then_some(()))
            .map_err(|error| format!("{}; its log:\n{}", error.message().unwrap_or_default(), said()).into())
    }

    pub fn start_gmm(&self, options: &[&str]) -> Outcome {
        let (store, socket) = (self.path("gmm.redb"), self.path("gmm.sock"));
        let usual = [["--listen", "127.0.0.1:0"], ["--node-timeout-ms", "1000"]];
        let usual: Vec<_> = usual.into_iter().filter(|[flag, _]| !options.contains(flag)).flatten().collect();
        let places = ["--store", text(&store), "--socket", text(&socket)];
        self.start("gmm", "switch", "gmm", &[&["serve"], &usual[..], &places, options].concat())?;
        eventually("the manager answers", || self.ask(self.manager.health()).ok())
            .map_err(|e| self.with_log(e, "gmm"))?;
        Ok(())
    }

    /// Starts a memory node and waits until the manager reaches it.
    pub fn start_mn(&self, index: usize, options: &[&str]) -> Outcome {
        self.start_mn_alone(index, options)?;
        self.says(&format!("mn{index}"), "registered with the manager")
    }

    /// Starts a memory node, whoever is there.
    pub fn start_mn_alone(&self, index: usize, options: &[&str]) -> Outcome {
        let (node, data) = (format!("mn{index}"), self.path(&format!("mn{index}.data")));
        let socket = self.path(&format!("{node}.sock"));
        let usual = ["--name", &node, "-i", &node, "--link", "packet", "--manager", self.manager.url()];
        let places = ["--data-dir", text(&data), "--socket", text(&socket), "--prefault", "false"];
        self.start(&node, &node, "mn-server", &[&usual[..], &places, options].concat())
    }

    pub fn start_agent(&self, index: usize, options: &[&str]) -> Outcome {
        self.start_agent_with(index, "2s", options)
    }

    /// Starts an agent that gives up a memory node after `patience`.
    pub fn start_agent_with(&self, index: usize, patience: &str, options: &[&str]) -> Outcome {
        let (node, data) = (format!("cn{index}"), self.path(&format!("cn{index}.data")));
        let socket = self.socket(index);
        let usual =
            ["run", "--name", &node, "-i", &node, "--link", "packet", "--manager", self.manager.url()];
        let places = ["--data-dir", text(&data), "--socket", text(&socket), "--session-timeout", patience];
        self.start(&node, &node, "cn-agent", &[&usual[..], &places, options].concat())?;
        self.says(&node, "serving")
    }

    fn with_log(&self, error: Failed, name: &str) -> Failed {
        let said = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        format!("{}; its log:\n{said}", error.message().unwrap_or_default()).into()
    }

    /// Ends a daemon by `signal`, and waits for its end.
    pub fn end(&self, name: &str, signal: Signal) -> Outcome {
        let mut process = self.daemons.borrow_mut().remove(name).ok_or("it does not run")?;
        process.signal(signal)?;
        process.wait(LIMIT)?;
        Ok(())
    }

    /// Stops a daemon without its knowing, or lets it go on.
    pub fn pause(&self, name: &str, pause: bool) -> Outcome {
        let daemons = self.daemons.borrow();
        let process = daemons.get(name).ok_or("it does not run")?;
        Ok(process.signal(if pause { Signal::SIGSTOP } else { Signal::SIGCONT })?)
    }

    /// The socket of an agent.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.path(&format!("cn{index}.sock"))
    }

    pub fn connect(&self, index: usize) -> Outcome<Client> {
        Ok(Client::connect(&self.socket(index))?)
    }

    /// Runs `cn-agent` against an agent.
    pub fn cli(&self, index: usize, arguments: &[&str]) -> Outcome<Output> {
        let mut command = Command::new(program("cn-agent")?);
        command.args(arguments).stdin(Stdio::null()).env("CXLOE_AGENT", self.socket(index));
        Ok(command.output()?)
    }

    /// Creates a region over these memory nodes, in as many ways, and waits until its owner has it.
    pub fn create(
        &self,
        name: &str,
        owner: usize,
        size: u64,
        on: &[usize],
        granularity: u32,
    ) -> Outcome<u64> {
        let on: Vec<Name> = on.iter().map(|index| self::name(&format!("mn{index}"))).collect();
        let ways = on.len() as u32;
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

    pub fn destroy(&self, name: &str) -> Outcome {
        let destroy = DestroyRegion { force: true, wait_ms: WAIT_MS };
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
        // Of each memory node.
        let mut last = None;
        for leg in &region.memory_nodes {
            let hpa = region.hpa + leg.offset;
            eventually(&format!("{name} can be read"), || port.read(hpa).map_err(|e| last = Some(e)).ok())
                .map_err(|e| format!("{}; last: {last:?}", e.message().unwrap_or_default()))?;
        }
        Ok(region)
    }

    /// Waits until an agent lists a region as wanted.
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

    /// Waits until the manager says this of a region.
    pub fn region_is(&self, name: &str, state: RegionState) -> Outcome<Region> {
        eventually(&format!("region {name} is {state}"), || {
            let region = self.ask(self.manager.region(&self::name(name))).ok()?;
            (region.state == state).then_some(region)
        })
    }

    /// The logical device of a compute node on a memory node.
    pub fn device(&self, memory_node: usize, owner: usize) -> Outcome<Option<LogicalDeviceStatus>> {
        let node = self::name(&format!("mn{memory_node}"));
        let devices = self.ask(self.manager.logical_devices())?;
        Ok(devices.into_iter().find(|status| {
            let bound = status.device.binding.as_ref().map(|binding| binding.compute_node);
            status.device.memory_node == node && bound == Some(cn(owner))
        }))
    }

    /// Limits a compute node, in bytes.
    pub fn set_quota(&self, owner: usize, bytes: u64) -> Outcome {
        self.ask(self.manager.set_quota(&Owner::CnId(cn(owner)), Some(bytes)))?;
        Ok(())
    }
}

pub fn size(bytes: u64) -> ByteSize {
    ByteSize(bytes)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}

/// Lines in one call of a client.
const CHUNK: usize = 4096;

/// A line that says where it belongs and who wrote it.
pub fn line(hpa: u64, seed: u64) -> [u8; 64] {
    let mut line = [0; 64];
    for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (hpa ^ seed.rotate_left(32)).wrapping_add(i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        *word = (mixed | 1).to_le_bytes();
    }
    line
}

/// Writes every line of `bytes` from `hpa` on.
pub fn fill(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    for chunk in hpas.chunks(CHUNK) {
        let lines: Vec<_> = chunk.iter().map(|hpa| (*hpa, line(*hpa, seed))).collect();
        port.write_batch(&lines)?;
    }
    Ok(())
}

/// Reads every line of `bytes` from `hpa` on; each has to be what `expected` says.
pub fn check(port: &mut Client, hpa: u64, bytes: u64, expected: impl Fn(u64) -> [u8; 64]) -> Outcome {
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    let mut read = vec![[0; 64]; CHUNK];
    for chunk in hpas.chunks(CHUNK) {
        port.read_batch(chunk, &mut read[..chunk.len()])?;
        let wrong = chunk.iter().zip(&read).find(|(hpa, read)| expected(**hpa) != **read);
        ensure(wrong.is_none(), format!("another line than was written: {wrong:x?}"))?;
    }
    Ok(())
}

pub fn verify(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    check(port, hpa, bytes, |hpa| line(hpa, seed))
}
