//! Programs inside a namespace, and guards that end them.
//!
//! A child asks the kernel to kill it when the *thread* that started it ends, so children are started by one thread
//! that lives as long as the lab and every guard. Between fork and exec the child enters the namespace and mounts its
//! own `/sys`. A guard ends the program's whole process group by SIGTERM, a bounded wait and SIGKILL, and always reaps
//! the program.

#![expect(unsafe_code, reason = "a child enters its namespace between fork and exec")]

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

/// Time between SIGTERM and SIGKILL when a guard is dropped.
const DROP_GRACE: Duration = Duration::from_secs(2);
/// Limit on the time until the kernel reports a program as stopped after SIGSTOP.
const STANDS_WITHIN: Duration = Duration::from_secs(20);
/// Interval between two checks whether a program has ended or stopped.
const POLL: Duration = Duration::from_millis(2);

type SpawnOrder = (Command, mpsc::Sender<io::Result<Child>>);

/// Handle of the thread that starts programs. The thread ends when the lab and all guards are dropped.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    orders: mpsc::Sender<SpawnOrder>,
}

impl Spawner {
    pub(crate) fn start() -> Self {
        let (orders, inbox) = mpsc::channel::<SpawnOrder>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // If the caller has panicked, it does not receive the reply and has no guard for the program; the
                // kernel then kills the program when this thread ends.
                let _ = reply.send(command.spawn());
            }
        });
        Self { orders }
    }

    pub(crate) fn spawn(&self, namespace: &Namespace, command: Command) -> Result<Process, LabError> {
        self.spawn_in(Some(namespace), command)
    }

    /// Starts a program in the namespaces of this process, outside of the lab's.
    pub(crate) fn spawn_here(&self, command: Command) -> Result<Process, LabError> {
        self.spawn_in(None, command)
    }

    fn spawn_in(&self, namespace: Option<&Namespace>, mut command: Command) -> Result<Process, LabError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let place = namespace.map_or("of this process", Namespace::name);
        let failed = |source| LabError::Spawn { program: program.clone(), namespace: place.into(), source };
        let (inside, parent) = (namespace.cloned(), getpid());
        // The program gets its own process group, so that Ctrl-C in the terminal does not reach it; its guard ends it
        // in order.
        command.process_group(0);
        // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe functions are
        // allowed. It makes system calls only, on values captured before the fork, and allocates nothing.
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

/// Enters the namespace, and requests that the kernel kills this process when the thread that started it ends. Called
/// in the child process, before exec.
fn enter_and_tie(namespace: Option<&Namespace>, parent: Pid) -> nix::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // If the parent died before the request took effect, the kernel sends no signal, so the child has to end itself.
    if getppid() != parent {
        return Err(nix::Error::ESRCH); // it died before the line above took effect
    }
    let Some(namespace) = namespace else { return Ok(()) };
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
    mount_own_sysfs()
}

/// A program running inside a namespace. Dropping this value ends the program: SIGTERM, two seconds, SIGKILL.
#[derive(Debug)]
pub struct Process {
    child: Child,
    program: String,
    /// Keeps the thread that started the program alive, since the kernel kills the program when that thread
    /// ends.
    _spawner: Spawner,
}

impl Process {
    /// Redirects the standard output and error of `command` to a new file at `path`, and its input to
    /// nothing. Lines at level `ERROR` in the file then count as
    /// [`unexpected_errors`](crate::unexpected_errors).
    ///
    /// # Errors
    /// Returns [`LabError::Log`] when the file cannot be made.
    pub fn log_to(command: &mut Command, path: &Path) -> Result<(), LabError> {
        let failed = |source| LabError::Log { path: path.into(), source };
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(path).map_err(failed)?;
        let copy = file.try_clone().map_err(failed)?;
        logs::register(path, file.try_clone().map_err(failed)?);
        command.stdin(std::process::Stdio::null()).stdout(file).stderr(copy);
        Ok(())
    }

    /// Process id of the program, which is also the id of its process group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the handle of the program, for access to its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the exit status of the program, or `None` while the program runs; does not wait.
    ///
    /// # Errors
    /// Returns [`LabError::Process`] on an error of the system.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(|e| self.failed("waiting for", e))
    }

    /// Waits at most `limit` until the program exits by itself.
    ///
    /// # Errors
    /// Returns [`LabError::StillRunning`] if the program has not exited; the program continues to run.
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

    /// Sends `signal` to the program and its child processes.
    ///
    /// # Errors
    /// Returns [`LabError::Process`] when no process is left.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        killpg(Pid::from_raw(self.id().cast_signed()), signal)
            .map_err(|e| self.failed("signalling", e.into()))
    }

    /// Stops the program and its child processes, and waits until every thread of the program has stopped: after the
    /// signal alone, a thread on another CPU may still run and answer requests.
    ///
    /// # Errors
    /// Returns [`LabError::Process`] if the program does not run, and [`LabError::StillRunning`] if it does not stop.
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

    /// Resumes the processes that [`Self::pause`] stopped.
    ///
    /// # Errors
    /// Returns [`LabError::Process`] when no process is left.
    pub fn resume(&self) -> Result<(), LabError> {
        self.signal(Signal::SIGCONT)
    }

    /// Ends the program: SIGTERM, at most `grace` for an orderly end, then SIGKILL for the rest of its group. Returns
    /// the exit status, also of a program that has already ended.
    ///
    /// # Errors
    /// Returns [`LabError::Process`] on an error of the system.
    pub fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, LabError> {
        if self.try_wait()?.is_none() {
            // The signal fails only if the program has ended meanwhile, which the wait below finds out.
            let _ = self.signal(Signal::SIGTERM);
        }
        let ended = self.wait(grace);
        // The signal is also needed when the program itself has ended: its children may still run.
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
