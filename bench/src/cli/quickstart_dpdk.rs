//! `cxloe-bench quickstart --link dpdk`: remote memory at work without the kernel, on one machine.
//!
//! ```text
//!   core 0        shared memory (net_memif)       core 1
//!   this bench  <==========================>  mn-server       sealed, then plain
//!   this bench  <==========================>  dpdk-echo       by turns with it: the limit
//!   cn-agent    <==========================>  mn-server       last, asked by this bench
//! ```
//!
//! Shared memory has two ends: the agent has a memory node of its own, and each stage has a manager, so that no stage
//! finds the nodes of another. It needs neither rights nor namespaces. Everything is removed when this process ends, also
//! by a signal; nothing of the memory has a name.
//!
//! The driver unmaps the memory of the end that is left, even while that end receives. So the end that spins goes first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cxloe_daemon::{Switch, to_stdout};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_lab::{Host, Interrupt, Process};
use cxloe_link::dpdk::look;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{LinkConfig, LinkInfo, Middlewares};
use cxloe_measure::agent_port::AgentResults;
use cxloe_measure::latency::{LatencyResults, read_shape};
use cxloe_measure::machine;
use cxloe_measure::report::{PLAIN, Report, Samples, Statistic, Throughput};
use cxloe_measure::streams::StreamPlan;
use cxloe_measure::{MeasureError, MeasuredRegion, fault_step};
use cxloe_port::connect::{Access, ConnectOptions, Connected, Lease};
use cxloe_port::rate_control::RateControl;
use cxloe_wire::random::Random;
use nix::unistd::Pid;

use super::Failure;
use super::agent::{self, Agent, AgentSetup};
use super::bare_dpdk::BareEcho;
use super::common::{INSECURE, ProgressUnit, SEALED, bar, frames, report, step};
use super::daemons;
use super::quickstart::{Args, put_out, verify};
use super::shared_memory::{self, Role, SharedMemory, wait_for_end};

/// MTU in bytes unless an option sets one: a page is one frame then.
const MTU: u32 = 9000;
/// Numbers of the memory for the bench and for the agent.
const OF_BENCH: u8 = shared_memory::FIRST;
const OF_AGENT: u8 = 2;
/// MAC addresses of compute nodes and memory nodes.
const BENCH_MAC: &str = shared_memory::FIRST_MAC;
const AGENT_MAC: &str = "02:00:00:00:00:02";
const MN_MAC: &str = "02:00:00:00:00:09";
/// Folder of the stage with the agent; the folders of the others are named after their protection.
const THROUGH_AGENT: &str = "agent";
/// Rounds of a trial, and operations of each kind in a round: few enough that virtual cores seldom change meanwhile.
const ROUNDS: u32 = 4;
const LINES: u64 = 5_000;
const PAGES: u64 = 1_000;
/// Progress steps of a round, and of a trial of streams.
const ROUND_STEPS: u32 = 6;
const STREAM_STEPS: u32 = 7;
/// Memory of a memory node beside that of the region, in bytes.
const SPARE: u64 = 96 << 20;
/// Limit on the time in which a memory node ends.
const END_MAX: Duration = Duration::from_secs(5);

/// Goals, in nanoseconds above the exchange of the same frames by the plug-in alone, and in lines per second.
const READ64_PLAIN: f64 = 350.0;
const READ64_SEALED: f64 = 450.0;
const READ4K_SEALED: f64 = 1200.0;
const STREAM64: f64 = 5e6;

/// Conditions that all stages have in common.
struct Site<'a> {
    ground: Host,
    memory: SharedMemory<'a>,
    /// CPUs of this thread and of the other end.
    cores: (usize, usize),
    wait: WaitStyle,
    interrupt: &'a Interrupt,
}

/// Figures of all stages.
#[derive(Default)]
struct Figures {
    samples: Vec<Samples>,
    rates: Vec<Throughput>,
}

/// A stage: what it measures, and its folder.
struct Stage<'a> {
    args: &'a Args,
    site: &'a Site<'a>,
    state: PathBuf,
    /// Protection of the frames, [`SEALED`] or [`INSECURE`].
    protection: &'a str,
    /// Prefix of the names of figures.
    prefix: &'a str,
}

