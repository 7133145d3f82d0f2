//! `cxloe-bench report`: a standard set of measurements in a lab, by which two machines or two versions can be
//! compared.

use std::path::PathBuf;
use std::time::Duration;

use cxloe_daemon::{PfcTrust, Switch, to_stdout};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::ByteSize;
use cxloe_lab::{Interrupt, LabPrivilege};
use cxloe_wire::random::Random;
use maud::html;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Failure;
use super::common::{ProgressUnit, RegionArgs, Session, bar, put, report, step};
use super::daemons::MANAGER;
use super::pair::{LabOptions, PROBE_CABLE, Setup, in_lab, usable};
use super::programs;
use crate::standard::probe::{ProbeComparison, ProbeSetup, Probes, Unused};
use crate::standard::{LoadPlan, under_load};
use cxloe_compare::programs::ProgramsTable;
use cxloe_measure::MeasuredRegion;
use cxloe_measure::costs::CostPlan;
use cxloe_measure::evictions::{evictions, region_bytes};
use cxloe_measure::floor_fault::FaultFloors;
use cxloe_measure::latency::LatencyResults;
use cxloe_measure::report::html::{row, table};
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{Report, Samples, Statistic, json_text, units};

/// Progress steps of a trial's latency measurements.
const STEPS: u64 = 8;
/// Progress steps of a trial's other measurements: costs (4), loads (2) and faults (6).
const REST: u64 = 4 + 2 + 6;
/// Number of line operations in a trial.
const LINES: u64 = 4_000;
/// Number of page fetches in a trial.
const PAGES: u64 = 1_000;

const EXAMPLES: &str = "\
Examples:
  Everything, as root, with a page to show:
    sudo cxloe-bench report --json report.json --html report.html

  Beside C programs that share nothing with this one:
    sudo cxloe-bench report --probe

  Lines and pages only:
    cxloe-bench report --without-programs

By turns: bare echo and lines, page fetches, faults served from local memory, and the probes. Then: what a line and a byte cost
in processor cycles at both ends, lines at 70 % of the most there is, first touches of pages with and without eviction, and
programs with all, three quarters, half and a quarter of their memory resident (`cxloe-bench programs` measures those in more
ways).

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.";

/// Measure the standard report: cycles, tails under load, faults under eviction, programs
///
/// CPU cycles for each line and byte at both ends; p50, p99 and p99.9 of a line alone and at 70 % of the highest rate;
/// first touches of pages with and without eviction; programs with part of their memory remote. With --probe,
/// independent C programs measure the same limits alternately.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of trials of each measurement
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    trials: u32,

    /// Faults of each kind in a trial
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(50..=8_000))]
    operations: u64,

    /// Requests in flight where a measurement has many; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,

    /// MTU of the cables
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,

    /// Compile the C programs in DIR and run them in alternation with ours [default DIR: those that come with this
    /// program]
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    probe: Option<Option<PathBuf>>,

    /// Leave out the measurements of whole programs
    #[arg(long, help_heading = "Programs")]
    without_programs: bool,

    #[command(flatten, next_help_heading = "Programs")]
    choice: programs::ChosenPrograms,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,

    /// Write a page with pictures
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
}

/// Parts of the report that are neither times nor rates.
struct ReportParts {
    programs: Option<ProgramsTable>,
    beside: Vec<ProbeComparison>,
    unused: Vec<Unused>,
}

pub fn run(args: &Args, standing: Option<LabPrivilege>, interrupt: Interrupt) -> Result<(), Failure> {
    // Programs are measured before this thread enters a namespace from which control groups are not visible.
    let (programs, failed) = match args.without_programs {
        true => (None, Vec::new()),
        false => {
            let wanted = programs::Args::within(args.choice.clone());
            let (table, failed) =
                programs::carry_out(&wanted, standing.unwrap_or(LabPrivilege::Root), interrupt.clone())?;
            (Some(table), failed)
        }
    };
    let region = RegionArgs {
        manager: MANAGER.into(),
        region: None,
        size: ByteSize(region_bytes(args.operations).max(32 << 20)),
        ways: Ways::One,
        granularity: Granularity::PAGE,
        rate_control: Switch::On,
        pfc: PfcTrust::Ignore,
        identity: None,
        node_key: None,
        key_file: None,
        data_dir: None,
        insecure: args.choice.insecure,
        no_echo: false,
    };
    let options = LabOptions { name: "report", mtu: args.mtu, region: &region, agent: true };
    in_lab(&options, &interrupt, |place| at(args, place, programs, &interrupt))?;
    if failed.is_empty() { Ok(()) } else { Err(format!("these runs failed: {}", failed.join("; ")).into()) }
}

