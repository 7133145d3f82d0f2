//! `cxloe-bench compare`: other remote-memory systems beside this one, over one cable, in one run.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cxloe_daemon::doctor::Host;
use cxloe_daemon::doctor::nic::Nic;
use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_fabric::model::ByteSize;
use nix::sys::utsname::uname;
use nix::unistd::User;

use super::Failure;
use super::common::{OutputArgs, ProgressUnit, bar, put, step};
use cxloe_compare::archive::beside::{ArchivesBeside, ReadRun};
use cxloe_compare::archive::{self, Archive, ArchivedRun, Redaction, RunRecord};
use cxloe_compare::pattern::BLOCK;
use cxloe_compare::peer::{is_meant, missing};
use cxloe_compare::report::{Absent, Comparison};
use cxloe_compare::stage::{FAR, FAR_INTERFACE, NEAR, NEAR_INTERFACE};
use cxloe_compare::store::Content;
use cxloe_compare::trace::AccessTrace;
use cxloe_compare::{Journal, Pattern, Peer, PeerError, Plan, Site, Stage};
use cxloe_compare::{absent_figures, expected, peers, rdma, run as measure};
use cxloe_lab::{Interrupt, LabPrivilege};
use cxloe_measure::facts::{self, Fact};
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

  Latency under load, and 1 MiB at a time:
    cxloe-bench compare --only cxloe,tcp,memcached --patterns load,1m

  A program's loads and stores, replayed (`cxloe-bench trace convert --help`):
    valgrind --tool=lackey --trace-mem=yes --log-file=ls.log ls
    cxloe-bench trace convert --from lackey ls.log ls.trace
    cxloe-bench compare --only cxloe,tcp --trace ls.trace

  All of it in one file for others, and later beside a newer run:
    sudo cxloe-bench compare --archive compare.tar.gz
    sudo cxloe-bench compare --archive newer.tar.gz --with compare.tar.gz
    cxloe-bench compare --verify newer.tar.gz --with compare.tar.gz

Patterns: read, seq (random and in order, one in flight), stream, seq_stream (the same, many in flight), each of 64 bytes, 4 KiB
and 1 MiB: read64, read4k, read1m, and so on; load25, load50, load75, load90 (random lines at a share of the peer's own
highest rate); write64, bulk_read, bulk_write; trace.

Each trial starts a peer's server in a network namespace, measures the patterns from another one, and ends it; trials of
all peers take turns. Client and server are kept on the first two cores. Every byte read is compared with what was written
wherever the peer lets us. `--list` and the report say who waits how, who copies and what is verified: read them
before the figures.

Exit codes: 0 done, 1 a peer failed (the others are reported), 2 wrong usage, 130 ended by Ctrl-C.";