/// Link and protection of a session, and the latency between the cores.
struct Measured {
    info: LinkInfo,
    frames: String,
    bounce: Option<f64>,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let state = tempfile::Builder::new().prefix("cxloe-quickstart-").tempdir()?;
    let result = carry_out(args, interrupt, state.path());
    if result.is_err() && interrupt.check().is_ok() {
        let folders = ["", SEALED, INSECURE, THROUGH_AGENT];
        folders.iter().for_each(|folder| daemons::show_logs(&state.path().join(folder)));
    }
    result
}

fn carry_out(args: &Args, interrupt: &Interrupt, state: &Path) -> Result<(), Failure> {
    let cores = machine::allowed_cores();
    let [ours, theirs, ..] = cores[..] else {
        return Err("the two ends of shared memory spin on a core each, and this process has only one".into());
    };
    to_stdout!("CXL over Ethernet, on this machine alone, without the kernel:");
    let memory = SharedMemory::new(state, args.mtu.unwrap_or(MTU))?;
    to_stdout!("  network    shared memory by DPDK's driver net_memif, MTU {}", memory.mtu());
    let wait = args.wait.unwrap_or(WaitStyle::Busy);
    let site = Site { ground: Host::default(), memory, cores: (ours, theirs), wait, interrupt };
    let mut bare = BareEcho::start(&site.ground, state, &memory, theirs, interrupt)?;
    to_stdout!("  dpdk-echo  answers bare frames, by turns with mn-server");
    machine::pin(ours)?;

    let protections: &[&str] = if args.insecure { &[INSECURE] } else { &[SEALED, INSECURE] };
    let (mut figures, mut first) = (Figures::default(), None);
    for &protection in protections {
        let prefix = if first.is_none() { "" } else { PLAIN };
        let state = state.join(protection);
        let stage = Stage { args, site: &site, state, protection, prefix };
        let measured = stage.measure(&mut bare, &mut figures)?;
        first = first.or(Some(measured));
    }
    drop(bare);
    through_agent(args, &site, &state.join(THROUGH_AGENT), &mut figures)?;
    to_stdout!("");

    let Some(Measured { info, frames, bounce }) = first else { return Ok(()) };
    let interfaces = ["bench", "mn-server"].map(|end| format!("net_memif ({end})")).to_vec();
    let mut report = report(&info, &frames, interfaces, wait, bounce);
    figures.samples.iter().for_each(|samples| report.add(samples));
    figures.rates.drain(..).for_each(|rate| report.add_throughput(rate));
    compare(&mut report, "", args.insecure)?;
    if !args.insecure {
        compare(&mut report, PLAIN, true)?;
    }
    for name in ["agent_read64/read64", "agent_write64/write64", "agent_read4k/read4k"] {
        report.add_ratio(name, Statistic::P50, None)?;
    }
    put_out(args, &report, &figures.samples)
}

impl Site<'_> {
    /// Starts a manager; returns its process and its URL.
    fn manager(&self, state: &Path) -> Result<(Process, String), Failure> {
        std::fs::create_dir(state)?;
        let socket = state.join("gmm.sock");
        let process = daemons::start(&self.ground, "", state, "gmm", |c| {
            c.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(state.join("gmm"));
            c.arg("--socket").arg(&socket);
        })?;
        Ok((process, format!("unix:{}", socket.display())))
    }

    /// Starts a memory node with a key at the server's end of the memory with this number, and waits until the manager
    /// knows it: its link is open then.
    fn memory_node(&self, state: &Path, manager: &str, number: u8, size: u64) -> Result<Process, Failure> {
        let interface = self.memory.interface(number, Role::Server, MN_MAC);
        let process = daemons::start(&self.ground, "", state, "mn-server", |c| {
            c.args(["-i", &interface, "--name", "mn1", "--manager", manager, "--echo"]);
            c.args(["--wait", &self.wait.to_string(), "--cpus", &self.cores.1.to_string()]);
            c.arg("--pool-size").arg((size + SPARE).to_string());
            c.arg("--data-dir").arg(state.join("mn")).arg("--socket").arg(state.join("mn-server.sock"));
            daemons::protect(c, false, &state.join("mn.key"));
        })?;
        daemons::wait_for_nodes(manager, self.interrupt)?;
        Ok(process)
    }
}

