//! Common part of `mn-server doctor` and `cn-agent doctor`: the checks of options, machine, permissions, link, keys and
//! folders. Each program passes its own values and adds its own checks. The functions that judge a value do no I/O.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use cxloe_daemon::command_line::doctor::{installed_config, judge_options, judge_protection, no_options};
use cxloe_daemon::doctor::machine::{CpuUse, Machine};
use cxloe_daemon::doctor::nic::{Demand, Nic};
use cxloe_daemon::doctor::permissions::{Process, Xdp};
use cxloe_daemon::doctor::quota::CpuQuota;
use cxloe_daemon::doctor::{Check, Group, Host, Output, Report, dpdk, folder_for_files, secret};
use cxloe_daemon::{ConfigError, OptionSources, Unit, instance_socket, is_outside_kernel};
use cxloe_link::dpdk::DeviceFacts;
use cxloe_link::udp::own_address;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, ETHERNET_HEADER, LinkConfig, LinkDown, LinkError, own_mac};
use cxloe_wire::frame::{Gcm, HEADER_LEN, LINE_SIZE, MAX_FRAME_LIMIT, Mac};

use crate::config::NodeConfig;
use crate::program::ProgramSettings;

/// Maximum length of a frame's trailer, which holds its seal or checksum, in bytes.
const TRAILER_MAX: usize = Gcm::TRAILER_LEN;
/// Slots of a link's receive ring.
const RING: u32 = 1024;
/// Room that all state files of a node take at most, in bytes.
const STATE_BYTES: u64 = 1 << 20;

/// Release of this program, which all daemons of the fabric should have.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Machine that a node is to run on, and the rights of this process on it.
#[derive(Debug)]
pub struct NodeHost {
    pub host: Host,
    /// Capabilities and limits of the node: those that its systemd unit sets or, without a unit, those of this process.
    pub process: Process,
    /// Socket of the node if the node is one of several instances on this machine; `None` for the default
    /// socket.
    pub socket: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Workers {
    pub count: u32,
    /// Queues of the interface that each worker serves.
    pub queues: u32,
    /// Whether each queue has an address of its own, to which its frames are sent.
    pub sharded: bool,
    /// CPUs that the workers are pinned to; empty if they are not pinned.
    pub cpus: Vec<usize>,
    /// Name of the flag that pins the workers, for the advice.
    pub flag: &'static str,
}

impl Workers {
    /// Addresses of all queues, by number, on the interface of `link`; none if the queues share one, or if the interface
    /// has none yet.
    fn addresses(&self, link: &LinkConfig) -> Vec<Mac> {
        let own = if self.sharded { own_mac(link).ok() } else { None };
        let shards = |own: Mac| (0..self.count * self.queues).map(move |shard| own.shard(shard as u8));
        own.into_iter().flat_map(shards).collect()
    }
}

impl NodeHost {
    pub fn read() -> NodeHost {
        let host = Host::default();
        NodeHost { process: Process::read(&host), host, socket: None }
    }

    /// Checks a node with the options `settings` and those in the file `config`. If neither a file nor an interface is
    /// given, the installed file (`/etc/cxloe/PROGRAM.toml`) is used. `resolve` completes the options, and `examine`
    /// checks the node that they describe.
    pub fn check<S: ProgramSettings, C>(
        &mut self,
        config: Option<PathBuf>,
        mut settings: OptionSources<S>,
        resolve: impl FnOnce(Option<PathBuf>, OptionSources<S>) -> Result<C, ConfigError>,
        examine: impl FnOnce(&NodeHost, &C) -> Vec<Check>,
    ) -> Vec<Check> {
        let interface = settings.flags.common().1.interface.clone();
        let given = config.is_some() || interface.is_some();
        let installed = PathBuf::from(format!("/etc/cxloe/{}.toml", S::PROGRAM));
        let config = config.or_else(|| installed_config(&installed, given));
        let from = config.clone();
        if let Some(file) = &from {
            self.socket = instance_socket(S::PROGRAM, file);
        }
        let unit = from.as_deref().and_then(|file| Unit::find(S::PROGRAM, file));
        if let Some(unit) = &unit {
            self.process = Process::of_unit(unit);
        }
        let resolved = resolve(config, settings);
        let error = resolved.as_ref().err().map(ToString::to_string);
        let mut checks = match error {
            Some(_) if from.is_none() && !given => vec![no_options(S::PROGRAM, &installed)],
            error => vec![judge_options(from.as_deref(), &installed, error)],
        };
        checks.push(self.process.judge_whose());
        checks.push(CpuQuota::read(&self.host, unit.as_ref()).judge(self.process.unit.as_deref()));
        match resolved {
            Ok(config) => checks.extend(examine(self, &config)),
            Err(_) => {
                checks.extend(Machine::read(&self.host).judge());
                checks.extend(self.examine_interface::<S>(interface.as_deref()));
            }
        }
        checks
    }

