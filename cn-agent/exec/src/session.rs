//! A program under supervision: from its start to the end of its last process.
//!
//! Signals that are sent to the supervisor go on to the program. Those of a terminal reach both by themselves, and the
//! supervisor leaves them to the program: it ends when that does.

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
use super::gate::{self, Gate, Opening};
use super::lease::Grower;
use super::stayed::{Stayed, Watch};
use cxloe_client::client::ClientError;
use cxloe_client::mapping::{NoKernelFaults, Owner};
use cxloe_client::message::PagingView;
use cxloe_cn_core::mapped::window_bytes;

/// Signals that go on to the program.
const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];
/// How many folders deep programs may lie: the way up from theirs to the root ends there in any case.
const FOLDERS_MAX: usize = 40;
/// The pause between two attempts to reach the agent's successor, and between two looks at processes in the background.
const PAUSE_MS: u16 = 100;
/// The pause between two looks whether the region is full; of the time that processes wait for room, one part of so many
/// at most.
const FULL_PAUSE: Duration = Duration::from_millis(500);
const FULL_PAUSE_PART: u32 = 8;
const FULL_PAUSE_MIN: Duration = Duration::from_millis(20);

/// Why a program could not be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It could not be started.
    #[error("{} could not be started: {source}", .path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel cannot keep direct I/O from the program's memory.
    #[error(
        "this kernel cannot keep direct I/O from a program's memory (seccomp user notification: {0}), and direct I/O \
         loses data there; with --allow-direct-io all memory of the program stays in this machine"
    )]
    NoGate(io::Error),
    /// Its buffers could not be given to system calls.
    #[error(transparent)]
    NoKernelFaults(#[from] NoKernelFaults),
    /// The system.
    #[error("the program cannot be supervised: {0}")]
    System(#[from] Errno),
}

/// What a program is given.
#[derive(Debug)]
pub struct Settings {
    /// The library.
    pub library: PathBuf,
    /// The agent's socket, as a whole path.
    pub agent: PathBuf,
    /// Bytes of each process's window.
    pub bytes: u64,
    /// How long processes wait for an agent that has ended.
    pub wait: Duration,
    /// Whether the program may do direct I/O: its memory does not leave then.
    pub direct: bool,
}

/// A running program.
#[derive(Debug)]
pub struct Session {
    child: Child,
    owner: Owner,
    wait: Duration,
    signals: SignalFd,
    /// Since when the agent has been away.
    away: Option<Instant>,
    /// Whether its successor was given up on.
    abandoned: bool,
    /// What of its memory stays here.
    stayed: Watch,
    /// What asks about system calls of the program.
    gate: Option<Gate>,
    /// Children that only the agent knows.
    children: Option<Children>,
    /// What has the region grow, how often that is looked after, and when next.
    growing: Option<(Grower, Duration, Instant)>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status.
    pub status: ExitStatus,
    /// How its remote memory stood at the end, if the agent could say.
    pub view: Option<PagingView>,
    /// How much of its memory stayed in this machine, if that could be seen.
    pub stayed: Option<Stayed>,
    /// Its remote memory.
    pub owner: Owner,
}

impl Session {
    /// Starts the program with the memory that `owner` holds.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub fn start(
        program: PathBuf,
        arguments: &[OsString],
        owner: Owner,
        settings: &Settings,
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
            // For whoever is started below, too: they make a userfaultfd each.
            fcntl(device, FcntlArg::F_SETFD(FdFlag::empty()))?;
            command.env("CXLOE_EXEC_DEVICE", device.as_raw_fd().to_string());
        }
        if settings.direct {
            return Self::spawn(command, program, owner, settings.wait);
        }
        gate::available().map_err(SessionError::NoGate)?;
        let opening = Opening::before(&mut command).map_err(SessionError::NoGate)?;
        let mut session = Self::spawn(command, program, owner, settings.wait)?;
        let gate = opening.gate().map_err(SessionError::NoGate)?;
        if gate.descriptor().is_none() {
            say(
                "somebody else is asked about this program's system calls; direct I/O and io_uring fail without a word",
            );
        }
        session.gate = Some(gate);
        Ok(session)
    }

    /// Starts `command`, which has been given what it needs to know of the memory that `owner` holds.
    ///
    /// # Errors
    /// Any [`SessionError`]; `program` is how it names the command.
    pub fn spawn(
        mut command: Command,
        program: PathBuf,
        owner: Owner,
        wait: Duration,
    ) -> Result<Session, SessionError> {
        let mut all: SigSet = PASSED_ON.into_iter().collect();
        all.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&all), Some(&mut before))?;
        let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let supervisor = getpid();
        let prepare = move || {
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
            prctl::set_pdeathsig(Signal::SIGTERM)?;
            if getppid() == supervisor { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // SAFETY: system calls only, on values of this function.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(|source| SessionError::Start { path: program, source })?;
        Ok(Session {
            child,
            owner,
            wait,
            signals,
            away: None,
            abandoned: false,
            stayed: Watch::new(Instant::now()),
            gate: None,
            children: None,
            growing: None,
        })
    }

    /// The same, with a region that grows when it is full; `patience` is how long processes wait for room in it.
    #[must_use]
    pub fn growing(self, grower: Option<Grower>, patience: Duration) -> Session {
        let pause = (patience / FULL_PAUSE_PART).clamp(FULL_PAUSE_MIN, FULL_PAUSE);
        Session { growing: grower.map(|grower| (grower, pause, Instant::now() + pause)), ..self }
    }

    /// The same, keeping the children that the agent sends.
    #[must_use]
    pub fn keeping(self, children: Children) -> Session {
        Session { children: Some(children), ..self }
    }

    /// The program's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Supervises until the program has ended, and every process with a part of its memory.
    ///
    /// # Errors
    /// [`SessionError::System`].
    pub fn supervise(mut self) -> Result<Outcome, SessionError> {
        let mut ended = None;
        loop {
            self.pass_signals_on(ended.is_some())?;
            self.look_after_children();
            if let Some(gate) = &mut self.gate {
                gate.answer(say);
            }
            if ended.is_none() {
                ended = self.child.try_wait().map_err(|error| {
                    SessionError::System(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
                })?;
            }
            self.follow_agent();
            self.look();
            self.look_after_growth();
            let mut polled = false;
            if let Some(status) = ended {
                let view = if self.away.is_none() { self.owner.paging() } else { Err(gone(&self.owner)) };
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

    fn over(self, status: ExitStatus, view: Option<PagingView>) -> Outcome {
        Outcome { status, view, stayed: self.stayed.most(), owner: self.owner }
    }

    /// Sleeps until there is a signal, the agent hangs up, or it is time to look again.
    fn sleep(&mut self, soon: bool) -> Result<(), SessionError> {
        let quiet = self.away.is_some() || self.abandoned;
        let now = Instant::now();
        let grow = self.growing.as_ref().map(|(_, _, due)| due.saturating_duration_since(now));
        let look = self.stayed.left(now).min(grow.unwrap_or(Duration::MAX)).as_millis() as u16;
        let gate = self.gate.as_ref().and_then(Gate::descriptor);
        let asking = gate.is_some();
        // A connection that has ended is readable for ever.
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
        // Nobody is left who could ask.
        let over = asking && set[0].revents().is_some_and(|events| events.intersects(ended));
        if over && let Some(gate) = &mut self.gate {
            gate.close();
        }
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Looks how much of its memory is here, if it is time to.
    fn look(&mut self) {
        let now = Instant::now();
        if !self.stayed.left(now).is_zero() {
            return;
        }
        match self.owner.paging() {
            Ok(view) if self.away.is_none() => self.stayed.look(now, &view),
            _ => self.stayed.put_off(now),
        }
    }

    /// Has the region grow if it is full, if it is time to look.
    fn look_after_growth(&mut self) {
        let Some((grower, pause, due)) = &mut self.growing else { return };
        let now = Instant::now();
        if now < *due {
            return;
        }
        let view = if self.away.is_none() { self.owner.paging().ok() } else { None };
        if let Some(news) = grower.go_on(view.as_ref()) {
            say(&news);
        }
        *due = now + if grower.is_asking() { FULL_PAUSE_MIN } else { *pause };
    }

    fn pass_signals_on(&mut self, ended: bool) -> Result<(), SessionError> {
        while let Some(came) = self.signals.read_signal()? {
            let Ok(signal) = Signal::try_from(came.ssi_signo as i32) else { continue };
            // A terminal's come from the kernel, and to the program as well.
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
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }

    fn look_after_children(&mut self) {
        let Some(children) = &mut self.children else { return };
        children.gather(self.owner.shared_state());
        if children.serve() {
            say("a child that the agent alone knew cannot have its memory any more: the agent has gone");
        }
    }

    /// Notices when the agent has gone, and finds its successor.
    fn follow_agent(&mut self) {
        if self.abandoned {
            return;
        }
        let Some(since) = self.away else {
            if has_hung_up(self.owner.as_fd()) {
                self.away = Some(Instant::now());
                if let Some(children) = &mut self.children {
                    children.gather(self.owner.shared_state());
                    children.orphaned(self.owner.shared_state());
                }
                self.follow_agent();
            }
            return;
        };
        match self.owner.resume() {
            Ok(()) => self.away = None,
            // The program's processes notice as well, and end.
            Err(_) if since.elapsed() > self.wait => self.abandoned = true,
            Err(_) => {}
        }
    }
}

/// Tells whoever started the program; if that cannot be, the program goes on all the same.
fn say(news: &str) {
    // In one piece: the program writes there as well.
    let _ = io::stderr().write_all(format!("cn-agent: {news}\n").as_bytes());
}

fn gone(owner: &Owner) -> ClientError {
    ClientError::AgentGone(owner.path().into())
}

/// Whether the other end of a connection on which nothing is expected has closed it.
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_PEEK;
    match nix::sys::socket::recv(socket.as_raw_fd(), &mut byte, flags) {
        Ok(0) => true,
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => false,
        Err(_) => true,
    }
}

/// A path of this library, which is whole, that only the dynamic linker of the GNU C library finds: it knows `$ORIGIN`,
/// the folder of the program. musl's, which could not load the library, takes it for a name, finds nothing, and goes on.
fn of_glibc(library: &std::path::Path) -> PathBuf {
    let mut path = OsString::from("$ORIGIN");
    path.push("/..".repeat(FOLDERS_MAX));
    path.push(library);
    path.into()
}

/// The value of LD_PRELOAD with the library in front of what is there.
pub fn preload(library: &std::path::Path, there: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(there) = there.filter(|there| !there.as_bytes().is_empty()) {
        value.push(":");
        value.push(there);
    }
    value
}

/// What a supervisor exits with for a program that ended like this, as shells have it: its exit code, or 128 and the
/// number of the signal that ended it.
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
