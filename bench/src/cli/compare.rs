//! `cxloe-bench compare`: other remote-memory systems beside this one, over one cable, in one run.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Duration;

use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_fabric::model::ByteSize;

use super::Failure;
use super::common::{OutputArgs, ProgressUnit, bar, put, step};
use cxloe_compare::pattern::BLOCK;
use cxloe_compare::peer::{is_meant, missing};
use cxloe_compare::report::{Absent, Comparison};
use cxloe_compare::stage::{FAR_INTERFACE, NEAR_INTERFACE};
use cxloe_compare::store::Content;
use cxloe_compare::trace::AccessTrace;
use cxloe_compare::{Peer, PeerError, Plan, Site, Stage, expected, peers, rdma, run as measure};
use cxloe_lab::{Interrupt, LabPrivilege};
use cxloe_measure::machine::{self, Machine};
use cxloe_measure::report::{Link, Report, Samples};

const EXAMPLES: &str = "\
Examples:
  Everything that is installed here, and what would bring the rest:
    cxloe-bench compare --list
    cxloe-bench compare

  Some of it, quickly, with a page to show:
    cxloe-bench compare --quick --only cxloe,tcp,redis --html compare.html

  RDMA between two cards of this machine that are cabled to each other:
    cxloe-bench compare --only cxloe,rdma --rdma mlx5_0,mlx5_1

  A program's loads and stores, replayed (`cxloe-bench trace convert --help`):
    valgrind --tool=lackey --trace-mem=yes --log-file=ls.log ls
    cxloe-bench trace convert --from lackey ls.log ls.trace
    cxloe-bench compare --only cxloe,tcp --trace ls.trace

Each trial starts a peer's server in a network namespace, measures six patterns from another one, and ends it; trials of
all peers take turns. Client and server are kept on the first two cores. Every byte read is compared with what was written
wherever the peer lets us. `--list` and the report say who waits how, who copies and what is verified: read them
before the figures.

Exit codes: 0 done, 1 a peer failed (the others are reported), 2 wrong usage, 130 ended by Ctrl-C.";

