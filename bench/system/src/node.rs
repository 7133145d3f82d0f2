//! Daemons and compute nodes for tests: a real `mn-server` with a static map, and line ports that reach it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, Station, StationKeys};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, Target};
use cxloe_lab::{Lab, Process, program};
use cxloe_link::keys::{SYSTEM, epoch_ns};
use cxloe_link::outer::{Peer, Peers};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Link, LinkConfig, UdpConfig, join_queues, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PublicKey};
use cxloe_wire::session::{NodeKey, Timing};
use nix::sys::signal::Signal;

use crate::cable::{CN_AT, MN_AT, Over};
use crate::outcome::{LIMIT, Outcome, ensure, eventually};
use crate::rig::plain;

/// A running `mn-server`.
pub struct MemoryNode {
    process: Process,
    log: std::path::PathBuf,
}

impl MemoryNode {
    /// Starts one on `interface` that gives each CN of `map` the bytes beside it, from CMem address 0 on, and waits
    /// until it serves. Files go into `folder`.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn start(
        lab: &Lab,
        interface: &str,
        over: impl Into<Over>,
        map: &[(Mac, u64)],
        folder: &Path,
    ) -> Outcome<MemoryNode> {
        MemoryNode::start_with(lab, interface, over, map, folder, &[])
    }

    /// The same with further options.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn start_with(
        lab: &Lab,
        interface: &str,
        over: impl Into<Over>,
        map: &[(Mac, u64)],
        folder: &Path,
        more: &[&str],
    ) -> Outcome<MemoryNode> {
        let program = Command::new(program("mn-server")?);
        MemoryNode::start_by(program, lab, interface, over, map, folder, more)
    }

    /// The same, where `command` starts the program.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn start_by(
        mut command: Command,
        lab: &Lab,
        interface: &str,
        over: impl Into<Over>,
        map: &[(Mac, u64)],
        folder: &Path,
        more: &[&str],
    ) -> Outcome<MemoryNode> {
        let over = over.into();
        let listed: String =
            map.iter().map(|(cn, bytes)| format!("[[map]]\ncn = \"{cn}\"\nsize = {bytes}\n")).collect();
        let (file, log) = (folder.join("map.toml"), folder.join("mn-server.log"));
        fs::write(&file, listed)?;
        let pool = map.iter().map(|(_, bytes)| bytes).sum::<u64>().max(32 << 20) + (32 << 20);
        command.args(["-i", interface, "--name", "mn1", "--wait", "adaptive"]);
        command.args(["--pool-size", &pool.to_string()]);
        command.args(["--link", &over.backend.to_string(), "--encap", &over.encap.to_string()]);
        command.arg("--static-map").arg(&file).args(more).args(plain(more));
        command.arg("--data-dir").arg(folder);
        if !more.contains(&"--socket") {
            command.arg("--socket").arg(folder.join("mn-server.sock"));
        }
        // What is named last stands.
        let named = more.contains(&"--udp-peer");
        if let (true, Some((cn, _)), false) = (over.is_inside_udp(), map.first(), named) {
            command.args(["--udp-peer", &format!("{cn}={CN_AT}")]);
        }
        Process::log_to(&mut command, &log)?;
        let process = lab.spawn(lab.home_of(interface)?.name(), command)?;
        let mut node = MemoryNode { process, log };
        eventually("mn-server serves", || {
            node.said().contains("serving name") || node.process.try_wait().is_ok_and(|s| s.is_some())
        })?;
        let ended = node.process.try_wait()?;
        ensure(ended.is_none(), format!("mn-server ended: {ended:?}: {}", node.said()))?;
        Ok(node)
    }

    /// What it has logged.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its resident memory in KiB.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn resident_kib(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).ok_or("it does not run any more")?;
        Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse()?)
    }

    /// Has it do nothing, until [`MemoryNode::resume`].
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn pause(&self) -> Outcome {
        self.process.pause()?;
        Ok(())
    }

    /// Has it go on.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn resume(&self) -> Outcome {
        self.process.resume()?;
        Ok(())
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn kill(mut self) -> Outcome<ExitStatus> {
        self.process.signal(Signal::SIGKILL)?;
        Ok(self.process.wait(LIMIT)?)
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// When it does not, or does not run any more.
    pub fn end(mut self) -> Outcome<ExitStatus> {
        Ok(self.process.terminate(LIMIT)?)
    }
}

