//! `cxloe-bench quickstart`: remote memory at work on one machine, over real frames, in one command.
//!
//! ```text
//!   namespace cn                                   namespace mn
//!     gmm         10.77.0.1:7440
//!     cn-agent    on cn1, a macvlan of cn0    veth
//!     this bench  on cn0  <------------------------->  mn0  mn-server
//! ```
//!
//! The figures come from a line port in this process, which is a compute node beside the agent: with two cores, the
//! port and the memory node's worker have one each. The path through the agent is measured as well, by itself. Pages of
//! both are mapped and touched, inline and through the agent. Everything is removed when this process ends, also by a
//! signal.
//!
//! With `--link udp` the frames go through UDP sockets, and the agent shares cn0 at a port of its own. Where namespaces
//! or raw sockets are not permitted, everything runs over UDP on the loopback interface instead. With `--link dpdk`
//! another file has the run: `quickstart_dpdk.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cxloe_daemon::Switch;
use cxloe_daemon::to_stdout;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares};
use cxloe_port::port::Port;
use cxloe_port::rate_control::RateControl;
use nix::unistd::Pid;

use super::Failure;
use super::common::{OutputArgs, ProgressUnit, bar, frames, report, step};
use super::daemons;
use super::quickstart_link::QuickstartLink;
use super::quickstart_place::QuickstartNetwork;
use cxloe_lab::{Interrupt, LabPrivilege};
use cxloe_measure::latency::LatencyPlan;
use cxloe_measure::machine;
use cxloe_measure::report::{Report, Samples, Statistic};
use cxloe_measure::streams::StreamPlan;
use cxloe_measure::{MeasureError, MeasuredRegion, fault_step};
use cxloe_port::connect::{Access, ConnectOptions, Connected};

/// MTU in bytes unless an option sets one.
const MTU: u32 = 1500;

/// Set up two namespaces with a manager, a memory node and an agent, measure, verify, and clean up
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The link: auto selects by interface, and UDP where namespaces or raw sockets are not permitted; auto:latency the
    /// fastest for single lines, auto:throughput the one with the most frames per second; dpdk needs no interface:
    /// memory that the processes share, by DPDK's driver net_memif, sealed and plain beside bare frames
    #[arg(long, value_name = QuickstartLink::VALUES, default_value = "auto")]
    link: QuickstartLink,

    /// Wait style of memory node and bench: busy, adaptive or adaptive:TIME or sleep [default: busy with two
    /// cores or more, else adaptive]
    #[arg(long, value_name = "STYLE")]
    pub(super) wait: Option<WaitStyle>,

    /// MTU of the veth pair, or of shared memory [default: 1500, and 9000 with --link dpdk]
    #[arg(long, value_name = "BYTES")]
    pub(super) mtu: Option<u32>,

    /// Size of the region measured and verified
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(super) size: cxloe_fabric::model::ByteSize,

    /// Trials of each measurement
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) trials: u32,

    /// Requests in flight in streams; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(super) depth: usize,

    /// Pace requests by congestion signals, which do not occur on this link
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub(super) rate_control: Switch,

    /// Measure without keys: frames carry a checksum and are not sealed
    #[arg(long)]
    pub(super) insecure: bool,

    /// Folder of report.json and report.html
    #[arg(long, value_name = "DIR", default_value = "target/quickstart")]
    output: PathBuf,
}

/// Network in which a quickstart runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// Lab of namespaces, made with these rights.
    Lab(LabPrivilege),
    /// Loopback interface; the text is the reason why no lab can be made.
    Loopback(String),
}

impl Args {
    /// True if UDP may replace raw frames where raw frames are not permitted.
    pub fn may_use_udp(&self) -> bool {
        matches!(self.link.backend(), Some(Backend::Auto | Backend::Udp))
    }

    /// True if the kernel has no part in the link, so that no network is needed.
    pub fn is_without_network(&self) -> bool {
        self.link.backend().is_none()
    }
}

pub fn run(args: &Args, site: &Site, interrupt: Interrupt) -> Result<(), Failure> {
    let state = tempfile::Builder::new().prefix("cxloe-quickstart-").tempdir()?;
    let result = carry_out(args, site, &interrupt, state.path());
    if result.is_err() && interrupt.check().is_ok() {
        daemons::show_logs(state.path());
    }
    result
}

