//! `cn-agent vm`: a virtual machine whose memory is remote. It starts here, or moves here from another
//! compute node, and may later move to another one.

mod arrival;
mod control;
mod departure;
mod manager;
mod serve_uffd;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use cxloe_client::mapping::Owner;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::PAGE_BYTES;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::to_stderr;
use cxloe_exec::session::{self, Session};
use cxloe_exec::{library, program};
use cxloe_fabric::model::{ByteSize, Name};
use cxloe_vmm::launch::{self, LIBRARY, LaunchError};
use cxloe_vmm::migration::machine::MovableMachine;
use cxloe_vmm::migration::qmp::QmpError;
use cxloe_vmm::migration::sender::MoveAddress;

use super::SocketArgs;
use super::exec::of_program;
use super::failure::of_agent;
use super::paging_args::{PagingArgs, lease};
use control::Control;
pub use serve_uffd::{ServeUffdArgs, serve_uffd};

/// Arguments of `cn-agent vm`: those of a machine, or a subcommand.
#[derive(Debug)]
pub enum VmArgs {
    Machine(Box<MachineArgs>),
    Action(VmAction),
}

#[derive(Debug, Subcommand)]
pub enum VmAction {
    /// Move a running machine to another compute node, without copying its memory
    Move(departure::MoveArgs),
}

