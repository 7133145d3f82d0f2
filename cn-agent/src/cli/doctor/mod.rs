//! `cn-agent doctor`: whether this machine is ready for an agent with these options, whether one runs, and whether the
//! memory nodes answer. Facts are gathered here; what they mean is judged by functions that ask nobody.

mod faults;
mod peers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{Counters, Session};
use cxloe_cn::config::{Config, RunArgs, Settings};
use cxloe_daemon::command_line::doctor::{Asked, installed_config, judge_options, judge_protection};
use cxloe_daemon::doctor::machine::{Machine, Use};
use cxloe_daemon::doctor::nic::{Demand, Nic};
use cxloe_daemon::doctor::permissions::{Process, Xdp};
use cxloe_daemon::doctor::{Check, Group, Host, Output, Report, folder_for_files, secret};
use cxloe_link::udp::own_address;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, ETHERNET_HEADER, LinkConfig, LinkError};
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, MAX_FRAME_LIMIT};

/// Where an installed agent's options are.
const INSTALLED: &str = "/etc/cxloe/cn-agent.toml";
/// The longest trailer of a frame.
const TRAILER_MAX: usize = 16;
/// Slots of a link's receive ring.
const RING: u32 = 1024;

/// Arguments of `cn-agent doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without options, those of /etc/cxloe/cn-agent.toml are judged, if it is there.
While no agent runs, memory nodes are asked by frames whether they answer.

Exit codes:
  0  all is well        1  something could be better        2  something does not work

Examples:
  cn-agent doctor                                as it is installed
  cn-agent doctor --config cn.toml --json | jq '.checks[] | select(.level != \"ok\")'
  cn-agent doctor -i enp3s0f0 --manager https://10.0.0.1:7440 --wait busy --cpu 2")]
