//! `cxloe-bench programs`: programs with part of their memory remote or swapped, in one run, alternately.
//!
//! ```text
//!   this machine                  namespace cn                           namespace mn
//!     the program, all local        gmm
//!     the program, with swap        cn-agent  cn0 <------ veth ------> mn0  mn-server
//!                                     the program under exec
//!     first core                      first core                             second core
//! ```

use std::path::{Path, PathBuf};

use cxloe_client::client::regions;
use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_fabric::api::CreateRegion;
use cxloe_fabric::model::{CnId, Mac, Name};
use cxloe_lab::{Host, Interrupt, Lab, LabPrivilege, Process};
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;

use super::Failure;
use super::common::{INSECURE, ProgressUnit, SEALED, bar, put, step, style};
use super::daemons::{self, MANAGER, READY};
use crate::eventually::eventually;
use cxloe_compare::programs::{
    Absent, ComparisonResults, MemoryBacking, Plan, Program, ProgramsError, ProgramsTable, Remote, Resident,
    Sized, Stage, absent_ways, measure, programs, restore_forgotten, size,
};
use cxloe_compare::stage::find;
use cxloe_measure::machine::{self, Machine};
use cxloe_measure::pattern::Share;
use cxloe_measure::report::{Link, Report};

const CN: &str = "02:00:00:00:00:01";
const SWAP_REGION: &str = "swap";
/// Bytes of a pool in addition to those of all regions.
const SPARE: u64 = 96 << 20;
/// Size of an extent in bytes; the size of a pool must be a multiple of it.
const EXTENT: u64 = 2 << 20;

const EXAMPLES: &str = "\
Examples:
  What there is here, and what would bring the rest:
    cxloe-bench programs --list

  All of it (about ten minutes), with a page to show:
    sudo cxloe-bench programs --html programs.html --json programs.json

  One program, with so many bytes resident and half of what it takes:
    sudo cxloe-bench programs --only numpy-sort --resident 48M,50%

  A first look, without swap:
    sudo cxloe-bench programs --scale 10% --ways exec --resident 50%

Each program runs once in local memory, to find out how much it takes and what it prints; then in local
memory and in each way, alternately. What it prints has to be the same everywhere. Under exec, what is
resident counts the program's heap and large mappings. With swap, a control group limits all of its memory,
and has 8 MiB more for code, page tables and files. On two cores and more, programs and the agent are kept
on the first core, and the memory node on the second.

Areas of swap, groups and namespaces are gone when this ends, also after Ctrl-C; what a run that was killed has left behind is
taken away by the next one. redis-zipf, graph-walk and chase count their own operations; the time of the others is that from
start to end.

Exit codes: 0 done, 1 a program failed or printed something wrong (the others are reported), 2 wrong usage, 130 ended by
Ctrl-C.";

/// Options that select programs and their sizes.
#[derive(clap::Args, Clone, Debug)]
pub struct ChosenPrograms {
    /// Run these programs only, separated by commas
    #[arg(long, value_name = "PROGRAMS", value_delimiter = ',')]
    only: Vec<String>,

    /// Memory of a program that may be resident: shares of its footprint, or bytes
    #[arg(long, value_name = "SHARE|SIZE", value_delimiter = ',', default_value = "100%,75%,50%,25%")]
    resident: Vec<Resident>,

    /// Share of the usual work: smaller programs, with less memory
    #[arg(long, value_name = "SHARE", default_value = "100%")]
    scale: Share,

    /// Limit on one run of a program; a longer run is ended and reported as such
    #[arg(long, value_name = "TIME", default_value = "60s")]
    limit: humantime::Duration,

    /// Measure without keys: frames carry a checksum and are not sealed
    #[arg(long)]
    pub insecure: bool,
}

