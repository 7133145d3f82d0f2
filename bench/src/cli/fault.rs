//! `cxloe-bench fault`: page faults and their floors, on a link that is there or in a lab of their own.
//!
//! ```text
//!   namespace cn                                         namespace mn
//!     gmm         10.77.0.1:7440
//!     this bench  on cn0  <------------ veth ------------->  mn0  mn-server `mn1`
//!     cn-agent    on cn1  <------------ veth ------------->  mn1  mn-server `mn2`
//!     core 0                                                 core 1
//! ```
//!
//! The bench has a link of its own for bare frames and for faults that it serves itself; faults through the agent go over
//! the other one, which is of the same kind. Of the two memory nodes, and of agent and bench, only those that are measured
//! run at a time.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{ArgMatches, FromArgMatches};
use cxloe_cn::client::{Client, regions};
use cxloe_gmm::api::CreateRegion;
use cxloe_gmm::model::{CnId, Mac, Name};
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::link::Backend;
use cxloe_wire::link::wait::WaitStyle;
use nix::unistd::Pid;

use super::Failure;
use super::common::{LinkArgs, OutputArgs, RegionArgs, Session, Unit, bar, report};
use super::quickstart::{self, MANAGER, READY};
use crate::lab::{Interrupt, Lab, Process};
use crate::machine;
use crate::measure::fault::{Agent, FaultPlan, FaultResults, STEPS, measure};
use crate::measure::floor_fault::FAULTS_MAX;
use crate::report::{Report, Samples, Statistic};

/// Time page faults and what they are made of, by turns
///
/// fault4k is the first touch of a page mapped through an agent, fault4k_inline of one whose fault the touching thread
/// serves itself. Their floors: uffd_floor4k is a userfaultfd fault served from local memory by another thread,
/// uffd_inline_floor4k one served by the thread that makes it (SIGBUS mode), fetch4k the frames of a page over the bare
/// link; beside them memcpy4k, a page copied, and dram64, a random line of local memory. In bulk: mapped_read and
/// inline_read go through a mapped region in order, *_random at random (*_plain: with the prefetcher off), and write_back_*
/// write pages back of which one line, or all, were written.
///
/// Without --interface it runs in a lab of its own, in namespaces of this machine.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: OptionalLink,
    #[command(flatten)]
    region: RegionArgs,

    /// Trials; each measures floors and faults by turns
    #[arg(long, value_name = "N", default_value_t = 16)]
    trials: u32,

    /// Faults of each kind in a trial
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=FAULTS_MAX))]
    operations: u64,

    /// Pages read in order in a trial
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    pages: u64,

    /// CPU of the thread that serves the floor's faults [default: where the measuring thread runs]
    #[arg(long, value_name = "CPU")]
    pager_cpu: Option<usize>,

    /// Socket of a running agent to measure faults through [default: none; a lab has its own]
    #[arg(long, value_name = "PATH", requires = "agent_region", requires = "interface")]
    agent: Option<std::path::PathBuf>,

    /// The region of that agent to map, whose content is lost
    #[arg(long, value_name = "NAME", requires = "agent")]
    agent_region: Option<String>,

    /// MTU of the cables in a lab of its own
    #[arg(long, value_name = "BYTES", default_value_t = 1500, conflicts_with = "interface")]
    mtu: u32,

    #[command(flatten)]
    output: OutputArgs,
}

/// A link that is there, if one is named.
pub(super) struct OptionalLink(pub(super) Option<LinkArgs>);