pub struct DoctorArgs {
    /// Read options from FILE, as the agent does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Examines, and tells.
pub fn run(args: DoctorArgs) -> ExitCode {
    let DoctorArgs { config, json, settings } = args;
    let given = config.is_some() || settings.interface.is_some();
    let config = config.or_else(|| installed_config(Path::new(INSTALLED), given));
    let (interface, from) = (settings.interface.clone(), config.clone());
    let resolved = RunArgs { config, print_config: false, settings }.resolve();
    let error = resolved.as_ref().err().map(ToString::to_string);
    let mut checks = vec![judge_options(from.as_deref(), error)];
    let host = Host::default();
    let process = Process::read(&host);
    match resolved {
        Ok(config) => checks.extend(examine(&config, &host, &process)),
        Err(_) => {
            checks.extend(Machine::read(&host).judge());
            checks.extend(process.judge_links("cn-agent", Xdp::May, 1));
            let judge = |name: String| Nic::read(&host, &name).judge(&demand(Backend::Auto, false, None));
            checks.extend(interface.into_iter().flat_map(judge));
        }
    }
    checks.extend(faults::examine(&process));
    let output = if json { Output::Json } else { Output::Table };
    Report::new("cn-agent", env!("CARGO_PKG_VERSION"), checks).print(output)
}

fn examine(config: &Config, host: &Host, process: &Process) -> Vec<Check> {
    let spinning = config.wait == WaitStyle::Busy;
    let nic = Nic::read(host, &config.interface);
    let machine = Machine::read(host);
    let mut checks = machine.judge();
    checks.extend(machine.judge_cpus(&Use {
        workers: 1,
        spinning,
        pinned: config.cpu.into_iter().collect(),
        flag: "--cpu",
        near: nic.numa_node,
    }));
    if config.is_over_udp() {
        checks.push(process.judge_udp(host));
        checks.push(judge_address(&own_address(&link(config))));
    } else {
        checks.extend(process.judge_links("cn-agent", xdp(config.backend), 1));
        checks.extend(nic.judge(&demand(config.backend, spinning, config.priority)));
    }
    checks.push(judge_protection(config.protection()));
    checks.extend(config.key_file.as_deref().map(|path| secret("key", path)));
    checks.push(folder_for_files("state", &config.data_dir, 1 << 20, "--data-dir"));

    let sessions = client::sessions(&config.socket);
    checks.push(judge_daemon(&sessions));
    if sessions.is_ok() {
        let counters = client::counters(&config.socket);
        checks.extend(counters.iter().flat_map(|counters| [judge_link(counters), judge_sleep(counters)]));
    }
    let asked = Asked::at(&config.manager, config.identity.as_deref());
    checks.push(asked.judge_manager(&config.manager, env!("CARGO_PKG_VERSION")));
    if asked.health.is_ok() {
        checks.extend(peers::judge_nodes(&asked.memory_nodes, nic.mtu));
        let answers = match &sessions {
            Ok(sessions) => peers::from_agent(sessions),
            Err(ClientError::NoAgent { .. }) => peers::ask(config, &asked.memory_nodes),
            Err(_) => Vec::new(),
        };
        checks.extend(answers.iter().map(peers::Answer::judge));
    }
    checks
}

/// The agent's link.
fn link(config: &Config) -> LinkConfig {
    LinkConfig {
        backend: config.backend,
        encap: config.encap,
        ethertype: config.ethertype,
        priority: config.priority,
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

fn demand(backend: Backend, spinning: bool, priority: Option<u8>) -> Demand {
    Demand {
        mtu_min: HEADER_LEN + LINE_SIZE + TRAILER_MAX - ETHERNET_HEADER,
        mtu_page: MAX_FRAME_LIMIT - ETHERNET_HEADER,
        workers: 1,
        ring: RING,
        spinning,
        xdp: xdp(backend),
        priority,
    }
}

/// Judges what a running agent tells of itself.
fn judge_daemon(sessions: &Result<Vec<Session>, ClientError>) -> Check {
    let (group, name) = (Group::Daemon, "agent");
    match sessions {
        Ok(sessions) => Check::ok(group, name, format!("runs, with {} sessions", sessions.len())),
        Err(ClientError::NoAgent { .. }) => Check::ok(group, name, "not running"),
        Err(error) => Check::fail(
            group,
            name,
            error.to_string(),
            "see its log (journalctl -u cn-agent); users of it belong to the group cxloe",
        ),
    }
}

/// Judges the link of a running agent.
fn judge_link(counters: &Counters) -> Check {
    let (group, name) = (Group::Daemon, "link");
    match &counters.link_down {
        None if counters.link_detail.is_empty() => {
            Check::ok(group, name, format!("open, by {}", counters.backend))
        }
        None => Check::ok(group, name, format!("open, by {}: {}", counters.backend, counters.link_detail)),
        Some(down) => Check::fail(
            group,
            name,
            format!("closed for {} s: {}", down.for_ns / 1_000_000_000, down.why),
            "mend the interface: the agent opens the link again by itself",
        ),
    }
}

/// Says how a running agent waits.
fn judge_sleep(counters: &Counters) -> Check {
    let way = if counters.sleeps_by.is_empty() { "it has not slept yet" } else { &counters.sleeps_by };
    Check::ok(Group::Daemon, "sleeps by", way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_link::LinkDown;

    #[test]
    fn an_agent_without_a_link_fails_and_says_why() {
        let mut counters = Counters { backend: "xdp".into(), ..Counters::default() };
        assert_eq!(judge_link(&counters).level, Level::Ok);
        let (why, for_ns) = ("interface `x` is down".to_owned(), 7_000_000_000);
        counters.link_down = Some(LinkDown { why, for_ns });
        let check = judge_link(&counters);
        assert_eq!(
            (check.level, check.found.as_str()),
            (Level::Fail, "closed for 7 s: interface `x` is down")
        );
    }

    #[test]
    fn an_agent_that_does_not_run_is_no_failure_and_a_silent_one_is() {
        let gone = client::sessions(Path::new("/nonexistent/agent.sock"));
        assert_eq!(
            (judge_daemon(&gone).level, judge_daemon(&gone).found.as_str()),
            (Level::Ok, "not running")
        );
        assert_eq!(judge_daemon(&Ok(vec![])).level, Level::Ok);
        let silent = ClientError::Silent { path: "/x".into(), limit: std::time::Duration::from_secs(1) };
        assert_eq!(judge_daemon(&Err(silent)).level, Level::Fail);
    }
}
