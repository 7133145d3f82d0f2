//! `mn-server doctor`: checks whether this machine is ready for a memory node with these options, whether a node runs,
//! and its state at the manager. The data are gathered here; the functions that judge them do no I/O.

mod pool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use cxloe_daemon::command_line::doctor::ManagerChecks;
use cxloe_daemon::doctor::nic::Nic;
use cxloe_daemon::doctor::{Check, Group};
use cxloe_daemon::{OptionSources, is_outside_kernel};
use cxloe_fabric::model::Health;
use cxloe_link::{Backend, LinkConfig, LinkError, LinkInfo, open};
use cxloe_mn::admin::client::{AskError, ask};
use cxloe_mn::admin::{NodeStatus, default_socket};
use cxloe_mn::config::{Cli, Config, MapSource, Settings};
use cxloe_node::doctor::{NodeHost, RELEASE, Workers, judge_link, print};

#[derive(Args, Debug)]
#[command(after_help = "\
Without options, those of /etc/cxloe/mn-server.toml are checked, if it exists.

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
    settings: OptionSources<Settings>,
}

pub fn run(args: DoctorArgs) -> ExitCode {
    let DoctorArgs { config, json, try_link, settings } = args;
    let mut machine = NodeHost::read();
    let resolve = |config, settings| Cli { config, print_config: false, settings }.resolve();
    let checks =
        machine.check(config, settings, resolve, |machine, config| examine(config, machine, try_link));
    print::<Settings>(checks, json)
}

fn examine(config: &Config, machine: &NodeHost, try_link: bool) -> Vec<Check> {
    let nic = Nic::read(&machine.host, &config.node.interface);
    let link = config.node.link(config.udp());
    let workers = Workers {
        count: config.workers,
        queues: 1,
        sharded: false,
        cpus: config.cpus.clone(),
        flag: "--cpus",
    };
    let socket = config.socket.clone().or_else(|| machine.socket.clone()).unwrap_or_else(default_socket);
    let node = ask(&socket);
    let mut checks =
        machine.examine::<Settings>(&config.node, workers, &nic, &link, has(&node, &config.node.interface));

    checks.push(judge_daemon(&node));
    checks.extend(node.as_ref().ok().map(judge_running_link));
    if matches!(node, Err(AskError::NoNode { .. })) {
        // A running node has taken its memory already, so the check of free memory applies only if no node runs.
        checks.extend(pool::examine(config, &machine.process));
        // A device of DPDK shows only when it is open whether it passes frames to all workers.
        let queues = if is_outside_kernel(&config.node.interface) { config.workers } else { link.queues };
        let link = LinkConfig { queues, ..link };
        checks.extend(
            try_link.then(|| judge_opened(config.node.backend, open(&link).map(|link| link.info().clone()))),
        );
    }
    if let MapSource::Manager(url) = &config.source {
        let asked = ManagerChecks::at(url, config.node.identity.as_deref());
        checks.push(asked.judge_manager(url, RELEASE));
        let known = asked.memory_nodes.iter().find(|status| status.node.name == config.node.name);
        checks.extend(
            asked
                .health
                .is_ok()
                .then(|| judge_known(config.node.name.as_str(), node.is_ok(), known.map(|k| k.node.health))),
        );
    }
    checks
}

/// True if a node runs that has opened the interface, or that does not tell.
fn has(node: &Result<NodeStatus, AskError>, interface: &str) -> bool {
    match node {
        Ok(node) => node.interface == interface,
        Err(error) => matches!(error, AskError::Forbidden(_)),
    }
}

/// Judges the link that was opened, or the error, by the backend that the options ask for.
fn judge_opened(wanted: Backend, opened: Result<LinkInfo, LinkError>) -> Check {
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
            "packet rings are several times faster; the checks above show their requirements",
        ),
        Ok(info) => Check::ok(group, name, format!("{}: {}", info.backend, info.detail)),
    }
}

/// Judges whether a node runs here, and whether all of its workers report.
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
            let counts: Vec<usize> = node.workers.iter().map(|worker| worker.report.sessions.len()).collect();
            let sessions: usize = counts.iter().sum();
            let by_worker = if counts.len() > 1 {
                format!(", by worker: {}", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
            } else {
                String::new()
            };
            match silent {
                Some(worker) => Check::fail(
                    group,
                    name,
                    format!("worker {} does not report", worker.worker),
                    "it is stuck, or its CPU is taken: see its log (journalctl -u mn-server), then restart it",
                ),
                None => {
                    Check::ok(group, name, format!("{} serves {sessions} sessions{by_worker}", node.name))
                }
            }
        }
    }
}

fn judge_running_link(node: &NodeStatus) -> Check {
    judge_link(
        node.link_down.as_ref(),
        format!("open on {}", node.interface),
        "mend the interface: the node keeps its pool and opens the link again by itself, so do not restart it",
    )
}

/// Judges the manager's record of the node `name`, compared with whether the node runs here.
fn judge_known(name: &str, runs: bool, health: Option<Health>) -> Check {
    let (group, check) = (Group::Peers, "registration");
    match (runs, health) {
        (true, Some(Health::Reachable)) => {
            Check::ok(group, check, format!("the manager has contact with {name}"))
        }
        (true, _) => Check::fail(
            group,
            check,
            format!("{name} runs, and the manager has no contact with it"),
            "its log shows why (journalctl -u mn-server): often another node has the same name",
        ),
        (false, Some(Health::Reachable)) => Check::warn(
            group,
            check,
            format!("the manager has contact with a memory node {name}, which does not run here"),
            "give this one another name with --name, unless it has just ended",
        ),
        (false, Some(_)) => {
            Check::ok(group, check, format!("{name} is registered, and the manager waits for it"))
        }
        (false, None) => Check::ok(group, check, format!("{name} is not registered yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_mn::admin::{VERSION, WorkerStatus};

    #[test]
    fn a_node_is_judged_by_its_workers() {
        let status = |worker, age_ns| WorkerStatus { worker, age_ns, report: Default::default() };
        let of = |workers| {
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
        let node = |age_ns| of(vec![status(0, age_ns)]);
        let several = judge_daemon(&of(vec![status(0, Some(5)), status(1, Some(5))]));
        assert_eq!(several.found, "mn1 serves 0 sessions, by worker: 0, 0");
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
    fn a_device_is_in_use_if_its_node_runs() {
        let path = PathBuf::from("/x");
        let source = std::io::Error::other("no");
        assert!(has(&Err(AskError::Forbidden(path.clone())), "dpdk:0000:03:00.0"));
        assert!(!has(&Err(AskError::NoNode { path, source }), "dpdk:0000:03:00.0"));
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
        let level = |wanted, opened| judge_opened(wanted, opened).level;
        assert_eq!(level(Backend::Auto, info("xdp", "native, zero copy")), Level::Ok);
        assert_eq!(level(Backend::Auto, info("xdp", "generic, copy")), Level::Warn);
        assert_eq!(level(Backend::Auto, info("packet", "taken because AF_XDP would copy")), Level::Ok);
        assert_eq!(level(Backend::AutoLatency, info("pnet", "")), Level::Warn);
        assert_eq!(level(Backend::Packet, info("packet", "")), Level::Ok);
        assert_eq!(level(Backend::Auto, Err(LinkError::Down("x".into()))), Level::Fail);
    }
}