fn carry_out(args: &Args, site: &Site, interrupt: &Interrupt, state: &Path) -> Result<(), Failure> {
    let cores = machine::allowed_cores();
    let wait = args.wait.unwrap_or(if cores.len() > 1 { WaitStyle::Busy } else { WaitStyle::default() });
    let pair = cores.first().copied().zip(cores.get(1).copied());
    to_stdout!("CXL over Ethernet, on this machine alone:");
    let place = match site {
        Site::Lab(_) => {
            QuickstartNetwork::lab(args.link.backend().unwrap_or_default(), args.mtu.unwrap_or(MTU))?
        }
        Site::Loopback(reason) => {
            to_stdout!("  no network of its own can be made here ({reason}):");
            to_stdout!("  it goes over UDP on the loopback interface instead, which needs no rights");
            QuickstartNetwork::loopback()?
        }
    };
    let how = match site {
        Site::Lab(LabPrivilege::UserNamespace) => ", in a user namespace of our own",
        _ => "",
    };
    to_stdout!("  network    {}{how}", place.words);

    let manager = QuickstartNetwork::manager(state);
    let _gmm = daemons::start(&*place.ground, "cn", state, "gmm", |c| {
        c.args(["serve", "--listen", &place.listen, "--data-dir"]).arg(state.join("gmm"));
        c.arg("--socket").arg(state.join("gmm.sock"));
    })?;
    to_stdout!("  gmm        {manager}");
    let (interface, address) = &place.memory_node;
    let mn = daemons::start(&*place.ground, "mn", state, "mn-server", |c| {
        c.args(["join", &manager, "--run", "-i", interface, "--name", "mn1", "--echo"]);
        c.arg("--config").arg(state.join("mn-server.toml"));
        c.args(["--link", &place.bench.backend.to_string(), "--wait", &wait.to_string()]);
        if let Some(address) = address {
            c.args(["--udp-address", &address.to_string()]);
        }
        c.arg("--pool-size").arg((args.size.0 + (96 << 20)).to_string());
        c.arg("--data-dir").arg(state.join("mn")).arg("--socket").arg(state.join("mn-server.sock"));
        if let Some((_, theirs)) = pair {
            c.args(["--cpus", &theirs.to_string()]);
        }
    })?;
    daemons::wait_for_nodes(&manager, interrupt)?;
    to_stdout!("  mn-server  on {interface}, waiting style {wait}");
    let with_agent = place.agent(state)?;
    let agent = super::agent::start(&*place.ground, &with_agent, state, interrupt)?;
    to_stdout!("  cn-agent   on {}", with_agent.interface);
    if let Some((ours, _)) = pair {
        machine::pin(ours)?;
    }
    let bench = place.bench.interface.clone();
    let connected = Connected::open(&ConnectOptions {
        name: "bench".into(),
        link: LinkConfig { busy_poll: wait == WaitStyle::Busy, ..place.bench.clone() },
        extras: Middlewares::default(),
        wait,
        manager,
        region: None,
        size: args.size.0,
        ways: Ways::One,
        granularity: Granularity::PAGE,
        timeout: Duration::from_secs(10),
        rate_control: (args.rate_control == Switch::On).then(RateControl::default),
        access: Access { insecure: args.insecure, data_dir: Some(state.join("bench")), ..Access::default() },
    })?;
    let Connected { mut port, region, hpa, peer, lease } = connected;
    let info = port.link().info().clone();
    to_stdout!("  bench      on {bench}, link {} ({})", info.backend, info.detail);
    let frames = frames(&mut port);
    to_stdout!("  frames     {frames}");
    to_stdout!("  region     {} of {} on mn1", region.name, cxloe_fabric::model::human_bytes(region.size));
    to_stdout!("");

    let mut target = MeasuredRegion {
        port,
        hpa,
        bytes: region.size,
        peer,
        ethertype: cxloe_wire::frame::ETHERTYPE_DEFAULT,
        echo: true,
        cores: pair,
        memory_node: Some(Pid::from_raw(mn.id() as i32)),
        interrupt: Some(interrupt.clone()),
    };
    let mut interfaces = vec![bench, place.memory_node.0.clone()];
    // On the loopback interface, both ends use the same interface, which is listed only once.
    interfaces.dedup();
    let (mut report, samples) = measure(args, &mut target, (&info, &frames), interfaces, wait)?;
    verify(&mut target)?;
    for samples in &agent.measure(&mut target, args.trials)?.all() {
        report.add(samples);
    }
    report.add_throughput(agent.bulk(&target, args.trials)?);
    let (blocks, rate) = agent.nbd(&*place.ground, state, &target, args.trials)?;
    report.add(&blocks);
    report.add_throughput(rate);
    super::latency::add_agent_ratios(&mut report)?;
    report.add_ratio("nbd_read4k/read4k", Statistic::P50, None)?;
    for name in ["agent_bulk_read/burst_read", "nbd_bulk_read/burst_read"] {
        report.add_ratio(name, Statistic::BytesPerS, Some(0.8))?;
    }
    let (target, inline) = fault_step::in_place(target)?;
    report.add(&inline);
    let pages = |samples: &Samples| samples.summary().map_or(0, |summary| summary.count);
    to_stdout!(
        "page faults: {} fetched by the thread that touched them (inline), every byte right",
        pages(&inline)
    );
    match agent.faults() {
        Ok(faults) => {
            report.add(&faults);
            to_stdout!(
                "page faults: {} fetched by the agent for this process, every byte right",
                pages(&faults)
            );
        }
        // For an ordinary user, the agent may lack the right to serve page faults that occur inside the kernel.
        Err(MeasureError::Map(reason)) if *site != Site::Lab(LabPrivilege::Root) => {
            to_stdout!("page faults through the agent are left out: {reason}");
        }
        Err(error) => return Err(error.into()),
    }
    to_stdout!("");
    let MeasuredRegion { port, .. } = target;
    close(port)?;
    lease.end()?;

    put_out(args, &report, &samples)
}

