//! A program under supervision: from its start to the end of its last process.
//!
//! Signals sent to the supervisor are passed on to the program. Signals of a terminal reach both processes by
//! themselves; the supervisor ignores them, and ends when the program does.

#![expect(unsafe_code, reason = "pre_exec runs code in the child after the fork")]

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getppid};

use super::children::Children;
use super::executions::{self, Executions};
use super::gate::{self, Gate, PendingGate};
use super::lease::Grower;
use super::local_memory::{LocalMemory, LocalMemorySampler};
use super::questions::GatePolicy;
use super::trapped_calls::WindowPlace;
use cxloe_client::client::ClientError;
use cxloe_client::mapping::{NoKernelFaults, Owner};
use cxloe_client::message::PagingView;
use cxloe_cn_core::mapped::window_bytes;

const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];
/// Number of `/..` that lead from a program's folder to the root. Those beyond the root have no effect.
const FOLDERS_MAX: usize = 40;
/// Bytes that the preloaded library adds to a process's window (its addresses for remote memory): for the block with
/// the probe page, which names the process's view, and for rounding.
const WINDOW_ADDITION: u64 = 1 << 20;
/// Interval of attempts to reach the agent's successor, and of checks of background processes, in milliseconds.
const PAUSE_MS: u16 = 100;
/// Longest interval of checks whether the region is full. The interval is 1/`FULL_PAUSE_PART` of the time
/// that processes wait for room, at least `FULL_PAUSE_MIN`.
const FULL_PAUSE: Duration = Duration::from_millis(500);
const FULL_PAUSE_PART: u32 = 8;
const FULL_PAUSE_MIN: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{} could not be started: {source}", .path.display())]
    Start { path: PathBuf, source: io::Error },
    /// The kernel cannot keep direct I/O from the program's memory.
    #[error(
        "this kernel cannot keep direct I/O from a program's memory (seccomp user notification: {0}), and direct I/O \
         loses data there; with --allow-direct-io all memory of the program stays in this machine"
    )]
    NoGate(io::Error),
    /// System calls cannot use buffers in the program's remote memory.
    #[error(transparent)]
    NoKernelFaults(#[from] NoKernelFaults),
    /// A system call failed.
    #[error("the program cannot be supervised: {0}")]
    System(#[from] Errno),
}

#[derive(Debug)]
pub struct ProgramSettings {
    pub library: PathBuf,
    /// Absolute path of the agent's socket.
    pub agent: PathBuf,
    /// Bytes of remote memory that each process of the program can use.
    pub bytes: u64,
    /// Longest wait of processes for the successor of an agent that has ended.
    pub wait: Duration,
    /// System calls that the program may make. With `direct`, all memory of the program stays in this
    /// machine.
    pub policy: GatePolicy,
}

/// A running program, with the state of its supervision.
#[derive(Debug)]
pub struct Session {
    child: Child,
    owner: Owner,
    wait: Duration,
    signals: SignalFd,
    /// Time at which the agent was found to have ended; `None` while it runs.
    away: Option<Instant>,
    /// Whether the search for a successor was given up.
    abandoned: bool,
    local_memory: LocalMemorySampler,
    /// Listener of the program's refused system calls.
    gate: Option<Gate>,
    /// Children of which only the agent has a record.
    children: Option<Children>,
    /// The grower of the region, the interval of its checks, and the time of the next check.
    growing: Option<(Grower, Duration, Instant)>,
}

#[derive(Debug)]
pub struct ProgramOutcome {
    pub status: ExitStatus,
    /// State of the program's remote memory at the end, if the agent answered.
    pub view: Option<PagingView>,
    /// Memory that stayed in this machine, if it could be read.
    pub local_memory: Option<LocalMemory>,
    /// Programs that were executed with memory of this machine alone, as far as they were seen.
    pub executions: Executions,
    /// The connection that owns the program's remote memory.
    pub owner: Owner,
}

/// Signals that are read instead of being delivered, from this thread and those that it starts.
struct BlockedSignals {
    signals: SignalFd,
    /// Signal mask before the signals were blocked, which the program gets.
    before: SigSet,
}

impl BlockedSignals {
    fn block() -> Result<BlockedSignals, SessionError> {
        let mut all: SigSet = PASSED_ON.into_iter().collect();
        all.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&all), Some(&mut before))?;
        let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(BlockedSignals { signals, before })
    }
}

