//! The gate of a program: a filter in the kernel on the program's system calls. All processes that the
//! program starts inherit the filter. The filter asks the supervisor about calls that may have to be refused
//! (module `seccomp`).
//!
//! ```text
//!   program --openat(O_DIRECT)--> filter --asks--> supervisor: pipes and files that are only written pass,
//!           <------ EINVAL ------------------------            the rest fails, and the reason is printed once
//! ```
//!
//! The filter also asks about each program that is executed: one that will have memory of this machine alone
//! is counted, or refused (module `executions`).
//!
//! Processes with the filter may outlive the supervisor. Calls without a listener fail, so another process,
//! the keeper, then answers them.
//!
//! The gate guards against accidents, not against attacks: a program may destroy its own memory. Where
//! another process (a container's manager) already listens to the same processes, the filter fails calls by
//! itself, without a message.

#![expect(unsafe_code, reason = "seccomp takes raw pointers, and pre_exec runs code after a fork")]

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use libc::{sock_filter, sock_fprog};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::executions::{self, Executions};
use super::keeper;
use super::open_question::OpenQuestion;
use super::questions::{self, GatePolicy};
use super::seccomp::{self, Verdict};
use super::trapped_calls::WindowPlace;

/// Maximum number of calls answered in one turn of the supervisor.
const ANSWERS_MAX: usize = 16;
/// Interval of checks whether the program has been started, in milliseconds.
const START_PAUSE_MS: u8 = 5;

/// Whether this kernel can pass system calls to a supervisor.
///
/// # Errors
/// Errors of the system call.
pub fn available() -> io::Result<()> {
    let action = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: the kernel reads one live word.
    let had =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if had == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A gate that a new process sets up before it executes its program.
#[derive(Debug)]
pub struct PendingGate {
    here: UnixStream,
    policy: GatePolicy,
}

/// Supervisor's side of the gate of a running program.
#[derive(Debug)]
pub struct Gate {
    /// `None` if another process already listens to the program's system calls: refused calls then fail in the kernel,
    /// without a message, and executions are not seen.
    listener: Option<OwnedFd>,
    open: OpenQuestion,
    policy: GatePolicy,
    told: HashSet<&'static str>,
    executions: Executions,
}

impl PendingGate {
    /// Makes the process of `command` set up a gate before it executes its program. System calls on addresses
    /// in `window` are trapped.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn before(
        command: &mut Command,
        policy: GatePolicy,
        window: Option<WindowPlace>,
    ) -> io::Result<PendingGate> {
        let (here, there) = UnixStream::pair()?;
        let asking = seccomp::filter(Verdict::Ask, policy.direct, window);
        let failing = seccomp::filter(Verdict::Fail, policy.direct, window);
        // SAFETY: system calls only, on memory made before.
        unsafe { command.pre_exec(move || set_up(&asking, &failing, &there)) };
        Ok(PendingGate { here, policy })
    }

    /// Runs `start`, which starts the command, and returns its result with the gate. The gate answers
    /// questions meanwhile: the first is the execution of the program, and `start` returns only after that.
    /// Messages for the user are passed to `say`.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn open<T>(self, say: fn(&str), start: impl FnOnce() -> T) -> io::Result<(T, Gate)> {
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            let answering = scope.spawn(|| self.answer_until(&started, say));
            let done = start();
            started.store(true, Ordering::Release);
            let gate = answering.join().map_err(|_| io::ErrorKind::Other)??;
            Ok((done, gate))
        })
    }

    fn answer_until(&self, started: &AtomicBool, say: fn(&str)) -> io::Result<Gate> {
        let mut gate = Gate {
            listener: None,
            open: OpenQuestion::new()?,
            policy: self.policy,
            told: HashSet::new(),
            executions: Executions::default(),
        };
        let mut received = false;
        loop {
            // The flag is loaded before the poll: the process sends the listener before it executes the program, so if
            // the flag is set, the poll finds the listener.
            let over = started.load(Ordering::Acquire);
            let waits_for = gate.listener.as_ref().map_or_else(|| self.here.as_fd(), AsFd::as_fd);
            let mut set = [PollFd::new(waits_for, PollFlags::POLLIN)];
            let ready = poll(&mut set, PollTimeout::from(if over { 0 } else { START_PAUSE_MS }))? > 0;
            if ready && !received {
                let mut descriptors = Descriptors::new();
                receive_some(self.here.as_fd(), &mut [0], &mut descriptors, libc::MSG_DONTWAIT)?;
                (received, gate.listener) = (true, descriptors.take());
                // The keeper is started before the program is executed, since this process may be killed at
                // any moment after that.
                gate.post_keeper()?;
            } else if over {
                return Ok(gate);
            } else if received && gate.listener.is_none() {
                thread::sleep(std::time::Duration::from_millis(START_PAUSE_MS.into()));
            }
            gate.answer(say);
        }
    }
}