/// A port, and the memory node that it is joined to. Dropped in this order.
struct Joined {
    lease: Lease,
    memory_node: Process,
    target: MeasuredRegion,
}

impl Joined {
    /// Destroys the region and ends the memory node; then gives the port up, whose link is `config`.
    fn end(self, config: &LinkConfig) -> Result<(), Failure> {
        let Joined { target, mut memory_node, lease } = self;
        lease.end()?;
        memory_node.terminate(END_MAX)?;
        wait_for_end(|| look(config).is_ok_and(|device| device.up));
        drop(target);
        Ok(())
    }
}

impl Stage<'_> {
    /// Measures lines, pages, streams and faults of this protection by turns with bare frames, and checks every byte of a
    /// region.
    fn measure(&self, bare: &mut BareEcho, figures: &mut Figures) -> Result<Measured, Failure> {
        let (args, site, protection) = (self.args, self.site, self.protection);
        let config = LinkConfig {
            busy_poll: site.wait == WaitStyle::Busy,
            ..site.memory.link(OF_BENCH, Role::Client, BENCH_MAC)
        };
        let (_gmm, manager) = site.manager(&self.state)?;
        let memory_node = site.memory_node(&self.state, &manager, OF_BENCH, args.size.0)?;
        let connected = Connected::open(&ConnectOptions {
            name: "bench".into(),
            link: config.clone(),
            extras: Middlewares::default(),
            wait: site.wait,
            manager,
            region: None,
            size: args.size.0,
            ways: Ways::One,
            granularity: Granularity::PAGE,
            timeout: Duration::from_secs(10),
            rate_control: (args.rate_control == Switch::On).then(RateControl::default),
            access: Access {
                insecure: protection == INSECURE,
                data_dir: Some(self.state.join("bench")),
                ..Access::default()
            },
        })?;
        let Connected { mut port, region, hpa, peer, lease } = connected;
        let info = port.link().info().clone();
        let frames = frames(&mut port);
        to_stdout!(
            "  {protection:<9}  gmm, mn-server and this bench; link {} ({}), waiting style {}",
            info.backend,
            info.detail,
            site.wait
        );
        let target = MeasuredRegion {
            port,
            hpa,
            bytes: region.size,
            peer,
            ethertype: config.ethertype,
            echo: true,
            cores: Some(site.cores),
            memory_node: Some(Pid::from_raw(memory_node.id().cast_signed())),
            interrupt: Some(site.interrupt.clone()),
        };
        let mut joined = Joined { lease, memory_node, target };
        self.by_turns(&mut joined, bare, figures)?;
        verify(&mut joined.target)?;
        let bounces: Vec<f64> = (0..3).filter_map(|_| joined.target.bounce()).collect();
        let Joined { target, memory_node, lease } = joined;
        let (target, inline) = fault_step::in_place(target)?;
        figures.samples.push(inline.with_prefix(self.prefix));
        to_stdout!("page faults: fetched by the thread that touched them (inline), every byte right");
        Joined { lease, memory_node, target }.end(&config)?;
        Ok(Measured { info, frames, bounce: machine::median(&bounces) })
    }

    /// Measures single operations in short rounds with their limits, and streams.
    fn by_turns(
        &self,
        joined: &mut Joined,
        bare: &mut BareEcho,
        figures: &mut Figures,
    ) -> Result<(), Failure> {
        let args = self.args;
        let steps = args.trials * (ROUNDS * ROUND_STEPS + STREAM_STEPS);
        let progress = bar(steps.into(), ProgressUnit::Steps);
        let mut step = |what: &str| step(&progress, what);
        let Joined { memory_node, target, .. } = joined;
        let page = target.page_frames();
        let mut lines = LatencyResults::of("");
        let [mut echo64, mut fetch4k, mut read4k] =
            ["dpdk_echo64", "dpdk_fetch4k", "read4k"].map(Samples::new);
        let mut addresses = Random::new(64);
        for _ in 0..args.trials * ROUNDS {
            let bounce = target.bounce();
            step("bare frames by the plug-in");
            bare.trial(read_shape(), LINES, memory_node, &mut echo64)?;
            echo64.end_trial(bounce);
            bare.trial(page, PAGES, memory_node, &mut fetch4k)?;
            fetch4k.end_trial(bounce);
            target.latency_trial((LINES, bounce), &mut addresses, &mut lines, &mut step)?;
            step("pages");
            target.page_reads(PAGES, &mut addresses, &mut read4k)?;
            read4k.end_trial(bounce);
        }
        let plan = StreamPlan { trials: args.trials, each: Duration::from_millis(250), depth: args.depth };
        let rates = target.streams(plan, &mut step)?;
        progress.finish_and_clear();
        let LatencyResults { echo64: through_node, read64, write64, mixed64 } = lines;
        let samples = [echo64, fetch4k, through_node, read64, write64, mixed64, read4k];
        figures.samples.extend(samples.map(|samples| samples.with_prefix(self.prefix)));
        let named = |rate: Throughput| Throughput { name: format!("{}{}", self.prefix, rate.name), ..rate };
        figures.rates.extend(rates.into_iter().map(named));
        Ok(())
    }
}