impl Session {
    /// Starts the program with the memory that `owner` holds.
    pub fn start(
        program: PathBuf,
        arguments: &[OsString],
        owner: Owner,
        settings: &ProgramSettings,
    ) -> Result<Session, SessionError> {
        owner.check_kernel_faults()?;
        let name = arguments.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments.iter().skip(1));
        command
            .env(
                "LD_PRELOAD",
                preload(&of_glibc(&settings.library), std::env::var_os("LD_PRELOAD").as_deref()),
            )
            .env("CXLOE_EXEC_AGENT", &settings.agent)
            .env("CXLOE_EXEC_SPACE", owner.space().to_string())
            .env("CXLOE_EXEC_BYTES", settings.bytes.to_string())
            .env("CXLOE_EXEC_WINDOW", window_bytes(settings.bytes).to_string())
            .env("CXLOE_EXEC_WAIT_MS", settings.wait.as_millis().to_string())
            .env("CXLOE_EXEC_SUPERVISOR", getpid().to_string());
        if let Some(device) = owner.device() {
            // All processes of the program inherit the device, through which each process opens its userfaultfd.
            fcntl(device, FcntlArg::F_SETFD(FdFlag::empty()))?;
            command.env("CXLOE_EXEC_DEVICE", device.as_raw_fd().to_string());
        }
        let window = WindowPlace::select(window_bytes(settings.bytes) + WINDOW_ADDITION, rand::random());
        if let Some(window) = window {
            command.env("CXLOE_EXEC_BASE", window.base().to_string());
        }
        let policy = settings.policy;
        // Nothing is refused, so there is no filter: for an unprivileged user it would imply `no_new_privs`,
        // which restricts what the program may execute.
        let has_gate = policy != (GatePolicy { direct: true, require_remote: false });
        if let Some(own) = executions::filters("self") {
            let filters = own + if has_gate { executions::GATE_FILTERS } else { 0 };
            command.env("CXLOE_EXEC_FILTERS", filters.to_string());
        }
        if !has_gate {
            return Self::spawn(command, program, owner, settings.wait);
        }
        gate::available().map_err(SessionError::NoGate)?;
        let opening = PendingGate::before(&mut command, policy, window).map_err(SessionError::NoGate)?;
        // Signals are blocked before the gate starts its thread: a signal that reaches a thread without the block would
        // end this process while the program is already running.
        let signals = BlockedSignals::block()?;
        let (session, gate) = opening
            .open(print_line, || Self::spawn_with(command, program, owner, settings.wait, signals))
            .map_err(SessionError::NoGate)?;
        let mut session = session?;
        if gate.descriptor().is_none() {
            print_line(
                "another supervisor handles this program's system calls; direct I/O and io_uring fail without a message, and \
                 programs that get no remote memory are not named",
            );
        }
        session.gate = Some(gate);
        Ok(session)
    }

    /// Starts `command`, whose environment describes the memory that `owner` holds.
    ///
    /// # Errors
    /// Any [`SessionError`]; errors name the command as `program`.
    pub fn spawn(
        command: Command,
        program: PathBuf,
        owner: Owner,
        wait: Duration,
    ) -> Result<Session, SessionError> {
        Self::spawn_with(command, program, owner, wait, BlockedSignals::block()?)
    }

    fn spawn_with(
        mut command: Command,
        program: PathBuf,
        owner: Owner,
        wait: Duration,
        BlockedSignals { signals, before }: BlockedSignals,
    ) -> Result<Session, SessionError> {
        let supervisor = getpid();
        let prepare = move || {
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
            prctl::set_pdeathsig(Signal::SIGTERM)?;
            // The supervisor may have died before the line above; then the kernel would never send the signal.
            if getppid() == supervisor { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // SAFETY: the closure only makes system calls, on values of this function.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(|source| SessionError::Start { path: program, source })?;
        Ok(Session {
            child,
            owner,
            wait,
            signals,
            away: None,
            abandoned: false,
            local_memory: LocalMemorySampler::new(Instant::now()),
            gate: None,
            children: None,
            growing: None,
        })
    }

    /// Has the region grow when it is full; `wait_limit` is the longest wait of processes for room.
    #[must_use]
    pub fn growing(self, grower: Option<Grower>, wait_limit: Duration) -> Session {
        let pause = (wait_limit / FULL_PAUSE_PART).clamp(FULL_PAUSE_MIN, FULL_PAUSE);
        Session { growing: grower.map(|grower| (grower, pause, Instant::now() + pause)), ..self }
    }

    /// Has the session keep the unjoined children that the agent sends.
    #[must_use]
    pub fn keeping(self, children: Children) -> Session {
        Session { children: Some(children), ..self }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Supervises until the program, and every process with a part of its memory, has ended.
    ///
    /// # Errors
    /// [`SessionError::System`].
    pub fn supervise(mut self) -> Result<ProgramOutcome, SessionError> {
        let mut ended = None;
        loop {
            self.pass_signals_on(ended.is_some())?;
            self.serve_children();
            if let Some(gate) = &mut self.gate {
                gate.answer(print_line);
            }
            if ended.is_none() {
                ended = self.child.try_wait().map_err(|error| {
                    SessionError::System(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
                })?;
            }
            self.follow_agent();
            self.sample();
            self.check_growth();
            let mut polled = false;
            if let Some(status) = ended {
                let view = if self.away.is_none() {
                    self.owner.paging()
                } else {
                    Err(agent_ended_error(&self.owner))
                };
                match view {
                    Ok(view) if view.members.is_empty() => return Ok(self.over(status, Some(view))),
                    Ok(_) => polled = true,
                    Err(_) if self.abandoned => return Ok(self.over(status, None)),
                    Err(ClientError::Refused { .. } | ClientError::Protocol { .. }) => {
                        return Ok(self.over(status, None));
                    }
                    Err(_) => self.away = self.away.or_else(|| Some(Instant::now())),
                }
            }
            self.sleep(polled)?;
        }
    }

    fn over(self, status: ExitStatus, view: Option<PagingView>) -> ProgramOutcome {
        ProgramOutcome {
            status,
            view,
            local_memory: self.local_memory.largest(),
            executions: self.gate.map(Gate::into_executions).unwrap_or_default(),
            owner: self.owner,
        }
    }

    /// Sleeps until a signal arrives, the agent hangs up, or the next check is due.
    fn sleep(&mut self, soon: bool) -> Result<(), SessionError> {
        let quiet = self.away.is_some() || self.abandoned;
        let now = Instant::now();
        let grow = self.growing.as_ref().map(|(_, _, due)| due.saturating_duration_since(now));
        let look = self.local_memory.time_left(now).min(grow.unwrap_or(Duration::MAX)).as_millis() as u16;
        let gate = self.gate.as_ref().and_then(Gate::descriptor);
        let asking = gate.is_some();
        // After the agent has hung up, its connection is left out: a closed connection would be readable at every poll.
        let owner = (!quiet).then(|| self.owner.as_fd());
        let children = self.children.iter().flat_map(Children::descriptors);
        let mut set: Vec<PollFd<'_>> = [gate, Some(self.signals.as_fd()), owner]
            .into_iter()
            .flatten()
            .chain(children)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let soon = soon || self.children.as_ref().is_some_and(Children::is_waiting);
        let limit = PollTimeout::from(if soon || quiet { PAUSE_MS } else { look.saturating_add(1) });
        let polled = poll(&mut set, limit);
        let ended = PollFlags::POLLHUP | PollFlags::POLLERR;
        // The listener hangs up when no process has the filter any more.
        let over = asking && set[0].revents().is_some_and(|events| events.intersects(ended));
        if over && let Some(gate) = &mut self.gate {
            gate.close();
        }
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sample(&mut self) {
        let now = Instant::now();
        if !self.local_memory.time_left(now).is_zero() {
            return;
        }
        match self.owner.paging() {
            Ok(view) if self.away.is_none() => self.local_memory.sample(now, &view),
            _ => self.local_memory.postpone(now),
        }
    }

    fn check_growth(&mut self) {
        let Some((grower, pause, due)) = &mut self.growing else { return };
        let now = Instant::now();
        if now < *due {
            return;
        }
        let view = if self.away.is_none() { self.owner.paging().ok() } else { None };
        if let Some(news) = grower.advance(view.as_ref()) {
            print_line(&news);
        }
        *due = now + if grower.is_asking() { FULL_PAUSE_MIN } else { *pause };
    }

    fn pass_signals_on(&mut self, ended: bool) -> Result<(), SessionError> {
        while let Some(came) = self.signals.read_signal()? {
            let Ok(signal) = Signal::try_from(came.ssi_signo as i32) else { continue };
            // Signals of a terminal have the kernel as their sender, and reach the program as well.
            if signal == Signal::SIGCHLD || came.ssi_code > 0 {
                continue;
            }
            let mut background = || self.owner.paging().map(|view| view.members).unwrap_or_default();
            let processes: Vec<u32> = if ended {
                background().into_iter().map(|member| member.pid).filter(|pid| *pid > 0).collect()
            } else {
                vec![self.child.id()]
            };
            for process in processes {
                match kill(Pid::from_raw(process as i32), signal) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    // The process may have other rights by now. The end of this process would cost it its memory.
                    Err(errno) => {
                        print_line(&format!("{signal} does not reach process {process}: {}", errno.desc()));
                    }
                }
            }
        }
        Ok(())
    }

    fn serve_children(&mut self) {
        let Some(children) = &mut self.children else { return };
        children.gather(self.owner.shared_state(), Instant::now());
        if children.serve() {
            print_line("a child that only the agent has recorded loses its memory: the agent has ended");
        }
    }

    /// Detects the agent's end, and finds its successor.
    fn follow_agent(&mut self) {
        if self.abandoned {
            return;
        }
        let Some(since) = self.away else {
            if has_hung_up(self.owner.as_fd()) {
                self.away = Some(Instant::now());
                if let Some(children) = &mut self.children {
                    children.gather(self.owner.shared_state(), Instant::now());
                    children.orphaned(self.owner.shared_state());
                }
                self.follow_agent();
            }
            return;
        };
        match self.owner.resume() {
            Ok(()) => self.away = None,
            // The program's processes detect the missing successor as well, and end.
            Err(_) if since.elapsed() > self.wait => self.abandoned = true,
            Err(_) => {}
        }
    }
}

/// Prints on standard error; a failure to print is ignored.
fn print_line(news: &str) {
    // The whole line is written by one call, because the program writes to the same standard error.
    let _ = io::stderr().write_all(format!("cn-agent: {news}\n").as_bytes());
}

fn agent_ended_error(owner: &Owner) -> ClientError {
    ClientError::AgentGone(owner.path().into())
}

/// Whether the other end of `socket`, on which no data is expected, has closed the connection.
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_PEEK;
    match nix::sys::socket::recv(socket.as_raw_fd(), &mut byte, flags) {
        Ok(0) => true,
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => false,
        Err(_) => true,
    }
}

/// Turns the library's absolute path into one that only the dynamic linker of the GNU C library resolves: that linker
/// expands `$ORIGIN` to the folder of the program. The linker of musl, which could not load the library, treats
/// `$ORIGIN` as a plain name, finds no such file, and continues.
fn of_glibc(library: &std::path::Path) -> PathBuf {
    let mut path = OsString::from("$ORIGIN");
    path.push("/..".repeat(FOLDERS_MAX));
    path.push(library);
    path.into()
}

/// Value of LD_PRELOAD with this library in front of those already named (`there`).
pub fn preload(library: &std::path::Path, there: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(there) = there.filter(|there| !there.as_bytes().is_empty()) {
        value.push(":");
        value.push(there);
    }
    value
}

/// Exit code of the supervisor for a program that ended with `status`, by the convention of shells: the program's exit
/// code, or 128 plus the number of the signal that ended it.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn libraries_of_others_stay() {
        let library = Path::new("/lib/ours.so");
        assert_eq!(preload(library, None), "/lib/ours.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/lib/ours.so");
        assert_eq!(preload(library, Some(OsStr::new("/lib/theirs.so"))), "/lib/ours.so:/lib/theirs.so");
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143);
    }
}