/// Run programs with part of their memory remote, or swapped, and compare them with local memory
///
/// A sort, a database, a hash, a compressor, Redis under Zipf's law, a walk through a graph and a pointer chase run in local
/// memory, under `cn-agent exec` and with swap (on the same remote memory as a block device, to zram, to a file), with 100, 75,
/// 50 and 25 % of their memory resident.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: ChosenPrograms,

    /// Ways to hold memory, besides local: exec, swap-nbd, swap-zram, swap-file
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        default_value = "exec,swap-nbd,swap-zram,swap-file"
    )]
    ways: Vec<MemoryBacking>,

    /// List all programs and ways and whether they can be measured here, and measure nothing
    #[arg(long)]
    list: bool,

    /// Trials of each program in each way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    trials: u32,

    /// Folder for swap files, on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap_dir: PathBuf,

    /// The link of memory node and agent
    #[arg(long, value_name = Backend::VALUES, default_value = "auto", help_heading = "Link")]
    link: Backend,

    /// Wait style of memory node and agent: busy, adaptive or adaptive:TIME or sleep
    #[arg(long, value_name = "STYLE", default_value_t, help_heading = "Link")]
    wait: WaitStyle,

    /// MTU of the veth pair
    #[arg(long, value_name = "BYTES", default_value_t = 1500, help_heading = "Link")]
    mtu: u32,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,

    /// Write the figures as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,

    /// Write a page with pictures
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        !self.list
    }

    /// Options for another command that includes this measurement: the given choice of programs, and defaults for the
    /// rest.
    pub fn within(choice: ChosenPrograms) -> Args {
        Args {
            choice,
            ways: MemoryBacking::LIMITED.to_vec(),
            list: false,
            trials: 1,
            swap_dir: "/var/tmp".into(),
            link: Backend::Auto,
            wait: WaitStyle::default(),
            mtu: 1500,
            json: None,
            csv: None,
            html: None,
        }
    }

    fn chosen(&self) -> Result<Vec<Program>, Failure> {
        let all = programs();
        if let Some(word) =
            self.choice.only.iter().find(|word| !all.iter().any(|program| program.name == **word))
        {
            let names: Vec<&str> = all.iter().map(|program| program.name).collect();
            return Err(format!("no program is called `{word}`; there are {}", names.join(", ")).into());
        }
        let is_chosen = |program: &Program| {
            (self.choice.only.is_empty() && (self.list || program.is_usual()))
                || self.choice.only.iter().any(|word| word == program.name)
        };
        Ok(all.into_iter().filter(is_chosen).collect())
    }

    fn plan(&self, ways: Vec<MemoryBacking>) -> Plan {
        Plan {
            ways,
            residents: self.choice.resident.clone(),
            trials: self.trials,
            limit: self.choice.limit.into(),
        }
    }
}

pub fn run(args: &Args, standing: Option<LabPrivilege>, interrupt: Interrupt) -> Result<(), Failure> {
    let chosen = args.chosen()?;
    let standing = standing.unwrap_or(match nix::unistd::geteuid().is_root() {
        true => LabPrivilege::Root,
        false => LabPrivilege::UserNamespace,
    });
    if args.list {
        to_stdout!("{}", listing(args, &chosen, standing).trim_end());
        return Ok(());
    }
    let (table, failed) = carry_out(args, standing, interrupt)?;
    put_out(args, &table)?;
    if failed.is_empty() { Ok(()) } else { Err(format!("these runs failed: {}", failed.join("; ")).into()) }
}