fn at(
    args: &Args,
    place: Setup,
    programs: Option<ProgramsTable>,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let agent = usable(place.agent);
    let (mut target, again) = place.session.into_parts();
    if let Some(agent) = &agent {
        agent.pause();
    }
    let folder = tempfile::Builder::new().prefix("cxloe-probe-").tempdir()?;
    let mut probes = match &args.probe {
        None => None,
        Some(source) => Some(Probes::compile(source.as_deref(), folder.path())?),
    };
    let ground = match (&place.lab, target.cores) {
        (Some(lab), Some(cores)) => {
            let (near, far) = PROBE_CABLE;
            Some(ProbeSetup { lab, near, far, cores, interrupt })
        }
        _ => None,
    };
    let progress = bar(u64::from(args.trials) * (STEPS + REST), ProgressUnit::Steps);
    let mut step = |what: &str| step(&progress, what);
    let mut samples = by_turns(args, &mut target, probes.as_mut().zip(ground.as_ref()), &mut step)?;
    let each = Duration::from_millis(100);
    let (trials, depth) = (args.trials, usize::from(args.depth));
    let costs = target.costs(CostPlan { trials, each, depth }, &mut step)?;
    let (target, load) = under_load(target, LoadPlan { trials, each, depth }, &mut step)?;
    let (target, faults) = evictions(target, agent.as_ref(), (trials, args.operations), &mut step)?;
    progress.finish_and_clear();
    samples.push(load);
    samples.extend(faults.samples);

    let session: Session = again(target);
    let bounce = session.target.bounce();
    let mut report = report(&session.link, &session.frames, place.interfaces, place.wait, bounce);
    samples.iter().for_each(|samples| report.add(samples));
    report.costs = costs;
    add_ratios(&mut report)?;
    session.close()?;
    let p50 = |name: &str| report.result(name).map(|result| result.p50);
    let beside = probes.as_ref().map_or_else(Vec::new, |probes| probes.beside(p50));
    let unused = probes.map_or_else(Vec::new, |probes| probes.unused);
    put_out(args, &report, &ReportParts { programs, beside, unused })
}

/// Measures lines, pages and lower limits alternately, with the probes between them.
fn by_turns(
    args: &Args,
    target: &mut MeasuredRegion,
    mut probes: Option<(&mut Probes, &ProbeSetup<'_>)>,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<Samples>, Failure> {
    let mut lines = LatencyResults::of("");
    let [mut fetch, mut served, mut inline] =
        ["fetch4k", "uffd_floor4k", "uffd_inline_floor4k"].map(Samples::new);
    let mut floors = FaultFloors::new(None)?;
    let mut addresses = Random::new(64);
    for _ in 0..args.trials {
        let bounce = target.bounce();
        target.latency_trial((LINES, bounce), &mut addresses, &mut lines, step)?;
        step("page fetches");
        target.fetch_trial(PAGES, &mut fetch)?;
        fetch.end_trial(bounce);
        step("faults served locally");
        floors.served(args.operations, &mut served)?;
        served.end_trial(bounce);
        floors.inline(args.operations, &mut inline)?;
        inline.end_trial(bounce);
        step("probes");
        if let Some((probes, ground)) = &mut probes {
            let _asleep = StoppedProcess::new(target.memory_node);
            probes.turn(ground, LINES)?;
        }
    }
    Ok(vec![lines.echo64, lines.read64, lines.write64, lines.mixed64, fetch, served, inline])
}

/// Process of a memory node, stopped so that it does not spin on a core that is being measured; resumed on drop.
struct StoppedProcess(Option<Pid>);

impl StoppedProcess {
    fn new(process: Option<Pid>) -> StoppedProcess {
        if let Some(pid) = process {
            let _ = kill(pid, Signal::SIGSTOP);
        }
        StoppedProcess(process)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill(pid, Signal::SIGCONT);
        }
    }
}

fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    super::latency::add_ratios(report)?;
    for (above, below, target) in [
        ("fault4k", "(uffd_floor4k+fetch4k)", Some(1.25)),
        ("fault4k_inline", "(uffd_inline_floor4k+fetch4k)", Some(1.25)),
        ("fault4k_evict", "fault4k", None),
        ("fault4k_inline_evict", "fault4k_inline", None),
    ] {
        if report.result(above).is_some() && report.result("fetch4k").is_some() {
            report.add_ratio(&format!("{above}/{below}"), Statistic::P50, target)?;
        }
    }
    Ok(())
}

fn put_out(args: &Args, report: &Report, parts: &ReportParts) -> Result<(), Failure> {
    to_stdout!("{}", report.tables());
    if !parts.beside.is_empty() {
        let mut rows = new_table(["probe", "p50", "p99", "ours", "p50", "ours / probe"]);
        for one in &parts.beside {
            let times = [one.p50_ns, one.p99_ns, one.ours_p50_ns].map(units::time);
            let [p50, p99, ours] = times;
            rows.add_row([one.probe.clone(), p50, p99, one.ours.clone(), ours, format!("{:.2}", one.ratio)]);
        }
        to_stdout!("{rows}");
    }
    for one in &parts.unused {
        to_stdout!("left out: the probe {}: {}", one.name, one.reason);
    }
    if let Some(programs) = &parts.programs {
        to_stdout!("{}", programs.text().trim_end());
    }
    put("results:", &args.json, || {
        let mut value = serde_json::to_value(report)?;
        if let Some(programs) = &parts.programs {
            value["programs"] = programs.value();
        }
        if args.probe.is_some() {
            value["probes"] = serde_json::json!({ "beside": parts.beside, "left_out": parts.unused });
        }
        Ok(json_text(&value).into())
    })?;
    put("page:", &args.html, || {
        let beside = |one: &ProbeComparison| {
            let [p50, ours] = [one.p50_ns, one.ours_p50_ns].map(units::time);
            row([&one.probe, &p50, &one.ours, &ours, &format!("{:.2}", one.ratio)])
        };
        let first = html! {
            @if !parts.beside.is_empty() {
                h2 { "Beside independent programs" }
                p { "C programs that share nothing with this one, in alternation with it. Medians." }
                (table(&["probe", "p50", "ours", "p50", "ours / probe"], parts.beside.iter().map(beside)))
            }
            @if let Some(programs) = &parts.programs { (programs.section()?) }
        };
        Ok(report.html_with(&first)?.into())
    })
}
