//! `cxloe-bench lab`: a lab of real daemons on this machine that runs until it is stopped; `deploy/lab/lab` calls it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use cxloe_daemon::to_stderr;
use cxloe_lab::{Change, Interrupt, LabSettings, NAMED_NODES_MAX, NamedError, NamedLab, keep};

/// Limit on the time in which an interrupted `up` stops what it started.
const GRACE: Duration = Duration::from_secs(30);
/// Environment variable with the command's name in hints; set by the script that calls this command.
const COMMAND: &str = "CXLOE_LAB_COMMAND";

/// Help of all commands; `{lab}` stands for the command as the user types it.
const HELP: &str = "\
Usage: {lab} up [OPTION]...
       {lab} status [--json]
       {lab} exec NODE [--] COMMAND...
       {lab} log NODE [--follow]
       {lab} start | stop | kill NODE...
       {lab} plug | unplug NODE...
       {lab} down

Makes a lab of memory nodes (mn0, mn1, …) and compute nodes (cn0, cn1, …) on this machine, each in a network namespace
with an interface of its name, joined by a bridge. A manager runs at the switch; every node has its daemon. Root is not
needed.

Commands:
  up      make the lab; if it is there already, start the daemons that do not run
  status  what runs, and which regions there are; exit code 3 if no lab is up
  exec    run COMMAND on NODE (mn0, cn1, …, or switch, where the bridge and all ports are), in the folder it is called
          from. gmm and cn-agent find the lab's manager and the node's agent by themselves
  log     what NODE's daemon has said (the manager's log is gmm's)
  start   start a node's daemon; NODE may be gmm too
  stop    end it in order
  kill    end it with SIGKILL, as a crash would
  plug    put a node's cable into the switch
  unplug  take it out
  down    end everything; nothing is left. Without a lab it does nothing

Options of up:
  -m, --memory-nodes <N>   [default: 2]
  -c, --compute-nodes <N>  [default: 2]
  -p, --pool <SIZE>        memory that each memory node lends               [default: 64M]
  -r, --region <SIZE>      a region for each compute node, called scratch0, scratch1, …; 0: none   [default: 16M]
      --kept               pools are files: what is lent outlives a restart of its memory node
      --mtu <BYTES>        of all interfaces                                [default: 1500]
      --link <KIND>        how daemons exchange frames, as their --link     [default: packet]
      --wait <STYLE>       what idle daemons do: sleep, adaptive, busy      [default: adaptive]
      --bin <FOLDER>       where gmm, mn-server and cn-agent are            [default: beside this program, else the PATH]

Options of status, log:
      --json               one JSON object
  -f, --follow             go on as the log does

Options of all commands:
  -n, --name <NAME>        which lab, where there are several               [default: lab]
  -h, --help               this text

Exit codes:
  0 done; 1 failed; 2 wrong arguments; 3 no such lab, or something this needs is missing here; `exec`: COMMAND's own.

Environment:
  CXLOE_LAB_DIR    folder for the labs' folders [default: /tmp/cxloe-lab-UID]

Examples:
  {lab} up --memory-nodes 2 --compute-nodes 2
  {lab} status
  {lab} exec cn0 -- cn-agent write scratch0 --text 'hello, remote memory' --flush
  {lab} exec cn0 -- cn-agent read scratch0
  {lab} exec switch -- gmm create-region --size 32M --ways 2 --owner cn1 wide
  {lab} exec switch -- tcpdump -c 10 -e -i port-cn0 ether proto 0x88b5
  {lab} kill mn0; {lab} exec cn0 -- cn-agent list -u; {lab} start mn0
  {lab} down
";

/// The command as the user types it.
fn typed() -> String {
    std::env::var(COMMAND).unwrap_or_else(|_| "cxloe-bench lab".into())
}

fn help() -> String {
    HELP.replace("{lab}", &typed())
}

#[derive(Parser)]
#[command(override_help = help())]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Name of the lab, where there are several
    #[arg(short, long, global = true, default_value = "lab")]
    name: String,
    /// Folder that contains a folder for each lab
    #[arg(long, env = "CXLOE_LAB_DIR", hide = true, global = true)]
    root: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Make the lab, or start those of its daemons that do not run
    #[command(override_help = help())]
    Up(UpArgs),
    /// Show running daemons and regions
    #[command(override_help = help())]
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a command on a node
    #[command(override_help = help())]
    Exec {
        /// mn0, cn1, …, or switch; then the command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "NODE COMMAND")]
        words: Vec<OsString>,
    },
    /// Show the log of a daemon
    #[command(override_help = help())]
    Log {
        /// Name of the node, such as mn0, or gmm for the manager
        node: String,
        /// Print new lines of the log until Ctrl-C
        #[arg(short, long)]
        follow: bool,
    },
    /// Start daemons
    #[command(override_help = help())]
    Start(Nodes),
    /// End daemons in order
    #[command(override_help = help())]
    Stop(Nodes),
    /// End daemons as a crash would
    #[command(override_help = help())]
    Kill(Nodes),
    /// Put nodes' cables into the switch
    #[command(override_help = help())]
    Plug(Nodes),
    /// Take nodes' cables out of the switch
    #[command(override_help = help())]
    Unplug(Nodes),
    /// End everything
    #[command(override_help = help())]
    Down,
    /// Run the process that holds a lab (used internally)
    #[command(hide = true)]
    Keep {
        /// Folder with the lab's state
        folder: PathBuf,
    },
}