/// Measures the chosen programs; returns the results and the texts of failures.
pub fn carry_out(
    args: &Args,
    standing: LabPrivilege,
    interrupt: Interrupt,
) -> Result<(ProgramsTable, Vec<String>), Failure> {
    let (mut absent, chosen) = probed(args.chosen()?);
    // Swap areas and control groups left behind by a killed run are removed first.
    restore_forgotten(&args.swap_dir);
    let absent_ways = absent_ways(&args.ways, standing, &args.swap_dir);
    let mut ways: Vec<MemoryBacking> =
        args.ways.iter().copied().filter(|way| absent_ways.iter().all(|(gone, _)| gone != way)).collect();
    absent.extend(absent_ways.into_iter().map(|(_, one)| one));
    absent.iter().for_each(say_absent);

    let state = tempfile::Builder::new().prefix("cxloe-programs-").tempdir()?;
    let folder = state.path().join("programs");
    std::fs::create_dir(&folder)?;
    let (swap_folder, host) = (args.swap_dir.clone(), Host::default());
    let cores = machine::allowed_cores();
    let core = cores.first().copied().filter(|_| cores.len() > 1 && find("taskset").is_some());
    let stage = Stage { host, folder, swap_folder, core, interrupt: interrupt.clone() };
    let progress = bar(chosen.len() as u64, ProgressUnit::Steps);
    let (sized, unfit) =
        size(&stage, &chosen, args.choice.scale, args.choice.limit.into(), &mut |what| step(&progress, what))
            .map_err(plain)?;
    progress.finish_and_clear();
    unfit.iter().for_each(say_absent);
    absent.extend(unfit);
    if sized.is_empty() {
        return Err("none of the programs asked for can be measured here".into());
    }

    let needs_remote = ways.iter().any(|way| matches!(way, MemoryBacking::Exec | MemoryBacking::SwapNbd));
    let fabric = needs_remote.then(|| Fabric::start(args, &sized, &ways, state.path(), &interrupt));
    let fabric = fabric.transpose().inspect_err(|_| show_logs(state.path(), &interrupt))?;
    if let (Some(fabric), true) = (&fabric, ways.contains(&MemoryBacking::Exec))
        && let Err(error) = fabric.remote.check(&stage.folder)
    {
        let one = Absent { name: MemoryBacking::Exec.name().into(), reason: error.to_string() };
        say_absent(&one);
        absent.push(one);
        ways.retain(|way| *way != MemoryBacking::Exec);
    }
    let plan = args.plan(ways);
    let runs = sized.len() * (1 + plan.ways.len() * plan.residents.len()) * plan.trials as usize;
    let progress = bar(runs as u64, ProgressUnit::Steps);
    let remote = fabric.as_ref().map(|fabric| &fabric.remote);
    let outcome = measure(&stage, remote, &sized, &plan, &mut |what| step(&progress, what));
    progress.finish_and_clear();
    let ComparisonResults { figures, failed } = outcome.map_err(plain)?;
    if !failed.is_empty() {
        show_logs(state.path(), &interrupt);
    }
    let backend = fabric.as_ref().map_or_else(|| "none".to_owned(), |fabric| fabric.link.clone());
    let frames = match (needs_remote, args.choice.insecure) {
        (false, _) => "",
        (true, false) => SEALED,
        (true, true) => INSECURE,
    };
    let link = Link {
        backend,
        interfaces: vec!["cn0".into(), "mn0".into()],
        mtu: args.mtu,
        wait: style(args.wait),
        frames: frames.into(),
    };
    let table = ProgramsTable {
        report: Report::new(Machine::describe(), link),
        programs: sized.iter().map(|one| one.program).collect(),
        ways: plan.ways,
        figures,
        absent,
        limit_s: plan.limit.as_secs_f64(),
    };
    Ok((table, failed))
}

fn say_absent(one: &Absent) {
    to_stderr!("left out: {}: {}", one.name, one.reason);
}

/// Unwraps the error of Ctrl-C, because the type of the error determines the exit code.
fn plain(error: ProgramsError) -> Failure {
    match error {
        ProgramsError::Interrupted(interrupted) => interrupted.into(),
        other => other.into(),
    }
}

fn show_logs(state: &Path, interrupt: &Interrupt) {
    if interrupt.check().is_ok() {
        daemons::show_logs(state);
    }
}

/// Splits the chosen programs into those that cannot be measured and those that can.
fn probed(chosen: Vec<Program>) -> (Vec<Absent>, Vec<Program>) {
    let (mut absent, mut present) = (Vec::new(), Vec::new());
    for program in chosen {
        match program.missing() {
            Some(reason) => absent.push(Absent { name: program.name.into(), reason }),
            None => present.push(program),
        }
    }
    (absent, present)
}

/// Text list of all programs and ways of giving them memory, each with the reason if it cannot be measured.
fn listing(args: &Args, chosen: &[Program], standing: LabPrivilege) -> String {
    let mut text = String::new();
    let mut line = |name: &str, what: &str, reason: Option<&str>| {
        let mark = if reason.is_some() { "no" } else { "yes" };
        text += &format!("{name:<11} {mark:<4} {what}\n");
        if let Some(reason) = reason {
            text += &format!("{:16} {reason}\n", "");
        }
    };
    for program in chosen {
        line(program.name, program.what, program.missing().as_deref());
    }
    let absent = absent_ways(&args.ways, standing, &args.swap_dir);
    for way in &args.ways {
        let reason = absent.iter().find(|(gone, _)| gone == way).map(|(_, one)| one.reason.as_str());
        line(way.name(), way.what(), reason);
    }
    text
}

fn put_out(args: &Args, table: &ProgramsTable) -> Result<(), Failure> {
    to_stdout!("{}", table.text().trim_end());
    put("results:", &args.json, || Ok(table.json().into()))?;
    put("figures:", &args.csv, || Ok(table.csv().into()))?;
    put("page:", &args.html, || Ok(table.html()?.into()))
}