/// How to open the compute node's link to the memory node at `peer`, by the first end of a cable.
pub fn config_to(over: impl Into<Over>, peer: Mac) -> LinkConfig {
    let Over { backend, encap } = over.into();
    let address = MN_AT.parse().expect("an address");
    let peers = Peers::named(&[Peer { mac: peer, address }]);
    LinkConfig {
        backend,
        encap,
        busy_poll: false,
        udp: UdpConfig { peers, ..UdpConfig::default() },
        ..LinkConfig::new("cn0")
    }
}

/// Opens a link on an interface of the lab.
///
/// # Errors
/// When the kernel or the engine refuses.
pub fn link_on(lab: &Lab, config: &LinkConfig) -> Outcome<Box<dyn Link>> {
    Ok(lab.home_of(&config.interface)?.enter(|| open(config))??)
}

/// Opens so many queues of the interface as one link.
///
/// # Errors
/// When the kernel refuses one.
pub fn queues_on(lab: &Lab, config: &LinkConfig, queues: u32) -> Outcome<Box<dyn Link>> {
    let queue = |queue| LinkConfig { queue, queues, sharded: true, ..config.clone() };
    let links = (0..queues).map(|index| link_on(lab, &queue(index))).collect::<Outcome<Vec<_>>>()?;
    Ok(join_queues(links)?)
}

/// A line port on `link` to `bytes` of the memory node at `peer`, seen from `hpa` on; not yet connected.
///
/// # Errors
/// When the kernel or the engine refuses.
pub fn port(link: Box<dyn Link>, peer: Mac, hpa: u64, bytes: u64, cache: CacheConfig) -> Outcome<Port> {
    port_of(link, 1, peer, hpa, bytes, cache)
}

/// The same of another instance, as a program that was started again is.
///
/// # Errors
/// When the kernel or the engine refuses.
pub fn successor(link: Box<dyn Link>, peer: Mac, hpa: u64, bytes: u64, cache: CacheConfig) -> Outcome<Port> {
    instance(link, (1, 0x5EED + 1), peer, (hpa, bytes), cache)
}

/// The same with sessions for so many queues of `link`.
///
/// # Errors
/// When the kernel or the engine refuses.
pub fn port_of(
    link: Box<dyn Link>,
    queues: usize,
    peer: Mac,
    hpa: u64,
    bytes: u64,
    cache: CacheConfig,
) -> Outcome<Port> {
    instance(link, (queues, 0x5EED), peer, (hpa, bytes), cache)
}

/// A line port by a session between keys: `own`, and the memory nodes' as `peers` names them.
///
/// # Errors
/// When the kernel or the engine refuses.
pub fn keyed_port(
    link: Box<dyn Link>,
    own: Arc<NodeKey>,
    peers: BTreeMap<Mac, PublicKey>,
    peer: Mac,
    hpa: u64,
    bytes: u64,
) -> Outcome<Port> {
    let keys = StationKeys { own: Some(own), named: peers, ..StationKeys::none(SYSTEM) };
    port_with(link, (1, 0x5EED), peer, (hpa, bytes), CacheConfig::OFF, keys)
}

fn instance(
    link: Box<dyn Link>,
    (queues, instance): (usize, u64),
    peer: Mac,
    (hpa, bytes): (u64, u64),
    cache: CacheConfig,
) -> Outcome<Port> {
    port_with(link, (queues, instance), peer, (hpa, bytes), cache, StationKeys::none(SYSTEM))
}

fn port_with(
    link: Box<dyn Link>,
    (queues, instance): (usize, u64),
    peer: Mac,
    (hpa, bytes): (u64, u64),
    cache: CacheConfig,
    keys: StationKeys,
) -> Outcome<Port> {
    let info = link.info().clone();
    let mut station = Station {
        own: info.mac,
        ethertype: ETHERTYPE_DEFAULT,
        max_frame: info.max_frame,
        streams: STREAMS_DEFAULT,
        instance,
        key: None,
        keys,
        timing: Timing::default(),
    };
    let mut port =
        Port::new(link, Engine::new(cache), WaitStyle::Adaptive { spin: Duration::from_micros(50) });
    port.engine().set_queues(queues);
    if station.keys.own.is_some() {
        port.shake_hands()?;
        station.keys.epoch_ns = epoch_ns(port.clock());
    }
    let now = port.clock().now();
    let peer = port.engine().add_peer(station.requester(peer), now);
    port.engine().add_route(Route::direct(hpa, bytes, Target { peer, cmem: 0, incarnation: None }))?;
    Ok(port)
}
