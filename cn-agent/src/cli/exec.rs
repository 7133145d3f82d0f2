//! `cn-agent exec` runs a program whose heap and large mappings are remote memory; `cn-agent set-local`
//! changes how much of that memory may be resident.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cxloe_client::client;
use cxloe_client::mapping::Owner;
use cxloe_client::message::{MapRequest, PagingView};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_daemon::command_line::{Exit, Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_exec::children::Children;
use cxloe_exec::executions::Executions;
use cxloe_exec::local_memory::LocalMemory;
use cxloe_exec::program::ProgramError;
use cxloe_exec::questions::GatePolicy;
use cxloe_exec::session::{self, ProgramOutcome, Session};
use cxloe_exec::{library, memory_limit, program};
use cxloe_fabric::model::{ByteSize, Name, human_bytes};

use super::SocketArgs;
use super::failure::of_agent;
use super::paging_args::{PagingArgs, lease};

#[derive(Debug, Args)]
#[command(after_help = "\
malloc, and private anonymous mappings of 64 KiB and more, use remote memory, in the program and in all that
it starts. Stacks, files and other mappings are local memory. All processes together have SIZE bytes of
remote memory, of which at most LOCAL are resident. fork works as usual.

A program that is linked statically or against musl, or is set-user-ID, is refused. One that the program
starts runs with local memory and is named at the end, or is refused with --require-remote. Remote pages
cannot be locked (mlock fails with EPERM). gdb and /proc/PID/mem get an I/O error for pages that are not
resident, and core dumps have zeros there.

Addresses that are reserved first and committed later (Java's heap) are remote if they fit SIZE. --stats
prints how much memory was local; if it was much, a line at the end does so without --stats. If data is
lost, the program gets SIGBUS, and its last line on standard error names the region and the memory node.

Direct I/O (O_DIRECT, but for files that are only written), io_uring, AF_XDP, memory given to devices (RDMA,
VFIO, SG_IO) and process_vm_writev write to pages without using the page table, and would lose data: they
fail, and this command reports each kind once. With --allow-direct-io they work, and pages stay in this
machine once they are touched.

If the agent ends, programs wait for its successor, and end with exit code 75 if there is none within
--wait. If this command is killed, the program gets SIGTERM. Signals are passed to the program, and this
command ends with the program's exit code, or 128 plus the signal's number.

Examples:
  cn-agent exec --size 32G --local 4G -- redis-server --save ''
  cn-agent exec --size 1G --local 64M --stats -- sort -S 1G huge.txt
  cn-agent set-local 4711 8G              limit of that process and its relatives")]
pub struct ExecArgs {
    /// Bytes of remote memory: a region of this size is created for the program and destroyed after it
    #[arg(long, value_name = "SIZE", required_unless_present = "region", conflicts_with = "region")]
    size: Option<ByteSize>,
    /// Use this attached region instead of a new one; its content is overwritten
    #[arg(long, value_name = "NAME")]
    region: Option<Name>,
    #[command(flatten)]
    paging: PagingArgs,
    /// Let the program use direct I/O and io_uring; all memory that it touches then stays in this machine,
    /// regardless of --local
    #[arg(long)]
    allow_direct_io: bool,
    /// Refuse to execute programs that would have local memory only (EPERM), and fail if there was one
    #[arg(long)]
    require_remote: bool,
    /// Print paging counters on standard error at the end: as text, or with =json
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    stats: Option<Form>,
    /// The library to load into programs [default: beside this program, or in ../lib/cxloe]
    #[arg(long, value_name = "PATH", env = "CXLOE_PRELOAD")]
    preload: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    Text,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cn-agent set-local 4711 8G              the program whose process this is
  cn-agent set-local 9234115487237 512M   a space, as `cn-agent paging` shows it")]
pub struct SetLocalArgs {
    /// A process that has remote memory, or the number of its space
    #[arg(value_name = "PID|SPACE")]
    which: u64,
    /// Bytes that may be resident from now on
    #[arg(value_name = "SIZE")]
    local: ByteSize,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Runs a program with remote memory. Exits with the program's exit code if that is not 0.
///
/// # Errors
/// When the program cannot be run, or its temporary region cannot be destroyed.
pub fn exec(mut args: ExecArgs) -> Result<(), Failure> {
    args.paging.keep_below_limits();
    let args = &args;
    let name = args.command.first().ok_or_else(|| Failure::usage("no program is named"))?;
    let path = std::env::var_os("PATH");
    let program = program::find(name, path.as_deref()).map_err(of_program)?;
    let library = match &args.preload {
        Some(path) => path.canonicalize().map_err(|error| {
            Failure::new(Exit::NotFound, format!("the library {} is not there: {error}", path.display()))
        })?,
        None => library::find(&std::env::current_exe().map_err(Failure::failed)?)
            .map_err(|error| Failure::new(Exit::NotFound, error))?,
    };
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b": ".contains(byte)) {
        let why = "the dynamic linker takes no library whose path has a colon or a space";
        return Err(Failure::usage(format!("{}: {why}; name another with --preload", library.display())));
    }
    let socket = args.socket.path();
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let lease = lease(&socket, args.region.as_ref(), args.size)?;
    if let Some(bytes) = memory_limit::committable().filter(|bytes| *bytes < lease.bytes()) {
        to_stderr!(
            "cn-agent: vm.overcommit_memory is 2, and {} more may be committed on this machine: of {} of remote memory \
             the program gets no more than that; set it to 0 or 1, or raise vm.overcommit_ratio",
            human_bytes(bytes),
            human_bytes(lease.bytes())
        );
    }
    let grower = lease.grower();
    let request = MapRequest {
        stay: args.allow_direct_io,
        keeps: true,
        ..args.paging.map(lease.name(), MappingKind::Private, args.region.is_none())
    };
    let (children, keeper) = Children::new().map_err(Failure::failed)?;
    let owner = Owner::map_keeping(&socket, request, keeper).map_err(of_agent)?;
    let settings = session::ProgramSettings {
        library,
        agent: socket,
        bytes: lease.bytes(),
        wait: args.paging.wait(),
        policy: GatePolicy { direct: args.allow_direct_io, require_remote: args.require_remote },
    };
    let session = Session::start(program, &args.command, owner, &settings).map_err(Failure::failed)?;
    let session = session.keeping(children).growing(grower, args.paging.lost_wait());
    let ProgramOutcome { status, view, local_memory, executions, owner } =
        session.supervise().map_err(Failure::failed)?;
    if let Some(local_memory) = local_memory.filter(LocalMemory::exceeds_report_threshold) {
        to_stderr!("cn-agent: {}", in_this_machine(&local_memory));
    }
    for (program, count) in executions.programs() {
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        to_stderr!("cn-agent: local: executed {program}{times}");
    }
    if executions.others() > 0 {
        to_stderr!("cn-agent: local: and {} executions of further programs", executions.others());
    }
    if status.core_dumped() {
        to_stderr!(
            "cn-agent: pages that were not resident in this machine are zeros in the core dump; give --local the bytes of \
             --size to have all of them in it"
        );
    }
    let refused = args.require_remote && executions.programs().next().is_some();
    if let Some(form) = args.stats {
        print_summary(view, local_memory, &executions, form)?;
    }
    lease.end(owner);
    match session::exit_code(status) {
        0 if refused => Err(Failure::new(
            Exit::Refused,
            "programs were not executed, because they would have had memory of this machine alone (--require-remote)",
        )),
        0 => Ok(()),
        // Exits without running destructors: no remaining value needs one.
        code => std::process::exit(code),
    }
}

/// Changes the limit of resident bytes of a running program.
///
/// # Errors
/// When there is no such process or space, or the agent refuses.
pub fn set_local(args: &SetLocalArgs) -> Result<(), Failure> {
    let socket = args.socket.path();
    let spaces = client::paging(&socket, None).map_err(of_agent)?;
    let of_process =
        |view: &PagingView| view.members.iter().any(|member| u64::from(member.pid) == args.which);
    let space = spaces
        .iter()
        .find(|view| of_process(view))
        .or_else(|| spaces.iter().find(|view| view.space == args.which))
        .ok_or_else(|| {
            let which = args.which;
            let message = format!(
                "no process {which} has remote memory, nor is there such a space; see `cn-agent paging`"
            );
            Failure::new(Exit::NotFound, message)
        })?;
    client::set_limit(&socket, space.space, args.local.0).map_err(of_agent)
}

fn in_this_machine(local_memory: &LocalMemory) -> String {
    let LocalMemory { local_bytes, memory_bytes } = *local_memory;
    format!(
        "local: {} of {} of the program's memory stayed in this machine; what is larger than --size allows, has a fixed \
         address or huge pages, or is mapped past the C library cannot be remote: try a larger --size",
        human_bytes(local_bytes),
        human_bytes(memory_bytes)
    )
}

fn print_summary(
    view: Option<PagingView>,
    local_memory: Option<LocalMemory>,
    executions: &Executions,
    form: Form,
) -> Result<(), Failure> {
    let Some(view) = view else {
        to_stderr!("cn-agent: the agent could not say how paging went");
        return Ok(());
    };
    match form {
        Form::Json => {
            let mut value = output::value(view)?;
            value["stayed"] = output::value(local_memory)?;
            value["local_programs"] =
                output::value(executions.programs().map(|(program, _)| program).collect::<Vec<_>>())?;
            to_stderr!("{value:#}");
        }
        Form::Text => {
            let local_memory =
                local_memory.map_or_else(String::new, |LocalMemory { local_bytes, memory_bytes }| {
                    format!("local: {} of {}\n", human_bytes(local_bytes), human_bytes(memory_bytes))
                });
            to_stderr!("{}{local_memory}", in_words(&view));
        }
    }
    Ok(())
}

fn in_words(view: &PagingView) -> String {
    let PagingView { counters: count, bytes, limit, .. } = view;
    let mut text =
        format!("remote memory: {}, at most {} resident\n", human_bytes(*bytes), human_bytes(*limit));
    let lines: [(&str, u64); 15] = [
        ("faults", count.faults),
        ("  of pages never written", count.zero_fills),
        ("  served from what was fetched ahead", count.held_hits),
        ("  served from what had just left", count.second_chances),
        ("first writes to clean pages", count.write_faults),
        ("pages fetched on demand", count.fetched),
        ("pages fetched ahead", count.prefetched),
        ("pages copied from a process of a fork", count.copied),
        ("pages evicted", count.evicted),
        ("  and faulted again soon after", count.refaulted),
        ("pages written back", count.written_back),
        ("  lines of them", count.lines_written_back),
        ("pages that another process had sent", count.shared),
        ("pages discarded by the program", count.discarded),
        ("forks", count.forks),
    ];
    for (what, number) in lines {
        let _ = writeln!(text, "  {what:<38} {number:>12}");
    }
    text
}

/// Converts the error of a program that cannot be served to a message and an exit code.
pub fn of_program(error: ProgramError) -> Failure {
    let exit = match &error {
        ProgramError::NotFound(_) => Exit::NotFound,
        ProgramError::Unusable { .. } | ProgramError::Endless(_) => Exit::Failed,
        ProgramError::Static(_)
        | ProgramError::Musl { .. }
        | ProgramError::Sanitized { .. }
        | ProgramError::Foreign { .. }
        | ProgramError::OtherRights(_) => Exit::Refused,
    };
    Failure::new(exit, error)
}
