//! Daemons and compute nodes for tests: a real `mn-server` with a static map, and line ports to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_lab::{Lab, Namespace, Process, program};
use cxloe_link::keys::{SYSTEM, epoch_ns};
use cxloe_link::outer::{Peer, Peers};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Link, LinkConfig, UdpConfig, dpdk, join_queues, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PublicKey};
use cxloe_wire::session::{NodeKey, Timing};
use nix::sys::signal::Signal;

use crate::cable::{CN_AT, LinkKind, MN_AT};
use crate::outcome::{LIMIT, Outcome, ensure, eventually};
use crate::rig::plain;

/// A running `mn-server` with a static map. Dropping this value ends the process.
pub struct MemoryNode {
    process: Process,
    log: std::path::PathBuf,
}

impl MemoryNode {
    /// Starts a memory node on `interface`, with its files in `folder`, and waits until the node serves. A node on a
    /// device of DPDK runs in the namespace `mn`. Each pair of `map` (CN id, bytes) gives a compute node this number of bytes, from CMem address 0 on.
    ///
    /// # Errors
    /// Returns an error when the node does not start, or has ended.
    pub fn start(
        lab: &Lab,
        interface: &str,
        over: impl Into<LinkKind>,
        map: &[(Mac, u64)],
        folder: &Path,
    ) -> Outcome<MemoryNode> {
        MemoryNode::start_with(lab, interface, over, map, folder, &[])
    }

    /// Like [`MemoryNode::start`], with further options.
    ///
    /// # Errors
    /// Returns an error when the node does not start, or has ended.
    pub fn start_with(
        lab: &Lab,
        interface: &str,
        over: impl Into<LinkKind>,
        map: &[(Mac, u64)],
        folder: &Path,
        more: &[&str],
    ) -> Outcome<MemoryNode> {
        let program = Command::new(program("mn-server")?);
        MemoryNode::start_by(program, lab, interface, over, map, folder, more)
    }

    /// Like [`MemoryNode::start_with`]; `command` is the program with its first arguments, or a wrapper of
    /// it.
    ///
    /// # Errors
    /// Returns an error when the node does not start, or has ended.
    pub fn start_by(
        mut command: Command,
        lab: &Lab,
        interface: &str,
        over: impl Into<LinkKind>,
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
        if !more.contains(&"--data-dir") {
            command.arg("--data-dir").arg(folder);
        }
        if !more.contains(&"--pool-keep") {
            // Unless the test sets the option, a killed node loses its memory at once.
            command.args(["--pool-keep", "0s"]);
        }
        if !more.contains(&"--socket") {
            command.arg("--socket").arg(folder.join("mn-server.sock"));
        }
        // The option is not added if the test sets it itself: of an option given twice, the last one takes effect.
        let named = more.contains(&"--udp-peer");
        if let (true, Some((cn, _)), false) = (over.is_inside_udp(), map.first(), named) {
            command.args(["--udp-peer", &format!("{cn}={CN_AT}")]);
        }
        Process::log_to(&mut command, &log)?;
        let process = lab.spawn(home_of(lab, interface)?.map_or("mn", Namespace::name), command)?;
        let mut node = MemoryNode { process, log };
        eventually("mn-server serves", || {
            node.output_text().contains("serving name") || node.process.try_wait().is_ok_and(|s| s.is_some())
        })?;
        let ended = node.process.try_wait()?;
        ensure(ended.is_none(), format!("mn-server ended: {ended:?}: {}", node.output_text()))?;
        Ok(node)
    }

    /// Content of the node's log.
    pub fn output_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Resident memory of the node's process, in KiB.
    ///
    /// # Errors
    /// Returns an error when the process has ended.
    pub fn resident_kib(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).ok_or("it does not run any more")?;
        Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse()?)
    }

    /// Stops the node's process until [`MemoryNode::resume`].
    ///
    /// # Errors
    /// Returns an error when the process has ended.
    pub fn pause(&self) -> Outcome {
        self.process.pause()?;
        Ok(())
    }

    /// Resumes the process that [`MemoryNode::pause`] has stopped.
    ///
    /// # Errors
    /// Returns an error when the process has ended.
    pub fn resume(&self) -> Outcome {
        self.process.resume()?;
        Ok(())
    }

    /// Ends the node's process with SIGKILL; returns its exit status.
    ///
    /// # Errors
    /// Returns an error when the process cannot be ended.
    pub fn kill(mut self) -> Outcome<ExitStatus> {
        self.process.signal(Signal::SIGKILL)?;
        Ok(self.process.wait(LIMIT)?)
    }

    /// Waits until the node's process ends by itself; returns its exit status.
    ///
    /// # Errors
    /// Returns an error when the process does not end.
    pub fn ended(mut self) -> Outcome<ExitStatus> {
        Ok(self.process.wait(LIMIT)?)
    }

    /// Ends the node's process with SIGTERM; returns its exit status.
    ///
    /// # Errors
    /// Returns an error when the process cannot be ended.
    pub fn end(mut self) -> Outcome<ExitStatus> {
        Ok(self.process.terminate(LIMIT)?)
    }
}

