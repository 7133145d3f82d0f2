//! `mn-server doctor`: whether this machine is ready for a memory node with these options, whether one runs, and how it
//! stands with its manager. Facts are gathered here; what they mean is judged by functions that ask nobody.

mod pool;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use cxloe_daemon::command_line::doctor::{Asked, installed_config, judge_options, judge_protection};
use cxloe_daemon::doctor::machine::{Machine, Use};
use cxloe_daemon::doctor::nic::{Demand, Nic};
use cxloe_daemon::doctor::permissions::{Process, Xdp};
use cxloe_daemon::doctor::{Check, Group, Host, Output, Report, folder_for_files, secret};
use cxloe_fabric::model::Health;
use cxloe_link::udp::own_address;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, ETHERNET_HEADER, LinkConfig, LinkError, LinkInfo, open};
use cxloe_mn::admin::client::{AskError, ask};
use cxloe_mn::admin::{NodeStatus, default_socket};
use cxloe_mn::config::{Cli, Config, MapSource, Settings};
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MAX_FRAME_LIMIT};

/// Where an installed node's options are.
const INSTALLED: &str = "/etc/cxloe/mn-server.toml";
/// The longest trailer of a frame.
const TRAILER_MAX: usize = 16;
/// Slots of a link's receive ring.
const RING: u32 = 1024;

/// Arguments of `mn-server doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without options, those of /etc/cxloe/mn-server.toml are judged, if it is there.

Exit codes:
  0  all is well        1  something could be better        2  something does not work

Examples:
  mn-server doctor                                as it is installed
  mn-server doctor --config mn.toml --json | jq '.checks[] | select(.level != \"ok\")'
  mn-server doctor -i enp3s0f0 --manager https://10.0.0.1:7440 --wait busy --cpus 2")]