/// Measure other remote-memory systems beside this one: sockets, Redis, UCX, RDMA, …
///
/// Reads of 64 bytes, 4 KiB and 1 MiB, at random places and in order, one and many in flight; reads at shares of each peer's
/// own highest rate, timed from the moment at which they were due; writes; all memory; a recorded trace. What is installed
/// is measured, what is not is listed with its install command.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure these peers only: names or groups (udp is udp-spin and udp-block), separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    only: Vec<String>,

    /// Leave out these peers: names or groups, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    without: Vec<String>,

    /// Measure these patterns only: names, groups (load is load25 to load90) or sizes (64, 4k, 1m), separated by commas
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    patterns: Vec<String>,

    /// List all peers with descriptions and whether they can be measured here, and measure nothing
    #[arg(long)]
    list: bool,

    /// Two short trials over little memory: enough to see that all works
    #[arg(long)]
    quick: bool,

    /// Trials of each peer [default: 5; quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,

    /// Memory that each peer holds, a multiple of 64 KiB, for reads of 1 MiB at least that [default: 16M; quick: 4M]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// Length of each pattern of a trial, roughly; a load that a peer cannot bear takes twice as long [default: 250ms;
    /// quick: 30ms]
    #[arg(long, value_name = "TIME")]
    each: Option<humantime::Duration>,

    /// Maximum number of single operations of a pattern in a trial
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..))]
    operations: u64,

    /// Lines in flight where many are, and in one access of a trace; a quarter as many pages, a 32nd as many of 1 MiB;
    /// beyond 200 a veth loses frames
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

    /// Put everything into one file (tar, gzip): table, picture, commands, versions, histograms, how to repeat it
    #[arg(long, value_name = "FILE", help_heading = "Archive")]
    archive: Option<PathBuf>,

    /// Keep the names of host and user, and whole paths, in the archive
    #[arg(long, requires = "archive", help_heading = "Archive")]
    with_host: bool,

    /// Show the ratio of each figure to that of the archive FILE, and what differs between the runs
    #[arg(long, value_name = "FILE", conflicts_with = "list", help_heading = "Archive")]
    with: Option<PathBuf>,

    /// Measure nothing: check the archive FILE by its checksums, and show its table
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["archive", "list", "quick", "only", "without", "patterns", "trace", "json", "csv", "html", "hdr"],
        help_heading = "Archive"
    )]
    verify: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        !self.list && self.verify.is_none()
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let (bytes, each) = if self.quick { (4 << 20, 30) } else { (16 << 20, 250) };
        let bytes = self.size.map_or(Ok(bytes), |size| usize::try_from(size.0))?;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK) {
            return Err(format!("--size {bytes}: has to be a multiple of 64 KiB").into());
        }
        let each = self.each.map_or(Duration::from_millis(each), Into::into);
        let patterns = self.chosen_patterns()?;
        let trace = self.read_trace(bytes as u64)?;
        Ok(Plan { patterns, bytes, operations: self.operations, each, depth: self.depth.into(), trace })
    }

    /// Patterns that `--patterns` names, or all; that of a trace if there is one.
    fn chosen_patterns(&self) -> Result<Vec<Pattern>, Failure> {
        for word in &self.patterns {
            if !Pattern::ALL.iter().any(|pattern| pattern.is_meant(word)) {
                let names = Pattern::ALL.map(Pattern::name).join(", ");
                return Err(format!("no pattern is called `{word}`; there are {names}").into());
            }
        }
        let is_named = |pattern: Pattern| self.patterns.iter().any(|word| pattern.is_meant(word));
        if is_named(Pattern::Trace) && self.trace.is_none() {
            return Err("the pattern trace replays a file: name it with --trace FILE".into());
        }
        let is_chosen = |pattern: &Pattern| match *pattern {
            Pattern::Trace => self.trace.is_some(),
            pattern => self.patterns.is_empty() || is_named(pattern),
        };
        Ok(Pattern::ALL.into_iter().filter(is_chosen).collect())
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

    /// Command line that makes the same measurement of these peers, with every setting that has a default.
    fn command_line(&self, plan: &Plan, trials: u32, peers: &[&str]) -> String {
        let size = ByteSize(plan.bytes as u64);
        let each = humantime::format_duration(plan.each).to_string().replace(' ', "");
        let mut line = format!(
            "cxloe-bench compare --only {} --trials {trials} --size {size} --each {each} --operations {} --depth {} \
             --mtu {}",
            peers.join(","),
            plan.operations,
            plan.depth,
            self.mtu
        );
        if !self.patterns.is_empty() {
            line += &format!(" --patterns {}", self.patterns.join(","));
        }
        if let Some(name) = self.trace.as_ref().and_then(|path| path.file_name()) {
            line += &format!(" --trace {}", name.to_string_lossy());
        }
        if !self.rdma.is_empty() {
            line += &format!(" --rdma {}", self.rdma.join(","));
        }
        for (option, is_given) in [("--trace-fold", self.trace_fold), ("--insecure", self.insecure)] {
            if is_given {
                line += &format!(" {option}");
            }
        }
        line
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
    let older = args.with.as_deref().map(read_run).transpose()?.map(|(_, older)| older);
    if let Some(path) = &args.verify {
        return verify(path, older.as_ref());
    }
    // An archive that cannot be written is refused before the measurement, which takes minutes.
    args.archive.as_deref().map(archive::check_place).transpose()?;
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
        journal: Journal::default(),
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
    let measured: Vec<&dyn Peer> =
        present.iter().copied().filter(|peer| !failed.contains(&peer.name())).collect();
    let comparison = Comparison {
        peers: measured.iter().map(|peer| (peer.name(), peer.facts())).collect(),
        baseline: baseline.filter(|name| !failed.contains(name)).map(Into::into),
        report,
        absent_figures: absent_figures(&measured, &plan, &outcome.figures),
        patterns: plan.patterns.clone(),
        figures: outcome.figures,
        absent,
    };
    put_out(args, &comparison, &outcome.samples)?;
    if args.archive.is_some() || older.is_some() {
        let redaction = redaction(args.with_host, &stage.folder);
        let record = record(args, &stage, (&plan, trials), &present, &redaction)?;
        let archive = ArchivedRun {
            comparison: &comparison,
            trials: &outcome.trials,
            samples: &outcome.samples,
            journal: &stage.journal,
            peers: &present,
            record: &record,
            redaction: &redaction,
        };
        put_aside(args, &archive.archive()?, older.as_ref())?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("these peers failed: {}", failed.join(", ")).into()) }
}