/// Running manager, memory node and agent in two namespaces.
struct Fabric {
    /// Access to the region that the measured program uses.
    remote: Remote,
    /// Value of the agent's option `--link`.
    link: String,
    _agent: Process,
    _memory_node: Process,
    _gmm: Process,
}

impl Fabric {
    fn start(
        args: &Args,
        sized: &[Sized],
        ways: &[MemoryBacking],
        state: &Path,
        interrupt: &Interrupt,
    ) -> Result<Fabric, Failure> {
        let cores = machine::allowed_cores();
        let lab = Lab::builder()
            .namespace("cn")
            .namespace("mn")
            .veth("cn", "cn0", "mn", "mn0")
            .mac("cn0", CN)
            .mtu(args.mtu)
            .address("cn0", "10.77.0.1/24")
            .address("mn0", "10.77.0.2/24")
            .build()?;
        let gmm = daemons::start(&lab, "cn", state, "gmm", |c| {
            c.args(["serve", "--insecure", "--listen", "10.77.0.1:7440", "--data-dir"])
                .arg(state.join("gmm"));
        })?;
        let most = sized.iter().map(Sized::region_bytes).max().unwrap_or(0);
        let swap = ways.contains(&MemoryBacking::SwapNbd).then_some(most);
        // While a region is created, the region of the previous run may still exist; so the pool has room for two.
        let pool = (2 * most + swap.unwrap_or(0) + SPARE).next_multiple_of(EXTENT);
        let (link, wait) = (args.link.to_string(), args.wait.to_string());
        let memory_node = daemons::start(&lab, "mn", state, "mn-server", |c| {
            c.args(["-i", "mn0", "--name", "mn1", "--manager", MANAGER, "--link", &link, "--wait", &wait]);
            c.arg("--pool-size").arg(pool.to_string());
            c.arg("--data-dir").arg(state.join("mn")).arg("--socket").arg(state.join("mn-server.sock"));
            daemons::protect(c, args.choice.insecure, &state.join("mn.key"));
            if let Some(core) = cores.get(1) {
                c.args(["--cpus", &core.to_string()]);
            }
        })?;
        lab.enter("cn", || daemons::wait_for_nodes(MANAGER, interrupt))??;
        let socket = state.join("cn-agent.sock");
        let agent = daemons::start(&lab, "cn", state, "cn-agent", |c| {
            c.args([
                "run",
                "-i",
                "cn0",
                "--name",
                "cn1",
                "--manager",
                MANAGER,
                "--link",
                &link,
                "--wait",
                &wait,
            ]);
            c.arg("--socket").arg(&socket).arg("--data-dir").arg(state.join("cn"));
            daemons::protect(c, args.choice.insecure, &state.join("cn.key"));
            // The agent runs on the program's core: waking a thread on another core takes longer than fetching a page.
            if let [first, _, ..] = cores[..] {
                c.args(["--cpus", &first.to_string()]);
            }
        })?;
        eventually("cn-agent answers", READY, interrupt, || regions(&socket).is_ok())?;
        if let Some(bytes) = swap {
            lab.enter("cn", || create(SWAP_REGION, bytes))??;
            let attached =
                || regions(&socket).is_ok_and(|all| all.iter().any(|r| r.region.as_str() == SWAP_REGION));
            eventually("cn-agent attaches the region to swap to", READY, interrupt, attached)?;
        }
        let link = cxloe_client::client::counters(&socket).map_or(link, |counters| counters.backend);
        let program = std::env::current_exe()?.with_file_name("cn-agent");
        let swap_region = swap.map(|_| SWAP_REGION.to_owned());
        let remote = Remote { lab, namespace: "cn", program, socket, swap_region };
        Ok(Fabric { remote, link, _agent: agent, _memory_node: memory_node, _gmm: gmm })
    }
}

/// Creates a region of `bytes` for the agent's compute node.
fn create(name: &str, bytes: u64) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let owner = CnId::new(CN.parse::<Mac>()?)?;
    let manager = cxloe_fabric::Client::new(MANAGER)?;
    runtime.block_on(manager.create_region(&CreateRegion::new(Name::new(name)?, bytes, owner)))?;
    Ok(())
}