/// Sets the filter for this process, and sends the filter's listener over `socket`.
fn set_up(asking: &[sock_filter], failing: &[sock_filter], socket: &UnixStream) -> io::Result<()> {
    match set(asking, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        Ok(listener) => {
            // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
            let listener = unsafe { OwnedFd::from_raw_fd(listener) };
            send_some(socket.as_fd(), &[1], &[listener.as_fd()], 0).map(drop)
        }
        // EBUSY: another process listens to this process's system calls already.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            set(failing, 0)?;
            send_some(socket.as_fd(), &[0], &[], 0).map(drop)
        }
        Err(error) => Err(error),
    }
}

fn set(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_int> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let set = || {
        // SAFETY: the kernel reads a live program of the length named.
        let done = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as libc::c_int) }
    };
    match set() {
        // Without CAP_SYS_ADMIN, the kernel permits a filter only after `no_new_privs`.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: plain values.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            set()
        }
        done => done,
    }
}

impl Gate {
    /// Descriptor that is readable when a call waits for a decision; `None` if calls fail in the kernel.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    pub fn into_executions(self) -> Executions {
        self.executions
    }

    /// Starts the keeper, which answers the calls of processes that outlive this one.
    fn post_keeper(&self) -> io::Result<()> {
        self.descriptor().map_or(Ok(()), |listener| keeper::post(listener, &self.open, self.policy))
    }

    /// Closes the listener, after the last process with the filter has ended.
    pub fn close(&mut self) {
        self.listener = None;
    }

    /// Answers pending calls. Each message is passed to `say` before the call is answered: until then the program is
    /// stopped, so its own message follows this one, and the file's name can be read.
    pub fn answer(&mut self, mut say: impl FnMut(&str)) {
        let Gate { listener: Some(listener), open, policy, told, executions } = self else { return };
        for _ in 0..ANSWERS_MAX {
            match questions::ready(listener.as_fd(), 0) {
                Some(true) => {}
                _ => break,
            }
            // The calling process may have been killed since the poll.
            let Some(question) = questions::receive(listener.as_fd()) else { continue };
            open.record(&question);
            let errno = match seccomp::execution(question.data.nr) {
                Some(at) => executions::local_program(&question, at).map_or(0, |program| {
                    let errno = policy.of_local_program();
                    if errno != 0 && !executions.has(&program) {
                        say(&format!(
                            "process {} may not execute {program} (--require-remote)",
                            question.pid
                        ));
                    }
                    executions.record(program);
                    errno
                }),
                None => questions::refusal(&question).map_or(0, |(rule, subject)| {
                    // Each kind of refusal is reported once.
                    if told.insert(rule.what.name()) {
                        say(&questions::refusal_text(question.pid, rule.what, &subject));
                    }
                    rule.what.errno()
                }),
            };
            questions::send(listener.as_fd(), question.id, errno);
        }
    }
}
