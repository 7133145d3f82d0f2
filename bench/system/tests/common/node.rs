//! Daemons and compute nodes for tests: a real `mn-server` with a static map, and line ports that reach it.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, Station};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, Target};
use cxloe_lab::{Lab, Process, program};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Link, LinkConfig, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::Timing;
use libtest_mimic::Failed;
use nix::sys::signal::Signal;

use super::{LIMIT, ensure, eventually};

/// A running `mn-server`.
pub struct MemoryNode {
    process: Process,
    log: std::path::PathBuf,
}

impl MemoryNode {
    /// Starts one on `interface` that gives each CN of `map` the bytes beside it, from CMem address 0 on, and waits
    /// until it serves. Files go into `folder`.
    pub fn start(
        lab: &Lab,
        interface: &str,
        backend: Backend,
        map: &[(Mac, u64)],
        folder: &Path,
    ) -> Result<MemoryNode, Failed> {
        MemoryNode::start_with(lab, interface, backend, map, folder, &[])
    }

    /// The same with further options.
    pub fn start_with(
        lab: &Lab,
        interface: &str,
        backend: Backend,
        map: &[(Mac, u64)],
        folder: &Path,
        more: &[&str],
    ) -> Result<MemoryNode, Failed> {
        let listed: String =
            map.iter().map(|(cn, bytes)| format!("[[map]]\ncn = \"{cn}\"\nsize = {bytes}\n")).collect();
        let (file, log) = (folder.join("map.toml"), folder.join("mn-server.log"));
        fs::write(&file, listed)?;
        let mut command = Command::new(program("mn-server")?);
        let pool = map.iter().map(|(_, bytes)| bytes).sum::<u64>().max(32 << 20) + (32 << 20);
        command.args(["-i", interface, "--name", "mn1", "--wait", "adaptive"]);
        command.args(["--pool-size", &pool.to_string()]);
        command.args(["--link", &backend.to_string()]).arg("--static-map").arg(&file).args(more);
        command.arg("--data-dir").arg(folder);
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
    pub fn resident_kib(&self) -> Result<u64, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).ok_or("it does not run any more")?;
        Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse()?)
    }

    /// Has it do nothing, until [`MemoryNode::resume`].
    pub fn pause(&self) -> Result<(), Failed> {
        Ok(self.process.signal(Signal::SIGSTOP)?)
    }

    /// Has it go on.
    pub fn resume(&self) -> Result<(), Failed> {
        Ok(self.process.signal(Signal::SIGCONT)?)
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) -> Result<ExitStatus, Failed> {
        self.process.signal(Signal::SIGKILL)?;
        Ok(self.process.wait(LIMIT)?)
    }

    /// Ends it with SIGTERM.
    pub fn end(mut self) -> Result<ExitStatus, Failed> {
        Ok(self.process.terminate(LIMIT)?)
    }
}

/// Opens a link on an interface of the lab.
pub fn link_on(lab: &Lab, config: &LinkConfig) -> Result<Box<dyn Link>, Failed> {
    Ok(lab.home_of(&config.interface)?.enter(|| open(config))??)
}

/// A line port on `link` to `bytes` of the memory node at `peer`, seen from `hpa` on; not yet connected.
pub fn port(
    link: Box<dyn Link>,
    peer: Mac,
    hpa: u64,
    bytes: u64,
    cache: CacheConfig,
) -> Result<Port, Failed> {
    let info = link.info().clone();
    let station = Station {
        own: info.mac,
        ethertype: ETHERTYPE_DEFAULT,
        max_frame: info.max_frame,
        streams: STREAMS_DEFAULT,
        instance: 0x5EED,
        key: None,
        timing: Timing::default(),
    };
    let mut port =
        Port::new(link, Engine::new(cache), WaitStyle::Adaptive { spin: Duration::from_micros(50) });
    let now = port.clock().now();
    let peer = port.engine().add_peer(station.requester(peer), now);
    port.engine().add_route(Route::direct(hpa, bytes, Target { peer, cmem: 0, incarnation: None }))?;
    Ok(port)
}