fn put_out(args: &Args, comparison: &Comparison, samples: &[Samples]) -> Result<(), Failure> {
    to_stdout!("{}", comparison.tables());
    put("results:", &args.output.json, || Ok(comparison.json().into()))?;
    put("figures:", &args.output.csv, || Ok(comparison.csv().into()))?;
    put("page:", &args.output.html, || Ok(comparison.html()?.into()))?;
    args.output.write_histograms(&samples.iter().collect::<Vec<_>>())
}

/// Writes the archive, and shows it beside an older one.
fn put_aside(args: &Args, archive: &Archive, older: Option<&ReadRun>) -> Result<(), Failure> {
    if let Some(path) = &args.archive {
        archive.write(path)?;
        to_stdout!("archive:    {}", path.display());
    }
    if let Some(older) = older {
        let newer = ReadRun::of(archive, Path::new("this run"))?;
        to_stdout!("\n{}", ArchivesBeside::of(older, &newer).text().trim_end());
    }
    Ok(())
}

/// Reads an archive, and compares its files with their checksums. Returns the number of files, too.
fn read_run(path: &Path) -> Result<(usize, ReadRun), Failure> {
    let archive = Archive::read(path)?;
    Ok((archive.names().count(), ReadRun::of(&archive, path)?))
}

/// Checks an archive, and shows its table, or its figures beside those of an older one.
fn verify(path: &Path, older: Option<&ReadRun>) -> Result<(), Failure> {
    let (files, run) = read_run(path)?;
    to_stdout!("{}", run.table.trim_end());
    to_stdout!(
        "\n{}: {files} files, all as their checksums say; measured until {} by\n  {}",
        path.display(),
        run.record.measured,
        run.record.command
    );
    if let Some(older) = older {
        to_stdout!("\n{}", ArchivesBeside::of(older, &run).text().trim_end());
    }
    Ok(())
}

/// Names that an archive does not have, or none of them; trials run in `folder`.
fn redaction(with_host: bool, folder: &Path) -> Redaction {
    if with_host {
        return Redaction::none(folder);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    // Behind sudo, paths often lead to the home of the user who called it.
    let caller = std::env::var("SUDO_USER").ok().and_then(|name| User::from_name(&name).ok().flatten());
    let homes: Vec<PathBuf> = caller.map(|user| user.dir).into_iter().chain(home).collect();
    Redaction::of(folder, &host_name(), &homes)
}

fn host_name() -> String {
    uname().map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Conditions of a comparison that has just been made.
fn record(
    args: &Args,
    stage: &Stage,
    (plan, trials): (&Plan, u32),
    present: &[&dyn Peer],
    redaction: &Redaction,
) -> Result<RunRecord, Failure> {
    let names: Vec<&str> = present.iter().map(|peer| peer.name()).collect();
    let trace = args.trace.as_ref().map(std::fs::read).transpose()?;
    let user = || std::env::var("USER").unwrap_or_else(|_| "somebody".into());
    Ok(RunRecord {
        form: archive::FORM,
        measured: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: args.command_line(plan, trials, &names),
        trace_sha256: trace.map(|content| archive::sum(&content)),
        host: args.with_host.then(|| format!("{} on {}", user(), host_name())),
        machine: facts::platform(&Host::default()),
        interfaces: interfaces(stage, &names)?,
        programs: archive::versions(present, &stage.folder, redaction),
    })
}

/// Facts of the interfaces at both ends of the cable, and of the verbs devices if there was a measurement between them.
fn interfaces(stage: &Stage, peers: &[&str]) -> Result<Vec<Fact>, Failure> {
    let mut all = Vec::new();
    for (namespace, name) in [(NEAR, NEAR_INTERFACE), (FAR, FAR_INTERFACE)] {
        let host = Host::default();
        let found = stage.lab.enter(namespace, || facts::interface(&host, &Nic::read(&host, name)))?;
        let found = found.into_iter().filter(|fact| fact.name != "interface");
        all.extend(found.map(|fact| Fact::new(format!("{name}: {}", fact.name), fact.value)));
    }
    if let Some((near, far)) = stage.site.rdma.as_ref().filter(|_| peers.contains(&"rdma")) {
        all.extend(rdma::facts(near));
        if far != near {
            all.extend(rdma::facts(far));
        }
    }
    Ok(all)
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