/// An agent and its memory node, which spins and goes first.
struct AgentEnds {
    memory_node: Process,
    agent: Agent,
}

/// Measures lines, pages and faults through an agent, with sealed frames.
fn through_agent(args: &Args, site: &Site<'_>, state: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let (_gmm, manager) = site.manager(state)?;
    let memory_node = site.memory_node(state, &manager, OF_AGENT, agent::SIZE)?;
    let setup = AgentSetup {
        interface: site.memory.interface(OF_AGENT, Role::Client, AGENT_MAC),
        link: Vec::new(),
        own: AGENT_MAC.parse()?,
        manager,
    };
    let agent = agent::start(&site.ground, &setup, state, site.interrupt)?;
    let mut ends = AgentEnds { memory_node, agent };
    to_stdout!("  {THROUGH_AGENT:<9}  gmm, mn-server and cn-agent");
    let results: AgentResults = ends.agent.measure_alone(args.trials, || {
        site.interrupt.check()?;
        ends.memory_node.pause()?;
        let bounce = machine::bounce_ns(site.cores.0, site.cores.1).ok();
        ends.memory_node.resume()?;
        Ok(bounce)
    })?;
    figures.samples.extend(results.all());
    match ends.agent.faults() {
        Ok(faults) => {
            figures.samples.push(faults);
            to_stdout!("page faults: fetched by the agent for this process, every byte right");
        }
        // The agent of an ordinary user may lack the right to serve page faults that occur inside the kernel.
        Err(MeasureError::Map(reason)) => {
            to_stdout!("page faults through the agent are left out: {reason}");
        }
        Err(error) => return Err(error.into()),
    }
    ends.memory_node.terminate(END_MAX)?;
    Ok(())
}

/// Adds the ratios of a stage's figures, whose names begin with `prefix`, and its goals.
fn compare(report: &mut Report, prefix: &str, plain: bool) -> Result<(), Failure> {
    let over = |above: &str, below: &str| format!("{prefix}{above}/{prefix}{below}");
    for above in ["read64", "write64", "mixed64", "echo64"] {
        for statistic in [Statistic::P50, Statistic::P99] {
            report.add_ratio(&over(above, "dpdk_echo64"), statistic, None)?;
        }
    }
    report.add_ratio(&over("read4k", "dpdk_fetch4k"), Statistic::P50, None)?;
    report.add_ratio(&over("read64", "echo64"), Statistic::P50, None)?;
    report.add_ratio(&over("stream64", "echo_pipelined"), Statistic::OpsPerS, None)?;
    for burst in ["burst_read", "burst_write"] {
        let (label, expression) =
            (over(burst, "echo_pipelined"), over(burst, &format!("echo_pipelined_{burst}")));
        report.add_ratio_as(&label, &expression, Statistic::BytesPerS, None)?;
    }
    report.add_time_goal(&over("read64", "dpdk_echo64"), if plain { READ64_PLAIN } else { READ64_SEALED })?;
    if !plain && report.link.mtu >= MTU {
        report.add_time_goal(&over("read4k", "dpdk_fetch4k"), READ4K_SEALED)?;
    }
    report.add_rate_goal(&format!("{prefix}stream64"), STREAM64)?;
    Ok(())
}