/// Measure other remote-memory systems beside this one: sockets, Redis, UCX, RDMA, …
///
/// read64, write64, read4k: single round trips, p50 and p99. stream64: 64-byte reads with many in flight. bulk_read,
/// bulk_write: all memory in order. trace: the accesses of a recorded trace, p50 and p99. What is installed is measured,
/// what is not is listed with its install command.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure these peers only: names or groups (udp is udp-spin and udp-block), separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    only: Vec<String>,

    /// Leave out these peers: names or groups, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    without: Vec<String>,

    /// List all peers with descriptions and whether they can be measured here, and measure nothing
    #[arg(long)]
    list: bool,

    /// Two short trials over little memory: enough to see that all works
    #[arg(long)]
    quick: bool,

    /// Trials of each peer [default: 5; quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,

    /// Memory that each peer holds, a multiple of 64 KiB [default: 16M; quick: 1M]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// Length of each pattern of a trial, roughly [default: 250ms; quick: 30ms]
    #[arg(long, value_name = "TIME")]
    each: Option<humantime::Duration>,

    /// Maximum number of single operations of a pattern in a trial
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..))]
    operations: u64,

    /// Requests in flight in stream64, and in one access of a trace; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,

    /// Replay the trace in this file too, all of it in each trial: one access a line, `r` or `w`, byte offset, length
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// If the trace touches more pages than the memory has, let several of them share a place
    #[arg(long, requires = "trace")]
    trace_fold: bool,

    /// Measure this system without keys: its frames carry a checksum and are not sealed
    #[arg(long)]
    insecure: bool,

    /// MTU of the veth pair
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,

    /// Verbs devices of client and server [default: the first two with an active port, or the first with itself]
    #[arg(long, value_name = "DEV[,DEV]", value_delimiter = ',', num_args = 1..=2)]
    rdma: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        !self.list
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let (bytes, each) = if self.quick { (1 << 20, 30) } else { (16 << 20, 250) };
        let bytes = self.size.map_or(Ok(bytes), |size| usize::try_from(size.0))?;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
            return Err(format!("--size {bytes}: has to be a multiple of 64 KiB").into());
        }
        let each = self.each.map_or(Duration::from_millis(each), Into::into);
        let trace = self.read_trace(bytes as u64)?;
        Ok(Plan { bytes, operations: self.operations, each, depth: self.depth.into(), trace })
    }

    /// Trace to be replayed in a memory of `bytes` bytes.
    fn read_trace(&self, bytes: u64) -> Result<Option<AccessTrace>, Failure> {
        let Some(path) = &self.trace else { return Ok(None) };
        let failed = |why: String| -> Failure { format!("{}: {why}", path.display()).into() };
        let file = File::open(path).map_err(|e| failed(format!("cannot be opened: {e}")))?;
        let trace = AccessTrace::read(BufReader::new(file)).map_err(|e| failed(e.to_string()))?;
        if trace.bytes() > bytes && !self.trace_fold {
            let need = ByteSize(trace.bytes().next_multiple_of(BLOCK as u64));
            return Err(failed(format!(
                "it touches {} pages, for which {need} of memory are needed, and there are {}: give --size {need}, or \
                 --trace-fold to let pages share places",
                trace.pages(),
                ByteSize(bytes)
            )));
        }
        Ok(Some(trace))
    }

    /// Peers (systems to compare with) that remain after `--only` and `--without` are applied.
    fn chosen(&self) -> Result<Vec<&'static dyn Peer>, Failure> {
        let all = peers();
        for word in self.only.iter().chain(&self.without) {
            if !all.iter().any(|peer| is_meant(*peer, word)) {
                let names: Vec<&str> = all.iter().map(|peer| peer.name()).collect();
                return Err(format!("no peer is called `{word}`; there are {}", names.join(", ")).into());
            }
        }
        let is_in = |words: &[String], peer: &dyn Peer| words.iter().any(|word| is_meant(peer, word));
        Ok(all
            .into_iter()
            .filter(|peer| self.only.is_empty() || is_in(&self.only, *peer))
            .filter(|peer| !is_in(&self.without, *peer))
            .collect())
    }

    fn devices(&self) -> Option<(String, String)> {
        match &self.rdma[..] {
            [] => rdma::devices(),
            [one] => Some((one.clone(), one.clone())),
            [near, far, ..] => Some((near.clone(), far.clone())),
        }
    }
}