impl clap::Args for OptionalLink {
    fn augment_args(command: clap::Command) -> clap::Command {
        let known: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
        LinkArgs::augment_args(command).mut_args(|arg| match arg.get_id().as_str() {
            "interface" => arg.required(false),
            _ if known.contains(arg.get_id()) => arg,
            _ => arg.requires("interface"),
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionalLink {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_named = matches.contains_id("interface");
        Ok(OptionalLink(is_named.then(|| LinkArgs::from_arg_matches(matches)).transpose()?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args {
    /// Whether it makes a lab, for which the process needs namespaces of its own.
    pub fn makes_lab(&self) -> bool {
        self.link.0.is_none()
    }
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let Some(link) = &args.link.0 else { return in_lab(args, interrupt) };
    let session = Session::open(link, &args.region, interrupt)?;
    let agent = args.agent.clone().zip(args.agent_region.clone());
    let agent = agent.map(|(socket, region)| Agent { socket, region, processes: Vec::new() });
    let (session, results) = timed(args, session, agent)?;
    let report = report(&session.link, vec![session.link.interface.clone()], link.wait, None);
    finish(args, session, report, &results)
}

/// The same between two namespaces.
fn in_lab(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let state = tempfile::Builder::new().prefix("cxloe-fault-").tempdir()?;
    let result = in_lab_at(args, &interrupt, state.path());
    if result.is_err() && interrupt.check().is_ok() {
        ["", "mn1", "mn2"].iter().for_each(|part| quickstart::show_logs(&state.path().join(part)));
    }
    result
}

fn in_lab_at(args: &Args, interrupt: &Interrupt, state: &Path) -> Result<(), Failure> {
    let cores = machine::allowed_cores();
    let pair = cores.first().copied().zip(cores.get(1).copied());
    let wait = if pair.is_some() { WaitStyle::Busy } else { WaitStyle::default() };
    let lab = Lab::builder()
        .namespace("cn")
        .namespace("mn")
        .veth("cn", "cn0", "mn", "mn0")
        .veth("cn", "cn1", "mn", "mn1")
        .mtu(args.mtu)
        .address("cn0", "10.77.0.1/24")
        .address("mn0", "10.77.0.2/24")
        .build()?;
    let _gmm = quickstart::start(&lab, "cn", state, "gmm", |c| {
        c.args(["serve", "--listen", "10.77.0.1:7440", "--data-dir"]).arg(state.join("gmm"));
    })?;
    let memory_node = |interface: &str, name: &str| {
        // Two programs of one name, each with its own log.
        let state = state.join(name);
        std::fs::create_dir(&state)?;
        quickstart::start(&lab, "mn", &state, "mn-server", |c| {
            c.args(["-i", interface, "--name", name, "--manager", MANAGER, "--echo"]);
            c.args(["--wait", &wait.to_string()]);
            c.arg("--pool-size").arg((args.region.size.0 + (32 << 20)).to_string());
            c.arg("--data-dir").arg(state.join("data")).arg("--socket").arg(state.join("socket"));
            if let Some((_, theirs)) = pair {
                c.args(["--cpus", &theirs.to_string()]);
            }
        })
    };
    let ours = memory_node("mn0", "mn1")?;
    let others = memory_node("mn1", "mn2")?;
    lab.namespace("cn")?.clone().join()?;
    quickstart::wait_for_nodes(interrupt)?;
    let cpu = pair.map(|(ours, _)| ours);
    let (process, agent) = start_agent(&lab, state, args.region.size.0, (cpu, wait), interrupt, &others)?;
    // However this ends, what is stopped cannot end in order.
    let agent = Awake { agent, _process: process, _memory_node: others };
    let agent = match agent.agent.check() {
        Ok(()) => Some(agent),
        Err(error) => {
            eprintln!("faults through an agent are left out: {error}");
            None
        }
    };
    region("bench", "cn0", "mn1", args.region.size.0, interrupt)?;

    let link = LinkArgs {
        interface: "cn0".into(),
        link: Backend::default(),
        wait,
        priority: None,
        ethertype: ETHERTYPE_DEFAULT,
        faults: None,
        cpu,
    };
    let region = RegionArgs { manager: MANAGER.into(), region: Some("bench".into()), ..args.region.clone() };
    let mut session = Session::open(&link, &region, interrupt.clone())?;
    session.target.cores = pair;
    session.target.memory_node = Some(pid(&ours));
    let (session, results) = timed(args, session, agent.as_ref().map(|awake| awake.agent.clone()))?;
    let bounce = session.target.bounce();
    let report = report(&session.link, vec!["cn0".into(), "mn0".into()], wait, bounce);
    finish(args, session, report, &results)
}

/// Processes that are stopped in between, and go on when they are to end.
struct Awake {
    agent: Agent,
    _process: Process,
    _memory_node: Process,
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.agent.go_on();
    }
}

fn pid(process: &Process) -> Pid {
    Pid::from_raw(process.id().cast_signed())
}

/// Creates a region for the node behind `interface` on the memory node `on`, as soon as that has registered.
fn region(name: &str, interface: &str, on: &str, size: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    let address = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
    let owner = CnId::new(address.trim().parse::<Mac>()?)?;
    let (name, on) = (Name::new(name)?, Name::new(on)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = cxloe_gmm::Client::new(MANAGER)?;
    let started = Instant::now();
    loop {
        let nodes = runtime.block_on(manager.memory_nodes())?;
        if nodes.iter().any(|status| status.node.name == on) {
            break;
        }
        interrupt.check()?;
        if started.elapsed() > READY {
            return Err(format!("mn-server {on} has not registered with the manager").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let create = CreateRegion { on: vec![on], ..CreateRegion::new(name, size, owner) };
    runtime.block_on(manager.create_region(&create))?;
    Ok(())
}

/// Starts an agent on cn1 and gives it a region. Must be called inside the namespace of cn1.
fn start_agent(
    lab: &Lab,
    state: &Path,
    size: u64,
    (cpu, wait): (Option<usize>, WaitStyle),
    interrupt: &Interrupt,
    memory_node: &Process,
) -> Result<(Process, Agent), Failure> {
    let socket = state.join("cn-agent.sock");
    let process = quickstart::start(lab, "cn", state, "cn-agent", |c| {
        c.args(["run", "-i", "cn1", "--name", "cn1", "--manager", MANAGER, "--wait", &wait.to_string()]);
        c.arg("--socket").arg(&socket).arg("--data-dir").arg(state.join("cn"));
        if let Some(cpu) = cpu {
            c.args(["--cpu", &cpu.to_string()]);
        }
    })?;
    region("mapped", "cn1", "mn2", size, interrupt)?;
    let started = Instant::now();
    loop {
        interrupt.check()?;
        let attached = regions(&socket).unwrap_or_default();
        if let Some(region) = attached.iter().find(|r| r.region.as_str() == "mapped")
            && Client::connect(&socket)?.read(region.hpa).is_ok()
        {
            let processes = vec![pid(&process), pid(memory_node)];
            return Ok((process, Agent { socket, region: "mapped".into(), processes }));
        }
        if started.elapsed() > READY {
            return Err("cn-agent has not attached its region".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn timed(args: &Args, session: Session, agent: Option<Agent>) -> Result<(Session, FaultResults), Failure> {
    let progress = bar(u64::from(args.trials) * STEPS, Unit::Steps);
    let plan = FaultPlan {
        trials: args.trials,
        faults: args.operations,
        pages: usize::try_from(args.pages)?,
        pager_cpu: args.pager_cpu,
        agent,
    };
    let (target, again) = session.into_parts();
    let (target, results) = measure(target, &plan, &mut |what| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    })?;
    progress.finish_and_clear();
    Ok((again(target), results))
}

fn finish(args: &Args, session: Session, mut report: Report, results: &FaultResults) -> Result<(), Failure> {
    results.samples.iter().for_each(|samples| report.add(samples));
    results.rates.iter().for_each(|rate| report.add_throughput(rate.clone()));
    add_ratios(&mut report)?;
    session.close()?;
    let samples: Vec<&Samples> = results.samples.iter().collect();
    args.output.write(&report, &samples)
}

/// Faults over their floors, and bulk over its limits, as far as they were measured.
fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    if report.result("fetch4k").is_some() {
        for (fault, floor) in [("fault4k", "uffd_floor4k"), ("fault4k_inline", "uffd_inline_floor4k")] {
            if report.result(fault).is_some() {
                report.add_ratio(&format!("{fault}/({floor}+fetch4k)"), Statistic::P50, Some(1.25))?;
            }
        }
    }
    // A remote fault served in place against a local one served by another thread.
    report.add_ratio("fault4k_inline/uffd_floor4k", Statistic::P50, Some(1.0))?;
    for (above, below, target) in [
        ("mapped_read", "burst_read", 0.7),
        ("inline_read", "burst_read", 0.7),
        ("mapped_random", "mapped_random_plain", 0.97),
        ("inline_random", "inline_random_plain", 0.97),
    ] {
        if report.rate(above).is_some() {
            report.add_ratio(&format!("{above}/{below}"), Statistic::BytesPerS, Some(target))?;
        }
    }
    report.add_ratio("write_back_line/write_back_page", Statistic::BytesPerOp, Some(0.05))?;
    Ok(())
}