/// Configuration of the link from a compute node at the cable's end `cn0` to the memory node at `peer`.
pub fn config_to(over: impl Into<LinkKind>, peer: Mac) -> LinkConfig {
    let LinkKind { backend, encap } = over.into();
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

/// Namespace of an interface of the lab; of a device of DPDK, that of the interface among its arguments, or `None` if it
/// has none.
fn home_of<'a>(lab: &'a Lab, interface: &str) -> Outcome<Option<&'a Namespace>> {
    let named = match dpdk::is_device(interface) {
        true => interface.split(',').find_map(|argument| argument.strip_prefix("iface=")),
        false => Some(interface),
    };
    Ok(named.map(|name| lab.home_of(name)).transpose()?)
}

/// Opens a link on the interface of the lab that `config` names, or on a device of DPDK.
pub fn link_on(lab: &Lab, config: &LinkConfig) -> Outcome<Box<dyn Link>> {
    match home_of(lab, &config.interface)? {
        Some(home) => Ok(home.enter(|| open(config))??),
        None => Ok(open(config)?),
    }
}

/// Opens `queues` queues of the interface as one link.
///
/// # Errors
/// Returns an error when the kernel refuses a queue.
pub fn queues_on(lab: &Lab, config: &LinkConfig, queues: u32) -> Outcome<Box<dyn Link>> {
    let queue = |queue| LinkConfig { queue, queues, sharded: true, ..config.clone() };
    let links = (0..queues).map(|index| link_on(lab, &queue(index))).collect::<Outcome<Vec<_>>>()?;
    Ok(join_queues(links)?)
}

/// A line port over `link` to `bytes` bytes of the memory node at `peer`, mapped at `hpa`; its session is not open yet.
pub fn port(link: Box<dyn Link>, peer: Mac, hpa: u64, bytes: u64, cache: CacheConfig) -> Outcome<Port> {
    port_of(link, 1, peer, hpa, bytes, cache)
}

/// Like [`port`], with the instance number of a program that has been restarted.
pub fn successor(link: Box<dyn Link>, peer: Mac, hpa: u64, bytes: u64, cache: CacheConfig) -> Outcome<Port> {
    instance(link, (1, 0x5EED + 1), peer, (hpa, bytes), cache)
}

/// Like [`port`], with a session for each queue of `link`.
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

/// A line port whose sessions are sealed with node keys: `own`, and the memory nodes' keys in `peers`.
pub fn keyed_port(
    link: Box<dyn Link>,
    own: Arc<NodeKey>,
    peers: BTreeMap<Mac, PublicKey>,
    peer: Mac,
    hpa: u64,
    bytes: u64,
) -> Outcome<Port> {
    let keys = SessionKeys { own: Some(own), named: peers, ..SessionKeys::none(SYSTEM) };
    port_with(link, (1, 0x5EED), peer, (hpa, bytes), CacheConfig::OFF, keys)
}

fn instance(
    link: Box<dyn Link>,
    (queues, instance): (usize, u64),
    peer: Mac,
    (hpa, bytes): (u64, u64),
    cache: CacheConfig,
) -> Outcome<Port> {
    port_with(link, (queues, instance), peer, (hpa, bytes), cache, SessionKeys::none(SYSTEM))
}

fn port_with(
    link: Box<dyn Link>,
    (queues, instance): (usize, u64),
    peer: Mac,
    (hpa, bytes): (u64, u64),
    cache: CacheConfig,
    keys: SessionKeys,
) -> Outcome<Port> {
    let info = link.info().clone();
    let mut station = SessionSettings {
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
        // Sessions between node keys require the thread that computes handshakes.
        port.start_handshaker()?;
        station.keys.epoch_ns = epoch_ns(port.clock());
    }
    let now = port.clock().now();
    let peer = port.engine().add_peer(station.requester(peer), now);
    port.engine().add_route(Route::direct(
        hpa,
        bytes,
        RouteTarget { peer, cmem: 0, incarnation: None, mirror: None },
    ))?;
    Ok(port)
}