    /// Checks of an interface, if one is given, for a node whose other options cannot be used.
    fn examine_interface<S: ProgramSettings>(&self, interface: Option<&str>) -> Vec<Check> {
        if let Some(name) = interface.filter(|name| is_outside_kernel(name)) {
            return dpdk::device(&self.host, name).judge(&self.process, 1, false);
        }
        let mut checks = self.process.judge_links(S::PROGRAM, Xdp::May, 1);
        let judge = |name: &str| Nic::read(&self.host, name).judge(&demand(1, Backend::Auto, false, None));
        checks.extend(interface.into_iter().flat_map(judge));
        checks
    }

    /// Checks that apply whether or not the node runs; `link` is the configuration of its first link. A device that the
    /// running node has (`in_use`) is not opened, as it belongs to one process.
    pub fn examine<S: ProgramSettings>(
        &self,
        config: &NodeConfig,
        workers: Workers,
        nic: &Nic,
        link: &LinkConfig,
        in_use: bool,
    ) -> Vec<Check> {
        let device =
            is_outside_kernel(&config.interface).then(|| dpdk::device(&self.host, &config.interface));
        let spinning = config.wait == WaitStyle::Busy;
        let machine = Machine::read(&self.host);
        let mut checks = machine.judge();
        checks.extend(machine.judge_cpus(&CpuUse {
            workers: workers.count as usize,
            spinning,
            pinned: workers.cpus.clone(),
            flag: workers.flag,
            near: device.as_ref().map_or(nic.numa_node, |device| device.numa_node()),
        }));
        let queues = workers.count * workers.queues;
        if let Some(device) = &device {
            checks.extend(device.judge(&self.process, queues.into(), in_use));
            let link = LinkConfig { queues, ..link.clone() };
            checks.push(judge_device((!in_use).then(|| cxloe_link::dpdk::look(&link)), queues));
        } else if config.is_over_udp() {
            checks.push(self.process.judge_udp(&self.host));
            checks.push(judge_address(&own_address(link)));
        } else {
            checks.extend(self.process.judge_links(S::PROGRAM, xdp(config.backend), queues.into()));
            checks.extend(nic.judge(&Demand {
                queues: workers.queues,
                addresses: workers.addresses(link),
                ..demand(workers.count, config.backend, spinning, config.priority)
            }));
        }
        checks.push(judge_protection(config.protection(S::PROGRAM)));
        checks.extend(config.key_file.as_deref().map(|path| secret("key", path)));
        checks.push(folder_for_files("state", &config.data_dir, STATE_BYTES, "--data-dir"));
        checks
    }
}

pub fn print<S: ProgramSettings>(checks: Vec<Check>, json: bool) -> ExitCode {
    let output = if json { Output::Json } else { Output::Table };
    Report::new(S::PROGRAM, RELEASE, checks).print(output)
}

/// Judges a DPDK device for a node with `queues` queues by its description, for which the plug-in was loaded and DPDK
/// started; `None` if the running node has the device.
fn judge_device(found: Option<Result<DeviceFacts, LinkError>>, queues: u32) -> Check {
    let (group, name) = (Group::Interface, "DPDK device");
    match found {
        None => Check::ok(group, name, "the running node has it"),
        Some(Ok(DeviceFacts { mac, queues: 0..=1, .. })) if queues > 1 => {
            let found = format!("{mac}, with one queue for {queues}");
            Check::fail(group, name, found, "leave --workers and --queues at 1")
        }
        Some(Ok(DeviceFacts { mac, queues: has, .. })) if u32::from(has) < queues => {
            let found = format!("{mac}, with {has} queues for {queues}");
            Check::fail(group, name, found, format!("lower --workers or --queues: {has} in all"))
        }
        // Only a device that is open shows whether it accepts rules.
        Some(Ok(DeviceFacts { mac, queues: has, driver, .. })) if queues > 1 => {
            Check::ok(group, name, format!("{mac}, driver {driver} with {has} queues"))
        }
        Some(Ok(DeviceFacts { mac, .. })) => Check::ok(group, name, mac.to_string()),
        Some(Err(error)) => {
            let advice = "the link cannot be opened: other checks of memory, rights and the card may say why";
            Check::fail(group, name, error.to_string(), advice)
        }
    }
}

fn judge_address(address: &Result<SocketAddr, LinkError>) -> Check {
    let (group, name) = (Group::Interface, "UDP address");
    match address {
        Ok(address) => Check::ok(group, name, address.to_string()),
        Err(error) => Check::fail(group, name, error.to_string(), "the link cannot be opened without one"),
    }
}

/// Judges the link of a running node: `open` describes an open link, `advice` is for a link that is down.
pub fn judge_link(down: Option<&LinkDown>, open: String, advice: &str) -> Check {
    let (group, name) = (Group::Daemon, "link");
    match down {
        None => Check::ok(group, name, open),
        Some(down) => Check::fail(
            group,
            name,
            format!("closed for {} s: {}", down.for_ns / 1_000_000_000, down.why),
            advice,
        ),
    }
}

fn xdp(backend: Backend) -> Xdp {
    match backend {
        Backend::Xdp => Xdp::Must,
        Backend::Auto | Backend::AutoLatency | Backend::AutoThroughput => Xdp::May,
        Backend::Packet | Backend::Pnet | Backend::Udp => Xdp::Not,
    }
}

/// Demand of a node on its interface, for workers with a queue each.
pub fn demand(workers: u32, backend: Backend, spinning: bool, priority: Option<u8>) -> Demand {
    Demand {
        mtu_min: HEADER_LEN + LINE_SIZE + TRAILER_MAX - ETHERNET_HEADER,
        mtu_page: MAX_FRAME_LIMIT - ETHERNET_HEADER,
        workers,
        queues: 1,
        addresses: Vec::new(),
        ring: RING,
        spinning,
        xdp: xdp(backend),
        priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;

    #[test]
    fn a_node_without_a_link_fails_and_says_why() {
        let judge = |down| judge_link(down, "open, by xdp".into(), "mend the interface");
        assert_eq!((judge(None).level, judge(None).found.as_str()), (Level::Ok, "open, by xdp"));
        let (why, for_ns) = ("interface `x` is down".to_owned(), 7_000_000_000);
        let check = judge(Some(&LinkDown { why, for_ns }));
        assert_eq!(
            (check.level, check.found.as_str(), check.advice.as_deref()),
            (Level::Fail, "closed for 7 s: interface `x` is down", Some("mend the interface"))
        );
    }

    #[test]
    fn only_queues_with_addresses_of_their_own_are_steered_to() {
        let workers = |sharded| Workers { count: 2, queues: 2, sharded, cpus: Vec::new(), flag: "--cpus" };
        // The loopback interface has no Ethernet address, so no link can be opened on it.
        assert!(workers(true).addresses(&LinkConfig::new("lo")).is_empty());
        assert!(workers(false).addresses(&LinkConfig::new("lo")).is_empty());
    }

    #[test]
    fn a_device_is_there_or_in_use() {
        let facts = |queues| DeviceFacts { mac: Mac::default(), queues, driver: "net_ice".into(), up: false };
        assert_eq!(judge_device(None, 4).level, Level::Ok);
        assert_eq!(judge_device(Some(Ok(facts(1))), 1).found, Mac::default().to_string());
        assert!(judge_device(Some(Ok(facts(64))), 4).found.contains("driver net_ice with 64 queues"));
        let (one, few) = (judge_device(Some(Ok(facts(1))), 2), judge_device(Some(Ok(facts(2))), 4));
        assert_eq!([one.level, few.level], [Level::Fail; 2]);
        assert!(one.advice.unwrap().contains("--workers and --queues at 1"));
        assert!(few.found.contains("with 2 queues for 4"), "{}", few.found);
        assert_eq!(judge_device(Some(Err(LinkError::Down("x".into()))), 1).level, Level::Fail);
    }

    #[test]
    fn a_page_takes_what_the_protocol_says() {
        let demand = demand(2, Backend::Xdp, true, Some(3));
        assert_eq!((demand.mtu_min, demand.mtu_page, demand.xdp), (97, 4137, Xdp::Must));
    }
}