pub struct DoctorArgs {
    /// Read options from FILE, as the node does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The report as JSON
    #[arg(long)]
    json: bool,
    /// Open the link for a moment, as the node does, and tell what kind it is: some drivers reset the interface then
    #[arg(long)]
    try_link: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Examines, and tells.
pub fn run(args: DoctorArgs) -> ExitCode {
    let DoctorArgs { config, json, try_link, settings } = args;
    let given = config.is_some() || settings.interface.is_some();
    let config = config.or_else(|| installed_config(Path::new(INSTALLED), given));
    let interface = settings.interface.clone();
    let from = config.clone();
    let resolved = Cli { config, print_config: false, settings }.resolve();
    let options = judge_options(from.as_deref(), resolved.as_ref().err().map(ToString::to_string));
    let mut checks = vec![options];
    match resolved {
        Ok(config) => checks.extend(examine(&config, try_link)),
        Err(_) => {
            let host = Host::default();
            checks.extend(Machine::read(&host).judge());
            checks.extend(Process::read(&host).judge_links("mn-server", Xdp::May, 1));
            let judge = |name: String| Nic::read(&host, &name).judge(&demand(1, Backend::Auto, false, None));
            checks.extend(interface.into_iter().flat_map(judge));
        }
    }
    let output = if json { Output::Json } else { Output::Table };
    Report::new("mn-server", env!("CARGO_PKG_VERSION"), checks).print(output)
}

fn examine(config: &Config, try_link: bool) -> Vec<Check> {
    let host = Host::default();
    let spinning = config.wait == WaitStyle::Busy;
    let nic = Nic::read(&host, &config.interface);
    let machine = Machine::read(&host);
    let mut checks = machine.judge();
    checks.extend(machine.judge_cpus(&Use {
        workers: config.workers as usize,
        spinning,
        pinned: config.cpus.clone(),
        flag: "--cpus",
        near: nic.numa_node,
    }));
    let process = Process::read(&host);
    if config.is_over_udp() {
        checks.push(process.judge_udp(&host));
        checks.push(judge_address(&own_address(&link(config))));
    } else {
        checks.extend(process.judge_links("mn-server", xdp(config.backend), u64::from(config.workers)));
        checks.extend(nic.judge(&demand(config.workers, config.backend, spinning, config.priority)));
    }
    checks.push(judge_protection(config.protection()));
    checks.extend(config.key_file.as_deref().map(|path| secret("key", path)));
    checks.push(folder_for_files("state", &config.data_dir, 1 << 20, "--data-dir"));

    let socket = config.socket.clone().unwrap_or_else(default_socket);
    let node = ask(&socket);
    checks.push(judge_daemon(&node));
    checks.extend(node.as_ref().ok().map(judge_running_link));
    if matches!(node, Err(AskError::NoNode { .. })) {
        // What a running node has taken is taken.
        checks.extend(pool::examine(config, &process));
        checks.extend(
            try_link.then(|| judge_link(config.backend, open(&link(config)).map(|link| link.info().clone()))),
        );
    }
    if let MapSource::Manager(url) = &config.source {
        let asked = Asked::at(url, config.identity.as_deref());
        checks.push(asked.judge_manager(url, env!("CARGO_PKG_VERSION")));
        let known = asked.memory_nodes.iter().find(|status| status.node.name.as_str() == config.name);
        checks.extend(
            asked
                .health
                .is_ok()
                .then(|| judge_known(&config.name, node.is_ok(), known.map(|k| k.node.health))),
        );
    }
    checks
}

/// The first of the node's links.
fn link(config: &Config) -> LinkConfig {
    LinkConfig {
        backend: config.backend,
        encap: config.encap,
        ethertype: config.ethertype,
        priority: config.priority,
        busy_poll: config.wait == WaitStyle::Busy,
        udp: config.udp(),
        ..LinkConfig::new(&config.interface)
    }
}

/// Judges where a `udp` link is to listen.
fn judge_address(address: &Result<SocketAddr, LinkError>) -> Check {
    let (group, name) = (Group::Interface, "UDP address");
    match address {
        Ok(address) => Check::ok(group, name, address.to_string()),
        Err(error) => Check::fail(group, name, error.to_string(), "the link cannot be opened without one"),
    }
}

fn xdp(backend: Backend) -> Xdp {
    match backend {
        Backend::Xdp => Xdp::Must,
        Backend::Auto | Backend::AutoLatency | Backend::AutoThroughput => Xdp::May,
        Backend::Packet | Backend::Pnet | Backend::Udp => Xdp::Not,
    }
}

fn demand(workers: u32, backend: Backend, spinning: bool, priority: Option<u8>) -> Demand {
    Demand {
        mtu_min: HEADER_LEN + LINE_SIZE + TRAILER_MAX - ETHERNET_HEADER,
        mtu_page: MAX_FRAME_LIMIT - ETHERNET_HEADER,
        workers,
        ring: RING,
        spinning,
        xdp: xdp(backend),
        priority,
    }
}

/// Judges a link that was opened, or was not.
fn judge_link(wanted: Backend, opened: Result<LinkInfo, LinkError>) -> Check {
    let (group, name) = (Group::Interface, "link opened");
    match opened {
        Err(error) => {
            Check::fail(group, name, error.to_string(), "see the checks of interface and permissions")
        }
        Ok(info) if info.backend == "xdp" && info.detail.contains("generic") => Check::warn(
            group,
            name,
            format!("xdp: {}", info.detail),
            "the driver runs no XDP programs itself, the kernel does so late: another NIC, or `link = packet`, is as fast",
        ),
        Ok(info) if info.backend == "pnet" && wanted.is_auto() => Check::warn(
            group,
            name,
            format!("{}: {}", info.backend, info.detail),
            "packet rings are several times faster; the checks above tell what they take",
        ),
        Ok(info) => Check::ok(group, name, format!("{}: {}", info.backend, info.detail)),
    }
}

/// Judges what a running node tells of itself.
fn judge_daemon(node: &Result<NodeStatus, AskError>) -> Check {
    let (group, name) = (Group::Daemon, "memory node");
    match node {
        Err(AskError::NoNode { .. }) => Check::ok(group, name, "not running"),
        Err(error @ AskError::Forbidden(_)) => {
            Check::warn(group, name, "runs, as another user", error.to_string())
        }
        Err(error) => Check::fail(group, name, error.to_string(), "see its log: journalctl -u mn-server"),
        Ok(node) => {
            let silent = node.workers.iter().find(|worker| {
                worker.age_ns.is_none_or(|age| u128::from(age) > cxloe_mn::admin::FRESH.as_nanos())
            });
            let sessions: usize = node.workers.iter().map(|worker| worker.report.sessions.len()).sum();
            match silent {
                Some(worker) => Check::fail(
                    group,
                    name,
                    format!("worker {} does not report", worker.worker),
                    "it is stuck, or its CPU is taken: see its log (journalctl -u mn-server), then restart it",
                ),
                None => Check::ok(group, name, format!("{} serves {sessions} sessions", node.name)),
            }
        }
    }
}

/// Judges the link of a running node.
fn judge_running_link(node: &NodeStatus) -> Check {
    let (group, name) = (Group::Daemon, "link");
    match &node.link_down {
        None => Check::ok(group, name, format!("open on {}", node.interface)),
        Some(down) => Check::fail(
            group,
            name,
            format!("closed for {} s: {}", down.for_ns / 1_000_000_000, down.why),
            "mend the interface: the node keeps its pool and opens the link again by itself, so do not restart it",
        ),
    }
}

/// Judges whether the manager hears of the node called `name`.
fn judge_known(name: &str, runs: bool, health: Option<Health>) -> Check {
    let (group, check) = (Group::Peers, "registration");
    match (runs, health) {
        (true, Some(Health::Reachable)) => Check::ok(group, check, format!("the manager hears of {name}")),
        (true, _) => Check::fail(
            group,
            check,
            format!("{name} runs, and the manager does not hear of it"),
            "its log tells why (journalctl -u mn-server): often another node has the same name",
        ),
        (false, Some(Health::Reachable)) => Check::warn(
            group,
            check,
            format!("the manager hears of a memory node {name}, which does not run here"),
            "give this one another name with --name, unless it has just ended",
        ),
        (false, Some(_)) => Check::ok(group, check, format!("the manager knows {name} and waits for it")),
        (false, None) => Check::ok(group, check, format!("the manager does not know {name} yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_link::LinkDown;
    use cxloe_mn::admin::{VERSION, WorkerStatus};

    #[test]
    fn a_node_is_judged_by_its_workers() {
        let node = |age_ns| {
            let worker = WorkerStatus { worker: 0, age_ns, report: Default::default() };
            let workers = vec![worker];
            Ok(NodeStatus {
                version: VERSION,
                name: "mn1".into(),
                interface: "x".into(),
                window: 1,
                link_down: None,
                link_reopened: 0,
                workers,
            })
        };
        let level = |node| judge_daemon(&node).level;
        assert_eq!((level(node(Some(5))), level(node(None))), (Level::Ok, Level::Fail));
        assert_eq!(level(node(Some(60_000_000_000))), Level::Fail);
        let path = PathBuf::from("/x");
        let source = || std::io::Error::other("no");
        assert_eq!(level(Err(AskError::NoNode { path: path.clone(), source: source() })), Level::Ok);
        assert_eq!(level(Err(AskError::Forbidden(path.clone()))), Level::Warn);
        assert_eq!(level(Err(AskError::Silent(path))), Level::Fail);
    }

    #[test]
    fn a_node_without_a_link_fails_and_is_not_to_be_restarted() {
        let mut node = NodeStatus {
            version: VERSION,
            name: "mn1".into(),
            interface: "x".into(),
            window: 1,
            link_down: None,
            link_reopened: 0,
            workers: Vec::new(),
        };
        assert_eq!(judge_running_link(&node).level, Level::Ok);
        let (why, for_ns) = ("interface `x` is down".to_owned(), 7_000_000_000);
        node.link_down = Some(LinkDown { why, for_ns });
        let check = judge_running_link(&node);
        assert_eq!(check.level, Level::Fail);
        assert!(
            check.found.contains("7 s: interface `x` is down")
                && check.advice.unwrap().contains("not restart")
        );
    }

    #[test]
    fn names_are_of_one_node_each() {
        let level = |runs, health| judge_known("mn1", runs, health).level;
        assert_eq!(level(true, Some(Health::Reachable)), Level::Ok);
        assert_eq!((level(true, None), level(true, Some(Health::Unreachable))), (Level::Fail, Level::Fail));
        assert_eq!(level(false, Some(Health::Reachable)), Level::Warn);
        assert_eq!((level(false, None), level(false, Some(Health::Unreachable))), (Level::Ok, Level::Ok));
    }

    #[test]
    fn links_are_judged_by_what_was_asked_for_and_what_came() {
        let info = |backend, detail: &str| {
            Ok(LinkInfo {
                backend,
                detail: detail.into(),
                interface: "x".into(),
                mac: Default::default(),
                mtu: 1500,
                max_frame: 1514,
            })
        };
        let level = |wanted, opened| judge_link(wanted, opened).level;
        assert_eq!(level(Backend::Auto, info("xdp", "native, zero copy")), Level::Ok);
        assert_eq!(level(Backend::Auto, info("xdp", "generic, copy")), Level::Warn);
        assert_eq!(level(Backend::Auto, info("packet", "taken because AF_XDP would copy")), Level::Ok);
        assert_eq!(level(Backend::AutoLatency, info("pnet", "")), Level::Warn);
        assert_eq!(level(Backend::Packet, info("packet", "")), Level::Ok);
        assert_eq!(level(Backend::Auto, Err(LinkError::Down("x".into()))), Level::Fail);
    }

    #[test]
    fn a_page_takes_what_the_protocol_says() {
        let demand = demand(2, Backend::Xdp, true, Some(3));
        assert_eq!((demand.mtu_min, demand.mtu_page, demand.xdp), (91, 4131, Xdp::Must));
    }
}
