//! `cn-agent serve-uffd`: serves the memory of a virtual machine whose monitor hands over a userfaultfd.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Args;
use cxloe_client::client::{self, Client};
use cxloe_client::defaults::default_socket;
use cxloe_client::mapping::Owner;
use cxloe_client::message::MapRequest;
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::PAGE_BYTES;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::{Bound, LogFormat, Shutdown, Span, log};
use cxloe_exec::session::has_hung_up;
use cxloe_fabric::model::Name;
use cxloe_member::socket::SocketPath;
use cxloe_member::wire::Pages;
use cxloe_vmm::guard::Guard;
use cxloe_vmm::handover::{self, Machine};
use cxloe_vmm::served_memory::{ExitReason, MemorySource, OnExit, ServedMemory};
use cxloe_vmm::snapshot::{self, LoadError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{error, info, warn};

use crate::cli::failure::{of_agent_by, of_operation_by};

/// Interval of checks for a signal while `serve-uffd` waits for a machine, in milliseconds.
const LOOK_MS: u8 = 100;
/// Exit code when a machine had to be killed: that of a temporary failure in `sysexits.h`.
const MACHINE_ENDED: i32 = 75;
/// Option by which `serve-uffd` names the agent's socket, since its `--socket` is the socket for the monitor.
const AGENT: &str = "--agent";

#[derive(Debug, Args)]
#[command(after_help = "\
Serves one machine, and ends when it ends. The region is the snapshot: pages are read from it when they are touched, and
nothing is written back. Pages that a balloon returns read as zeros afterwards.

If the agent ends, the machine waits for its successor. If there is none within --wait, if memory is lost,
or if this command ends before the machine, the monitor is ended by SIGKILL, because its vCPUs would wait
for ever: exit code 75.

Example:
  cn-agent serve-uffd --region snapshot --socket /run/cxloe/vm.uffd --load mem.file &
  curl --unix-socket firecracker.sock -X PUT http://localhost/snapshot/load -d '{\"snapshot_path\":\"vm.state\",
    \"mem_backend\":{\"backend_type\":\"Uffd\",\"backend_path\":\"/run/cxloe/vm.uffd\"},\"resume_vm\":true}'")]
pub struct ServeUffdArgs {
    /// The region that holds the machine's memory
    #[arg(short, long, value_name = "NAME")]
    region: Name,
    /// The Unix socket that the monitor connects to; it is open to its owner only (`chown` changes that)
    #[arg(short, long, value_name = "PATH")]
    socket: PathBuf,
    /// First write a snapshot's memory file to the region
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Longest wait of the machine for a successor if the agent ends
    #[arg(long, default_value = "30s", value_name = "TIME")]
    wait: Span,
    /// Longest outage of memory nodes before the memory counts as lost
    #[arg(long, default_value = "30s", value_name = "TIME")]
    lost_wait: Span,
    /// The agent's socket [default: /run/cxloe/cn-agent.sock as root, else below $XDG_RUNTIME_DIR]
    #[arg(long, env = "CXLOE_AGENT", value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Log filter: error, warn, info, debug, trace, or per part as in cxloe_cn=debug
    #[arg(long, default_value = log::FILTER_DEFAULT, value_name = "FILTER")]
    log: String,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
}

