//! A cable with a memory node that has a key at one end; measurements run at the other end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_lab::{Lab, Process, program};
use cxloe_link::keys::{SYSTEM, epoch_ns, node_key};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Link, LinkConfig, open, open_persistent};
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PublicKey};
use cxloe_wire::session::{NodeKey, Timing};
use nix::sys::signal::Signal;

use super::KeysError;

/// MAC address of the compute node, at the near end.
pub const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// MAC address of the memory node, at the far end.
pub const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// MAC address that no node has.
pub const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 3]);
const BYTES: u64 = 4 << 20;
/// Maximum wait until the memory node serves.
const READY: Duration = Duration::from_secs(20);

/// Cable with a compute node's end here and a memory node at the far end.
pub struct Site {
    lab: Lab,
    memory_node: Process,
    /// Number of memory node processes started so far.
    started: u32,
    state: PathBuf,
    own: Arc<NodeKey>,
    /// Public key of the memory node's sessions.
    pub mn_key: PublicKey,
    wait: WaitStyle,
    backend: Backend,
}

impl Site {
    /// Makes the cable and starts the memory node, with files in `state`.
    ///
    /// # Errors
    /// Fails if the network or the memory node cannot be started.
    pub fn new(state: &Path, backend: Backend, wait: WaitStyle) -> Result<Site, KeysError> {
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .namespace("store")
            .veth("cn", "cn0", "mn", "mn0")
            .mac("cn0", &CN.to_string())
            .mac("mn0", &MN.to_string())
            .build()?;
        let own = Arc::new(NodeKey::generate(SYSTEM));
        let mn_key = node_key(&state.join("mn.key"))?.public();
        std::fs::write(state.join("map.toml"), format!("[[map]]\ncn = \"{CN}\"\nsize = {BYTES}\n"))?;
        let command = command(state, backend, wait, &own)?;
        let memory_node = serving(&lab, command, &state.join("mn-server-1.log"))?;
        Ok(Site { lab, memory_node, started: 1, state: state.to_owned(), own, mn_key, wait, backend })
    }

    /// Network with the interface `cn0` at the near end, `mn0` in the memory node's namespace `mn`, and an empty
    /// namespace `store`.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Starts a process of the memory node in place of the previous one; returns the exit status of the previous one.
    ///
    /// # Errors
    /// Fails if the new process does not serve, or the previous one does not end.
    pub fn start_next(&mut self, options: &[&str]) -> Result<std::process::ExitStatus, KeysError> {
        self.started += 1;
        let log = self.state.join(format!("mn-server-{}.log", self.started));
        let mut command = command(&self.state, self.backend, self.wait, &self.own)?;
        command.args(options);
        let next = serving(&self.lab, command, &log)?;
        let mut before = std::mem::replace(&mut self.memory_node, next);
        Ok(before.wait(READY)?)
    }

    /// Sends `signal` to the memory node's process and waits until it ends.
    ///
    /// # Errors
    /// Fails if the process does not end.
    pub fn end(&mut self, signal: Signal) -> Result<(), KeysError> {
        self.memory_node.signal(signal)?;
        self.memory_node.wait(READY)?;
        Ok(())
    }

    /// Configuration of links at the compute node's end.
    pub fn link(&self) -> LinkConfig {
        LinkConfig { backend: self.backend, busy_poll: false, ..LinkConfig::new("cn0") }
    }

    /// Runs `body` in the namespace of the compute node's interface.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, KeysError> {
        Ok(self.lab.enter("cn", body)?)
    }

    /// Port of the compute node, not yet connected; its sessions rekey at the interval `rekey_every`.
    ///
    /// # Errors
    /// Fails if the link cannot be opened.
    pub fn port(&self, rekey_every: Duration) -> Result<Port, KeysError> {
        let link = self.enter(|| open(&self.link()))??;
        self.port_on(link, rekey_every)
    }

    /// Port of the compute node. Its link is opened again whenever the node's interface returns after an absence.
    ///
    /// # Errors
    /// Fails if the link cannot be opened.
    pub fn persistent_port(&self) -> Result<Port, KeysError> {
        let (mut links, _) = self.enter(|| open_persistent(&[self.link()]))??;
        let link = links.pop().expect("a link for each configuration");
        self.port_on(link, Timing::default().rekey_every)
    }

    fn port_on(&self, link: Box<dyn Link>, rekey_every: Duration) -> Result<Port, KeysError> {
        let mut port = Port::new(link, Engine::new(CacheConfig::OFF), self.wait);
        port.start_handshaker()?;
        let keys = SessionKeys {
            own: Some(Arc::clone(&self.own)),
            named: BTreeMap::from([(MN, self.mn_key)]),
            epoch_ns: epoch_ns(port.clock()),
            ..SessionKeys::none(SYSTEM)
        };
        let station = SessionSettings {
            own: CN,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: port.link().info().max_frame,
            streams: STREAMS_DEFAULT,
            instance: rand::random(),
            key: None,
            keys,
            timing: Timing { rekey_every, ..Timing::default() },
        };
        let now = port.clock().now();
        let peer = port.engine().add_peer(station.requester(MN), now);
        port.engine().add_route(Route::direct(
            0,
            BYTES,
            RouteTarget { peer, cmem: 0, incarnation: None, mirror: None },
        ))?;
        Ok(port)
    }
}

/// Command line of the memory node whose files are in `state`.
fn command(state: &Path, backend: Backend, wait: WaitStyle, own: &NodeKey) -> Result<Command, KeysError> {
    let mut command = Command::new(program("mn-server")?);
    command.args(["-i", "mn0", "--name", "mn1", "--pool-size", "64M", "--wait", &wait.to_string()]);
    command.args(["--link", &backend.to_string(), "--peer-key", &format!("{CN}={}", own.public())]);
    command.arg("--node-key").arg(state.join("mn.key")).arg("--static-map").arg(state.join("map.toml"));
    command.arg("--data-dir").arg(state).arg("--socket").arg(state.join("mn.sock"));
    Ok(command)
}

/// Starts a memory node and waits until it serves.
fn serving(lab: &Lab, mut command: Command, log: &Path) -> Result<Process, KeysError> {
    Process::log_to(&mut command, log)?;
    let memory_node = lab.spawn("mn", command)?;
    let started = Instant::now();
    loop {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        if said.contains("serving name") {
            return Ok(memory_node);
        }
        if started.elapsed() > READY {
            return Err(KeysError::NotServing(said));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
