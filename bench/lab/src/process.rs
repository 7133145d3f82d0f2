//! Programs inside a namespace, and the guards that end them.
//!
//! A child asks the kernel to kill it when the *thread* that started it ends, so children are started by one thread
//! that lives as long as the lab and every guard. Between fork and exec the child enters the namespace and mounts its
//! own `/sys`. The guard ends the program's whole process group: SIGTERM, a bounded wait, SIGKILL, and it always reaps.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};

use crate::namespace::mount_own_sysfs;
use crate::{LabError, Namespace, logs};

/// How long a dropped guard waits between SIGTERM and SIGKILL.
const DROP_GRACE: Duration = Duration::from_secs(2);
/// How long a stopped program may take until all its threads stand.
const STANDS_WITHIN: Duration = Duration::from_secs(20);
/// How often a wait looks whether the program has ended.
const POLL: Duration = Duration::from_millis(2);

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts programs. It ends when the lab and all guards are gone.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    orders: mpsc::Sender<Order>,
}

impl Spawner {
    pub(crate) fn start() -> Self {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // A caller that no longer listens has panicked; the dropped Child is then killed with this thread.
                let _ = reply.send(command.spawn());
            }
        });
        Self { orders }
    }

    pub(crate) fn spawn(&self, namespace: &Namespace, command: Command) -> Result<Process, LabError> {
        self.spawn_in(Some(namespace), command)
    }

    /// Starts a program in the namespaces of this process.
    pub(crate) fn spawn_here(&self, command: Command) -> Result<Process, LabError> {
        self.spawn_in(None, command)
    }

    fn spawn_in(&self, namespace: Option<&Namespace>, mut command: Command) -> Result<Process, LabError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let place = namespace.map_or("of this process", Namespace::name);
        let failed = |source| LabError::Spawn { program: program.clone(), namespace: place.into(), source };
        let (inside, parent) = (namespace.cloned(), getpid());
        command.process_group(0);
        // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe work is allowed. It
        // makes system calls only, on values captured before the fork, and allocates nothing.
        unsafe {
            command.pre_exec(move || enter_and_tie(inside.as_ref(), parent).map_err(io::Error::from));
        }
        let (reply, answer) = mpsc::channel();
        let gone = || io::Error::other("the thread that starts programs has ended");
        self.orders.send((command, reply)).map_err(|_| failed(gone()))?;
        let child = answer.recv().map_err(|_| failed(gone()))?.map_err(failed)?;
        Ok(Process { child, program, _spawner: self.clone() })
    }
}

/// In the child: enter the namespace, and die when the parent does.
fn enter_and_tie(namespace: Option<&Namespace>, parent: Pid) -> nix::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != parent {
        return Err(nix::Error::ESRCH); // it died before the line above took effect
    }
    let Some(namespace) = namespace else { return Ok(()) };
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
    mount_own_sysfs()
}

/// A program running inside a namespace. Dropping it ends the program: SIGTERM, two seconds, SIGKILL.
#[derive(Debug)]
pub struct Process {
    child: Child,
    program: String,
    /// Keeps the thread alive whose end would kill the program.
    _spawner: Spawner,
}

impl Process {
    /// Lets `command` write its standard output and error to the file at `path` (made anew), and read nothing.
    /// Errors in it are counted ([`unexpected_errors`](crate::unexpected_errors)).
    ///
    /// # Errors
    /// [`LabError::Log`] when the file cannot be made.
    pub fn log_to(command: &mut Command, path: &Path) -> Result<(), LabError> {
        let failed = |source| LabError::Log { path: path.into(), source };
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(path).map_err(failed)?;
        let copy = file.try_clone().map_err(failed)?;
        logs::register(path, file.try_clone().map_err(failed)?);
        command.stdin(std::process::Stdio::null()).stdout(file).stderr(copy);
        Ok(())
    }

    /// Process id; also the id of its process group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How the program ended, or `None` while it runs. Does not wait.
    ///
    /// # Errors
    /// [`LabError::Process`] when the kernel cannot tell.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(|e| self.failed("waiting for", e))
    }

    /// Waits until the program ends by itself, at most `limit`.
    ///
    /// # Errors
    /// [`LabError::StillRunning`] when it has not; it goes on running then.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(LabError::StillRunning { program: self.program.clone(), pid: self.id(), limit });
            }
            thread::sleep(POLL);
        }
    }

    /// Sends `signal` to the program and what it has started.
    ///
    /// # Errors
    /// [`LabError::Process`] when nothing is left to receive it.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        killpg(Pid::from_raw(self.id().cast_signed()), signal)
            .map_err(|e| self.failed("signalling", e.into()))
    }

    /// Stops the program and what it has started, and waits until every thread of the program stands: a signal alone lets one
    /// on another CPU go on for a while, and answer what was asked after it.
    ///
    /// # Errors
    /// [`LabError::Process`] when it does not run; [`LabError::StillRunning`] when it goes on all the same.
    pub fn pause(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + STANDS_WITHIN;
        self.signal(Signal::SIGSTOP)?;
        let stands = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(Pid::from_raw(self.id().cast_signed())), stands)
            .map_err(|e| self.failed("stopping", e.into()))?
            == WaitStatus::StillAlive
        {
            if Instant::now() >= deadline {
                let (program, pid) = (self.program.clone(), self.id());
                return Err(LabError::StillRunning { program, pid, limit: STANDS_WITHIN });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Has what [`Self::pause`] stopped go on.
    ///
    /// # Errors
    /// [`LabError::Process`] when nothing is left to go on.
    pub fn resume(&self) -> Result<(), LabError> {
        self.signal(Signal::SIGCONT)
    }

    /// Ends the program: SIGTERM, at most `grace` for it to end in order, then SIGKILL for what is left of its group.
    /// Tells how it ended; an ended program keeps its status.
    ///
    /// # Errors
    /// [`LabError::Process`] when the kernel cannot tell.
    pub fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, LabError> {
        if self.try_wait()?.is_none() {
            let _ = self.signal(Signal::SIGTERM);
        }
        let ended = self.wait(grace);
        // Also when the program itself has ended: its own children may not have.
        let _ = self.signal(Signal::SIGKILL);
        match ended {
            Err(LabError::StillRunning { .. }) => self.child.wait().map_err(|e| self.failed("reaping", e)),
            ended => ended,
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> LabError {
        LabError::Process { action, program: self.program.clone(), pid: self.id(), source }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.terminate(DROP_GRACE);
    }
}