pub fn run(args: &Args, standing: Option<LabPrivilege>, interrupt: Interrupt) -> Result<(), Failure> {
    let (plan, chosen) = (args.plan()?, args.chosen()?);
    let site = Site {
        standing: standing.unwrap_or(LabPrivilege::Root),
        rdma: args.devices(),
        insecure: args.insecure,
    };
    let mut absent: Vec<Absent> = chosen.iter().filter_map(|peer| absence(*peer, &site)).collect();
    if args.list {
        to_stdout!("{}", listing(&chosen, &absent).trim_end());
        return Ok(());
    }
    let present: Vec<&dyn Peer> = chosen
        .into_iter()
        .filter(|peer| absent.iter().all(|one| one.peer != peer.name()))
        .map(|peer| peer as &dyn Peer)
        .collect();
    for one in &absent {
        to_stderr!("left out: {}: {}{}", one.peer, one.reason, advice(one));
    }
    if present.is_empty() {
        return Err("none of the peers asked for can be measured here".into());
    }

    let trials = args.trials.unwrap_or(if args.quick { 2 } else { 5 });
    let state = tempfile::Builder::new().prefix("cxloe-compare-").tempdir()?;
    let cores = machine::allowed_cores();
    let stage = Stage {
        lab: Stage::network(args.mtu)?,
        cores: cores.first().copied().zip(cores.get(1).copied()),
        folder: state.path().join("trial"),
        site,
        content: Content::new(plan.bytes),
        interrupt,
    };
    let names: Vec<&str> = present.iter().map(|peer| peer.name()).collect();
    // If this system is measured, the figures of the other systems are shown relative to its figures.
    let baseline = names.iter().find(|name| name.starts_with("cxloe")).copied();
    let about = expected(present.len(), &plan, trials).as_secs().max(1);
    to_stderr!("{} peers, {trials} trials each, about {about} s: {}", present.len(), names.join(", "));
    if let Some(trace) = &plan.trace {
        let writes = trace.accesses().iter().filter(|access| access.is_write).count();
        let (accesses, pages) = (trace.accesses().len(), trace.pages());
        to_stderr!("trace: {accesses} accesses to {pages} pages, {writes} of them writes");
    }
    let progress = bar(u64::from(trials) * present.len() as u64, ProgressUnit::Steps);
    let outcome = measure(&stage, &present, &plan, trials, baseline, &mut |name| step(&progress, name))
        .map_err(|error| -> Failure {
            match error {
                PeerError::Interrupted(interrupted) => interrupted.into(),
                other => other.into(),
            }
        })?;
    progress.finish_and_clear();

    let machine = Machine { bounce_ns: outcome.bounce_ns, ..Machine::describe() };
    let interfaces = vec![NEAR_INTERFACE.into(), FAR_INTERFACE.into()];
    let wait = "as each peer does".into();
    let frames = String::new();
    let link = Link { backend: "veth".into(), interfaces, mtu: args.mtu, wait, frames };
    let mut report = Report::new(machine, link);
    outcome.samples.iter().for_each(|samples| report.add(samples));
    outcome.rates.into_iter().for_each(|rate| report.add_throughput(rate));
    let failed: Vec<&str> = outcome.failed.iter().map(|(name, _)| *name).collect();
    absent.extend(outcome.failed.iter().map(|(name, error)| Absent {
        peer: (*name).into(),
        reason: format!("it failed: {error}"),
        install: None,
    }));
    let described = present.iter().filter(|peer| !failed.contains(&peer.name()));
    let comparison = Comparison {
        peers: described.map(|peer| (peer.name(), peer.facts())).collect(),
        baseline: baseline.filter(|name| !failed.contains(name)).map(Into::into),
        report,
        figures: outcome.figures,
        absent,
    };
    put_out(args, &comparison, &outcome.samples)?;
    if failed.is_empty() { Ok(()) } else { Err(format!("these peers failed: {}", failed.join(", ")).into()) }
}

fn put_out(args: &Args, comparison: &Comparison, samples: &[Samples]) -> Result<(), Failure> {
    to_stdout!("{}", comparison.tables());
    put("results:", &args.output.json, || Ok(comparison.json().into()))?;
    put("figures:", &args.output.csv, || Ok(comparison.csv().into()))?;
    put("page:", &args.output.html, || Ok(comparison.html()?.into()))?;
    args.output.write_histograms(&samples.iter().collect::<Vec<_>>())
}

/// Reason why the peer cannot be measured at `site`; `None` if it can be.
fn absence(peer: &dyn Peer, site: &Site) -> Option<Absent> {
    let packages = missing(peer);
    if !packages.is_empty() {
        let packages = packages.join(" ");
        let reason = format!("not installed: {packages}");
        let install = Some(format!("apt-get install {packages}"));
        return Some(Absent { peer: peer.name().into(), reason, install });
    }
    let reason = peer.hindrance(site)?;
    Some(Absent { peer: peer.name().into(), reason, install: None })
}

fn advice(absent: &Absent) -> String {
    absent.install.as_ref().map_or_else(String::new, |install| format!("; {install}"))
}

/// Text list of all peers, each with the reason if it cannot be measured.
fn listing(peers: &[&'static dyn Peer], absent: &[Absent]) -> String {
    let mut text = String::new();
    for peer in peers {
        let here = absent.iter().find(|one| one.peer == peer.name());
        let mark = if here.is_some() { "no" } else { "yes" };
        text += &format!("{:<14} {mark:<4} {}\n", peer.name(), peer.facts().what);
        if let Some(one) = here {
            text += &format!("{:19} {}{}\n", "", one.reason, advice(one));
        }
    }
    text
}