// Written by hand, because clap cannot derive an optional group with arguments that are required within it.
impl Args for VmArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = VmAction::augment_subcommands(MachineArgs::augment_args(command));
        command.subcommand_required(false).args_conflicts_with_subcommands(true).subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for VmArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<VmArgs, clap::Error> {
        if matches.subcommand_name().is_some() {
            return VmAction::from_arg_matches(matches).map(VmArgs::Action);
        }
        MachineArgs::from_arg_matches(matches).map(|machine| VmArgs::Machine(Box::new(machine)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
In the command, @memory@ stands for the path of a file that is the region's memory, and @size@ for its
bytes. The monitor has to map it shared and to be linked dynamically. Pages that it touches in advance are
evicted again beyond --local.

If the agent ends, the machine's vCPUs wait for its successor; if there is none within --wait, the monitor
ends with exit code 75. If this command is killed, the monitor gets SIGTERM. Signals are passed to the
monitor, and this command ends with its exit code.

A QEMU with a --region can move to another compute node while its guest runs: start this command there with
--incoming and the same QEMU command, then give the order here with `cn-agent vm move`. The disks have to be
reachable from both. `deploy/vm/README.md` describes it.

Examples:
  All memory of a machine, 2 GiB of its 16 here at a time:
    cn-agent vm --size 16G --local 2G -- qemu-system-x86_64 -machine q35,memory-backend=ram -m 16G \\
      -object memory-backend-file,id=ram,share=on,prealloc=off,mem-path=@memory@,size=@size@ …

  A second NUMA node without processors, beside 4 GiB of local memory:
    cn-agent vm --size 12G --local 1G -- qemu-system-x86_64 -m 16G -smp 4 \\
      -object memory-backend-ram,id=near,size=4G -numa node,nodeid=0,cpus=0-3,memdev=near \\
      -object memory-backend-file,id=far,share=on,prealloc=off,mem-path=@memory@,size=@size@ \\
      -numa node,nodeid=1,memdev=far …

  A machine that comes from another compute node, where `cn-agent vm --region web …` runs it:
    cn-agent vm --region web --local 2G --incoming 0.0.0.0:7450 --ticket web.ticket -- qemu-system-x86_64 …")]
pub struct MachineArgs {
    /// Bytes of remote memory: a region of this size is created for the machine and destroyed after it
    #[arg(long, value_name = "SIZE", required_unless_present = "region", conflicts_with = "region")]
    size: Option<ByteSize>,
    /// Use this attached region instead of a new one
    #[arg(long, value_name = "NAME")]
    region: Option<Name>,
    /// Start with the content of the region; otherwise its memory is zeros at the start
    #[arg(long, requires = "region")]
    keep: bool,
    #[command(flatten)]
    paging: PagingArgs,
    /// Wait at HOST:PORT or unix:PATH for the machine that has this region at another compute node
    #[arg(long, value_name = "ADDRESS", requires = "region", requires = "ticket", conflicts_with = "keep")]
    incoming: Option<MoveAddress>,
    /// File with the secret that the machine's source needs as well; created if it does not exist
    #[arg(long, value_name = "FILE", requires = "incoming")]
    ticket: Option<PathBuf>,
    /// Socket for `cn-agent vm move` [default: vm-REGION.sock in the folder of the agent's default socket]
    #[arg(long, value_name = "PATH", requires = "region")]
    control: Option<PathBuf>,
    /// The library to load into the monitor [default: beside this program, or in ../lib/cxloe]
    #[arg(long, value_name = "PATH", env = "CXLOE_VM_PRELOAD")]
    preload: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
    /// The virtual machine monitor and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs a virtual machine monitor with remote memory, or moves a machine. Exits with the monitor's exit code
/// if that is not 0.
///
/// # Errors
/// When the monitor cannot be run, the machine cannot be moved, or the temporary region cannot be destroyed.
pub fn vm(args: VmArgs) -> Result<(), Failure> {
    match args {
        VmArgs::Action(VmAction::Move(order)) => departure::run(&order),
        VmArgs::Machine(machine) => run(&machine),
    }
}

fn run(args: &MachineArgs) -> Result<(), Failure> {
    let name = args.command.first().ok_or_else(|| Failure::usage("no command is named"))?;
    // Fails if the monitor is a program that cannot load the library: it would run without remote memory, and report no
    // error.
    program::find(name, std::env::var_os("PATH").as_deref()).map_err(of_program)?;
    let not_found = |error: &dyn ToString| Failure::new(Exit::NotFound, error.to_string());
    let library = match &args.preload {
        Some(path) => path
            .canonicalize()
            .map_err(|error| not_found(&format!("the library {} is not there: {error}", path.display())))?,
        None => library::find_called(&std::env::current_exe().map_err(Failure::failed)?, LIBRARY)
            .map_err(|error| not_found(&error))?,
    };
    let socket = args.socket.path();
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    if let Some(address) = &args.incoming {
        return arrival::run(args, address, &library, &socket);
    }
    let lease = lease(&socket, args.region.as_ref(), args.size)?;
    let request = args.paging.map(lease.name(), MappingKind::Shared, !args.keep);
    let owner = Owner::map(&socket, request).map_err(of_agent)?;
    let started = Started::spawn(args, &library, &socket, owner, false)?;
    let control = started.machine.map(|machine| Control::start(args, machine));
    let over = started.session.supervise().map_err(Failure::failed)?;
    if let Some(control) = control {
        control.finish();
    }
    lease.end(over.owner);
    if over.view.is_some_and(|view| view.counters.faults == 0) {
        to_stderr!(
            "cn-agent: local: nothing that ran used the region's memory: it has to map @memory@ shared, in a process that the \
             library is loaded into"
        );
    }
    exit_as(over.status)
}

/// Returns if the monitor has ended with exit code 0; otherwise ends this process with the monitor's exit
/// code.
fn exit_as(status: ExitStatus) -> Result<(), Failure> {
    match session::exit_code(status) {
        0 => Ok(()),
        // Exits without running destructors: no remaining value needs one.
        code => std::process::exit(code),
    }
}

/// Connects to the QEMU of a machine. Blocks until QEMU has started.
type Connect = Box<dyn FnOnce() -> Result<Arc<MovableMachine>, QmpError> + Send>;

struct Started {
    session: Session,
    /// Connects to QEMU, if the machine can move; `None` for other monitors and for temporary regions.
    machine: Option<Connect>,
}

impl Started {
    /// Starts the monitor with the memory of `owner`.
    fn spawn(
        args: &MachineArgs,
        library: &Path,
        agent: &Path,
        owner: Owner,
        incoming: bool,
    ) -> Result<Started, Failure> {
        let bytes = u64::from(owner.pages()) * PAGE_BYTES as u64;
        let movable =
            args.region.as_ref().filter(|_| args.command.first().is_some_and(|name| launch::is_qemu(name)));
        let sockets = movable.map(|_| UnixStream::pair()).transpose().map_err(Failure::failed)?;
        let qmp = sockets.as_ref().map(|(_, of_qemu)| of_qemu.as_fd());
        let settings = launch::Settings { library, agent, bytes, wait: args.paging.wait(), qmp, incoming };
        let command = launch::command(&args.command, &owner, &settings).map_err(|error| match error {
            LaunchError::NoMemory => Failure::usage(error),
            LaunchError::NoFile | LaunchError::NoKernelFaults(_) | LaunchError::System(_) => {
                Failure::failed(error)
            }
        })?;
        let monitor = PathBuf::from(command.get_program());
        let space = owner.space();
        let session = Session::spawn(command, monitor, owner, args.paging.wait()).map_err(Failure::failed)?;
        let machine = movable.zip(sockets).map(|(region, (qmp, _))| {
            let (agent, region) = (agent.to_owned(), region.to_string());
            let connect = move || MovableMachine::new(qmp, agent, space, region, bytes).map(Arc::new);
            Box::new(connect) as Connect
        });
        Ok(Started { session, machine })
    }
}