#[derive(clap::Args)]
struct Nodes {
    /// Names of the nodes, such as mn0 or cn1
    nodes: Vec<String>,
}

#[derive(clap::Args)]
struct UpArgs {
    /// Number of memory nodes
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = nodes)]
    memory_nodes: usize,
    /// Number of compute nodes
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = nodes)]
    compute_nodes: usize,
    /// Size of the memory that each memory node lends
    #[arg(short, long, value_name = "SIZE", default_value = "64M")]
    pool: String,
    /// Size of the region that each compute node gets; 0: no regions
    #[arg(short, long, value_name = "SIZE", default_value = "16M")]
    region: String,
    /// Memory nodes keep their pools in files, which outlive a restart of the daemon
    #[arg(long)]
    kept: bool,
    /// MTU of all interfaces, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Kind of link that the daemons use
    #[arg(long, value_name = "KIND", default_value = "packet")]
    link: String,
    /// Wait style of idle daemons
    #[arg(long, value_name = "STYLE", default_value = "adaptive")]
    wait: String,
    /// Folder that contains the daemons' programs
    #[arg(long, value_name = "FOLDER")]
    bin: Option<PathBuf>,
}

fn nodes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= NAMED_NODES_MAX);
    count.ok_or_else(|| format!("a number up to {NAMED_NODES_MAX} is needed"))
}

/// Runs the command and prints its errors, each line prefixed with `lab: `.
pub(super) fn run(args: Args) -> ExitCode {
    let Err(error) = work(args) else { return ExitCode::SUCCESS };
    for line in error.message.lines() {
        to_stderr!("lab: {line}");
    }
    ExitCode::from(error.code)
}

fn work(args: Args) -> Result<(), NamedError> {
    if let Command::Keep { folder } = &args.command {
        return keep(folder);
    }
    let usual = || PathBuf::from(format!("/tmp/cxloe-lab-{}", nix::unistd::geteuid()));
    let root = args.root.unwrap_or_else(usual);
    let lab = NamedLab::new(&args.name, &root, &typed())?;
    let print_line = |line: &str| cxloe_daemon::command_line::output::print_line(format_args!("{line}"));
    match args.command {
        Command::Up(up) => {
            let interrupt = Interrupt::install(GRACE)?;
            let settings = LabSettings {
                memory_nodes: up.memory_nodes,
                compute_nodes: up.compute_nodes,
                pool: up.pool,
                kept: up.kept,
                region: up.region,
                mtu: up.mtu,
                link: up.link,
                wait: up.wait,
                programs: up.bin.unwrap_or_default(),
            };
            lab.up(settings, &["lab", "keep"], &interrupt, &mut |line| print_line(&line))?;
        }
        Command::Status { json: true } => print_line(&lab.status_json()?),
        Command::Status { json: false } => print_line(lab.status()?.trim_end()),
        Command::Exec { words } => return Err(exec(&lab, &words)),
        Command::Log { node, follow } => return Err(lab.show_log(&node, follow)),
        Command::Start(Nodes { nodes }) => lab.change(Change::Start, &nodes)?,
        Command::Stop(Nodes { nodes }) => lab.change(Change::Stop, &nodes)?,
        Command::Kill(Nodes { nodes }) => lab.change(Change::Kill, &nodes)?,
        Command::Plug(Nodes { nodes }) => lab.change(Change::Plug, &nodes)?,
        Command::Unplug(Nodes { nodes }) => lab.change(Change::Unplug, &nodes)?,
        Command::Down => print_line(if lab.down() { "The lab is down." } else { "No lab is up." }),
        Command::Keep { .. } => {}
    }
    Ok(())
}

fn exec(lab: &NamedLab, words: &[OsString]) -> NamedError {
    let Some(node) = words.first().map(|node| node.to_string_lossy()) else {
        return NamedError {
            code: 2,
            message: format!("exec needs a node: {} exec cn0 -- COMMAND", typed()),
        };
    };
    let command = words.get(1..).unwrap_or_default();
    lab.exec(&node, command.strip_prefix(&["--".into()]).unwrap_or(command))
}