/// Prints the report, and writes it to the folder that the options name.
pub(super) fn put_out(args: &Args, report: &Report, samples: &[Samples]) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.output)
        .map_err(|e| format!("cannot create {}: {e}", args.output.display()))?;
    let output = OutputArgs {
        json: Some(args.output.join("report.json")),
        html: Some(args.output.join("report.html")),
        ..OutputArgs::default()
    };
    let all: Vec<&Samples> = samples.iter().collect();
    output.write(report, &all)
}

fn measure(
    args: &Args,
    target: &mut MeasuredRegion,
    (link, frames): (&cxloe_link::LinkInfo, &str),
    interfaces: Vec<String>,
    wait: WaitStyle,
) -> Result<(Report, Vec<Samples>), Failure> {
    let progress = bar(u64::from(args.trials) * 11 + 1, ProgressUnit::Steps);
    let mut step = |what: &str| step(&progress, what);
    let latency = target.latency(LatencyPlan { trials: args.trials, operations: 20_000 }, &mut step)?;
    step("cache hits");
    let (hit_reads, hit_writes) = target.hits(args.trials, 200)?;
    let plan = StreamPlan { trials: args.trials, each: Duration::from_millis(250), depth: args.depth };
    let streams = target.streams(plan, &mut step)?;
    progress.finish_and_clear();

    let bounces: Vec<f64> = (0..3).filter_map(|_| target.bounce()).collect();
    let mut report = report(link, frames, interfaces, wait, machine::median(&bounces));
    let samples =
        vec![latency.echo64, latency.read64, latency.write64, latency.mixed64, hit_reads, hit_writes];
    samples.iter().for_each(|s| report.add(s));
    streams.into_iter().for_each(|s| report.add_throughput(s));
    super::latency::add_ratios(&mut report)?;
    super::bandwidth::add_ratios(&mut report)?;
    Ok((report, samples))
}

/// Fills the region with a pattern, and compares every byte that it reads back.
pub(super) fn verify(target: &mut MeasuredRegion) -> Result<(), Failure> {
    let progress = bar(target.bytes * 2, ProgressUnit::Bytes);
    progress.set_message("verify");
    let bytes = target.verify(rand::random(), &mut |done| progress.set_position(done))?;
    progress.finish_and_clear();
    to_stdout!("verified: {bytes} bytes written and read back, every one right");
    Ok(())
}

fn close(port: Port) -> Result<(), Failure> {
    Ok(port.close()?)
}