/// Serves the memory of one machine, whose monitor passes a userfaultfd over the socket.
///
/// # Errors
/// When the region is not attached, the socket cannot be bound, or the memory that is passed cannot be served.
pub fn serve_uffd(args: &ServeUffdArgs) -> Result<(), Failure> {
    let _log = log::start(&args.log, args.log_format);
    let ending = Shutdown::watch().map_err(Failure::failed)?;
    let stop = AtomicBool::new(false);
    let done = ending.worker();
    let outcome = thread::scope(|scope| {
        let body = || {
            let outcome = handle(args, &stop);
            done();
            outcome
        };
        let thread = thread::Builder::new().name("uffd".into()).spawn_scoped(scope, body);
        let thread = thread.map_err(Failure::failed)?;
        ending.wait();
        stop.store(true, Ordering::Relaxed);
        thread.join().map_err(|_| Failure::failed("the thread that serves the machine has panicked"))?
    });
    match outcome? {
        MachineEnd::Ended => Ok(()),
        // Exits without running destructors: no remaining value needs one.
        MachineEnd::Killed => std::process::exit(MACHINE_ENDED),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MachineEnd {
    /// The machine ended by itself, or a signal arrived before any machine connected.
    Ended,
    /// The machine was killed, because its memory could no longer be served.
    Killed,
}

fn handle(args: &ServeUffdArgs, stop: &AtomicBool) -> Result<MachineEnd, Failure> {
    let agent = args.agent.clone().unwrap_or_else(default_socket);
    let agent = std::path::absolute(&agent).unwrap_or(agent);
    let path = SocketPath::new(agent.as_os_str().as_encoded_bytes())
        .ok_or_else(|| Failure::usage("the path of the agent's socket has more than 107 bytes"))?;
    if let Some(file) = &args.load {
        load(file, &agent, args.region.as_str())?;
    }
    // There is no limit, so no page is evicted.
    let request = MapRequest::new(args.region.to_string(), MappingKind::Foreign, u64::MAX, args.lost_wait.0);
    let mut owner = Owner::map(&agent, request).map_err(|e| of_agent_by(AGENT, e))?;
    let room = u64::from(owner.pages()) * PAGE_BYTES as u64;
    let socket =
        Bound::bind(&args.socket, 0o600, "handler of a machine's memory").map_err(Failure::failed)?;
    info!(region = %args.region, bytes = room, socket = %args.socket.display(), "waiting for a machine");
    let Some(machine) = next_machine(&socket, room, stop) else { return Ok(MachineEnd::Ended) };
    // Only one machine is served, so no other monitor may connect.
    drop(socket);
    // The guard is started before this process connects to the agent: otherwise the guard's process would inherit the
    // connection and keep it open.
    let guard = Guard::post(&machine.process).map_err(Failure::failed)?;
    let source = MemorySource { agent: path, space: owner.space(), wait: args.wait.0 };
    let exit_reason = Arc::new(Mutex::new(None));
    let on_exit: OnExit = {
        let exit_reason = Arc::clone(&exit_reason);
        Arc::new(move |reason| {
            first(&exit_reason).get_or_insert(reason);
        })
    };
    let pieces = match ServedMemory::serve(&machine, &source, &on_exit) {
        Ok(pieces) => pieces,
        Err(error) => {
            handover::kill(&machine.process);
            return Err(Failure::failed(format!("{error}; the virtual machine is ended")));
        }
    };
    info!(pid = machine.pid, pieces = machine.pieces.len(), "serving a machine");
    let end = watch(&machine, &mut owner, &exit_reason, stop);
    drop(pieces);
    drop(guard);
    Ok(end)
}

/// Locks the reason of the machine's end. Only the first reason counts, and it is set in a single step, so a poisoned
/// lock is harmless.
fn first(exit_reason: &Mutex<Option<ExitReason>>) -> MutexGuard<'_, Option<ExitReason>> {
    exit_reason.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the machine ends within one interval of checks.
fn ends(machine: &Machine) -> bool {
    let mut set = [PollFd::new(machine.process.as_fd(), PollFlags::POLLIN)];
    poll(&mut set, PollTimeout::from(LOOK_MS)).is_ok_and(|ready| ready > 0)
}

/// Waits until the machine ends, or kills it if its memory can no longer be served.
fn watch(
    machine: &Machine,
    owner: &mut Owner,
    exit_reason: &Mutex<Option<ExitReason>>,
    stop: &AtomicBool,
) -> MachineEnd {
    loop {
        let over = ends(machine);
        if over {
            // A serving thread may be about to report why the machine has ended, so this waits for the report.
            thread::sleep(Duration::from_millis(LOOK_MS.into()));
        }
        match first(exit_reason).take() {
            Some(ExitReason::Lost(Pages { first, count })) => {
                error!(first, count, "pages of the machine's memory are lost; the machine is ended")
            }
            // Not an error: when a process ends, its memory is gone a moment before the process, and the agent then
            // drops the machine.
            Some(ExitReason::Abandoned(_)) if over || ends(machine) => {
                info!(pid = machine.pid, "the machine has ended");
                return MachineEnd::Ended;
            }
            Some(ExitReason::Abandoned(error)) => {
                error!(%error, "the machine's memory is no longer served; the machine is ended");
            }
            None if over => {
                info!(pid = machine.pid, "the machine has ended");
                return MachineEnd::Ended;
            }
            None if stop.load(Ordering::Relaxed) => warn!("asked to stop; the machine is ended"),
            None => {
                // While this connection is open, no other owner can claim the region. If the agent was restarted, a
                // connection to the new agent is opened; an error is ignored, because the next round tries again.
                if has_hung_up(owner.as_fd()) {
                    let _ = owner.resume();
                }
                continue;
            }
        }
        handover::kill(&machine.process);
        return MachineEnd::Killed;
    }
}

/// Waits for the first machine whose monitor passes valid memory; `None` after a signal.
fn next_machine(socket: &Bound, room: u64, stop: &AtomicBool) -> Option<Machine> {
    while !stop.load(Ordering::Relaxed) {
        let mut set = [PollFd::new(socket.listener().as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut set, PollTimeout::from(LOOK_MS));
        let machine = match socket.listener().accept() {
            Ok((stream, _)) if socket.admits(&stream) => handover::receive(stream, room),
            Ok(_) => {
                warn!("a client was refused: it runs as another user than the one that this handler serves");
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => Err(error.into()),
        };
        match machine {
            Ok(machine) => return Some(machine),
            Err(error) => {
                warn!(%error, "no machine was handed over");
                thread::sleep(Duration::from_millis(LOOK_MS.into()));
            }
        }
    }
    None
}

/// Writes the memory file of a snapshot to the region `name`.
fn load(file: &Path, agent: &Path, name: &str) -> Result<(), Failure> {
    let regions = client::regions(agent).map_err(|e| of_agent_by(AGENT, e))?;
    let region = regions.into_iter().find(|region| region.region == name).ok_or_else(|| {
        let text = format!("no region {name} is attached; `cn-agent list` shows those that are");
        Failure::new(Exit::NotFound, text)
    })?;
    let mut port = Client::connect(agent).map_err(|e| of_agent_by(AGENT, e))?;
    let mut shown = 0;
    let progress = |done: u64, all: u64| {
        let percent = done * 100 / all.max(1);
        if percent >= shown + 10 {
            shown = percent;
            info!(percent, bytes = done, "loading");
        }
    };
    let room = region.size.saturating_sub(region.beyond_window);
    match snapshot::load(file, &mut port, region.hpa, room, progress) {
        Ok(bytes) => {
            info!(bytes, file = %file.display(), "loaded");
            Ok(())
        }
        Err(LoadError::Agent(error)) => Err(of_operation_by(AGENT, error, agent)),
        Err(error) => Err(Failure::failed(error)),
    }
}
