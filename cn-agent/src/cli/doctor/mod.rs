//! `cn-agent doctor`: checks whether this machine is ready for an agent with the given options, whether an agent runs,
//! and whether the memory nodes answer. Facts are collected here and assessed by functions without I/O.

mod faults;
mod peers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use cxloe_client::client::{self, ClientError};
use cxloe_client::message::{Counters, Session, WorkerCounters};
use cxloe_cn::config::{Config, RunArgs, Settings};
use cxloe_daemon::OptionSources;
use cxloe_daemon::command_line::doctor::ManagerChecks;
use cxloe_daemon::doctor::nic::Nic;
use cxloe_daemon::doctor::{Check, Group};
use cxloe_node::doctor::{NodeHost, RELEASE, Workers, judge_link, print};

/// Backend of an agent that has a device of DPDK.
const DPDK: &str = "dpdk";

#[derive(Args, Debug)]
#[command(after_help = "\
Without options, those of /etc/cxloe/cn-agent.toml are checked, if it exists.
While no agent runs, memory nodes are asked by frames whether they answer.

Exit codes:
  0  all is well        1  something could be better        2  something does not work

Examples:
  cn-agent doctor                                as it is installed
  cn-agent doctor --config cn.toml --json | jq '.checks[] | select(.level != \"ok\")'
  cn-agent doctor -i enp3s0f0 --manager https://10.0.0.1:7440 --wait busy --cpus 2")]
pub struct DoctorArgs {
    /// Read options from FILE, as the agent does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: OptionSources<Settings>,
}

/// Runs all checks and prints the report. The exit code is that of the worst result.
pub fn run(args: DoctorArgs) -> ExitCode {
    let DoctorArgs { config, json, settings } = args;
    let mut machine = NodeHost::read();
    let resolve = |config, settings| RunArgs { config, print_config: false, settings }.resolve();
    let mut checks = machine.check(config, settings, resolve, |machine, config| examine(config, machine));
    checks.extend(faults::examine(&machine.process));
    print::<Settings>(checks, json)
}

fn examine(config: &Config, machine: &NodeHost) -> Vec<Check> {
    let nic = Nic::read(&machine.host, &config.node.interface);
    let link = config.node.link(config.node.udp());
    let workers = Workers {
        count: config.workers.into(),
        queues: config.queues.into(),
        sharded: true,
        cpus: config.cpus.clone(),
        flag: "--cpus",
    };
    let sessions = client::sessions(&config.socket);
    let counters = sessions.as_ref().ok().and_then(|_| client::counters_by_worker(&config.socket).ok());
    let in_use = counters.as_ref().is_some_and(|counters| counters.all.backend == DPDK);
    let mut checks = machine.examine::<Settings>(&config.node, workers, &nic, &link, in_use);

    checks.push(judge_daemon(&sessions));
    if let Some(counters) = &counters {
        checks.extend([judge_agent_link(&counters.all), judge_sleep(&counters.all)]);
        checks.extend(judge_workers(&counters.workers));
    }
    let asked = ManagerChecks::at(&config.manager, config.node.identity.as_deref());
    checks.push(asked.judge_manager(&config.manager, RELEASE));
    if asked.health.is_ok() {
        checks.extend(peers::judge_nodes(&asked.memory_nodes, nic.mtu));
        let answers = match &sessions {
            Ok(sessions) => peers::from_agent(sessions),
            Err(ClientError::NoAgent { .. }) => peers::ask(config, &asked.memory_nodes),
            Err(_) => Vec::new(),
        };
        checks.extend(answers.iter().map(peers::PeerAnswer::judge));
    }
    checks
}

/// Checks whether an agent answers. An agent that does not run is no fault: users run `doctor` before the
/// first start.
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

fn judge_agent_link(counters: &Counters) -> Check {
    let detail = if counters.link_detail.is_empty() { "" } else { ": " };
    let open = format!("open, by {}{detail}{}", counters.backend, counters.link_detail);
    judge_link(
        counters.link_down.as_ref(),
        open,
        "mend the interface: the agent opens the link again by itself",
    )
}

/// Names the kernel interface by which a running agent sleeps until frames arrive. Never a warning, because
/// each interface works.
fn judge_sleep(counters: &Counters) -> Check {
    let way = if counters.sleeps_by.is_empty() { "it has not slept yet" } else { &counters.sleeps_by };
    Check::ok(Group::Daemon, "sleeps by", way)
}

/// Checks that frames reach each of several workers. If they reach none, the checks of the memory nodes name the cause.
fn judge_workers(workers: &[WorkerCounters]) -> Option<Check> {
    let (group, name) = (Group::Daemon, "workers");
    let (mut deaf, mut hearing) = (Vec::new(), 0);
    for WorkerCounters { worker, counters, .. } in workers {
        match (counters.link.rx_frames, counters.link.tx_frames) {
            (0, 0) => {}
            (0, _) => deaf.push(worker.to_string()),
            _ => hearing += 1,
        }
    }
    if workers.is_empty() {
        return None;
    }
    if hearing > 0 && !deaf.is_empty() {
        let advice = "each queue has an address of its own: switches and hypervisors must let it through, and AF_XDP takes a \
                      rule for it (ethtool -N INTERFACE flow-type ether dst MAC action QUEUE)";
        let found = format!("frames of worker {} are not answered", deaf.join(", "));
        return Some(Check::warn(group, name, found, advice));
    }
    let cpus: Vec<String> = workers.iter().filter_map(|worker| Some(worker.cpu?.to_string())).collect();
    Some(Check::ok(group, name, format!("{}, last on CPUs {}", workers.len(), cpus.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use std::path::Path;

    #[test]
    fn workers_that_hear_nothing_are_named() {
        let worker = |worker: usize, rx_frames, tx_frames| {
            let mut of = WorkerCounters { worker, cpu: Some(worker as u32), ..WorkerCounters::default() };
            (of.counters.link.rx_frames, of.counters.link.tx_frames) = (rx_frames, tx_frames);
            of
        };
        assert_eq!(judge_workers(&[]), None, "an agent with one worker names none");
        let well = judge_workers(&[worker(0, 9, 9), worker(1, 9, 9), worker(2, 0, 0)]).unwrap();
        assert_eq!((well.level, well.found.as_str()), (Level::Ok, "3, last on CPUs 0, 1, 2"));
        let deaf = judge_workers(&[worker(0, 9, 9), worker(1, 0, 5), worker(2, 0, 1)]).unwrap();
        assert_eq!(
            (deaf.level, deaf.found.as_str()),
            (Level::Warn, "frames of worker 1, 2 are not answered")
        );
        let away = judge_workers(&[worker(0, 0, 9), worker(1, 0, 9)]).unwrap();
        assert_eq!(away.level, Level::Ok, "no memory node answers any of them");
    }

    #[test]
    fn an_open_link_is_described() {
        let mut counters = Counters { backend: "xdp".into(), ..Counters::default() };
        assert_eq!(judge_agent_link(&counters).found, "open, by xdp");
        counters.link_detail = "native".into();
        assert_eq!(judge_agent_link(&counters).found, "open, by xdp: native");
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
