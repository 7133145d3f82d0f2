//! The gate that a program's system calls pass: a filter in the kernel, inherited by all that it starts, which asks the
//! supervisor about those that are refused (module `seccomp`).
//!
//! ```text
//!   program --openat(O_DIRECT)--> filter --asks--> supervisor: pipes and files that are only written go on,
//!           <------ EINVAL ------------------------            the rest fails, and standard error says why, once
//! ```
//!
//! A program that is executed is looked at, too: one that will have memory of this machine alone is counted, or refused
//! (module `executions`).
//!
//! The supervisor may end before processes that the filter still holds: a process of its own, the keeper, answers these
//! then, as calls without a listener fail.
//!
//! The gate guards against accidents, not against attacks: a program may destroy its own memory. Where another process
//! (a container's manager) already listens to the same processes, the filter fails calls by itself, without a message.

use std::collections::HashSet;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use libc::{seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::executions::{self, Executions};
use super::keeper;
use super::seccomp::{self, Rule, RuleSubject, Verdict};

/// Longest part of a path that is reported, in bytes.
const PATH_MAX: usize = 200;
/// Limit of calls answered in one turn of the supervisor.
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

/// What a gate refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePolicy {
    /// Whether calls that write past the page table are permitted.
    pub direct: bool,
    /// Whether programs that would have memory of this machine alone are refused.
    pub require_remote: bool,
}

impl GatePolicy {
    /// Error of the execution of a program that would have memory of this machine alone; 0 if it goes on.
    fn of_local_program(self) -> i32 {
        if self.require_remote { libc::EPERM } else { 0 }
    }
}

/// Supervisor's side of the gate of a running program.
#[derive(Debug)]
pub struct Gate {
    /// `None`: refused calls fail in the kernel, without a message, and executions are not seen.
    listener: Option<OwnedFd>,
    policy: GatePolicy,
    told: HashSet<&'static str>,
    executions: Executions,
}

impl PendingGate {
    /// Makes the process of `command` set up a gate before it executes its program.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn before(command: &mut Command, policy: GatePolicy) -> io::Result<PendingGate> {
        let (here, there) = UnixStream::pair()?;
        let asking = seccomp::filter(Verdict::Ask, policy.direct);
        let failing = seccomp::filter(Verdict::Fail, policy.direct);
        // SAFETY: system calls only, on memory made before.
        unsafe { command.pre_exec(move || set_up(&asking, &failing, &there)) };
        Ok(PendingGate { here, policy })
    }

    /// Runs `start`, which starts the command, and returns its result with the gate. The gate answers meanwhile: the
    /// execution of the program is its first question, and `start` returns only after that.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn open<T>(self, start: impl FnOnce() -> T) -> io::Result<(T, Gate)> {
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            let answering = scope.spawn(|| self.answer_until(&started));
            let done = start();
            started.store(true, Ordering::Release);
            let gate = answering.join().map_err(|_| io::ErrorKind::Other)??;
            Ok((done, gate))
        })
    }

    fn answer_until(&self, started: &AtomicBool) -> io::Result<Gate> {
        let mut gate = Gate {
            listener: None,
            policy: self.policy,
            told: HashSet::new(),
            executions: Executions::default(),
        };
        let mut received = false;
        loop {
            // The process has sent the listener before it executes the program.
            let over = started.load(Ordering::Acquire);
            let waits_for = gate.listener.as_ref().map_or_else(|| self.here.as_fd(), AsFd::as_fd);
            let mut set = [PollFd::new(waits_for, PollFlags::POLLIN)];
            let ready = poll(&mut set, PollTimeout::from(if over { 0 } else { START_PAUSE_MS }))? > 0;
            if ready && !received {
                let mut descriptors = Descriptors::new();
                receive_some(self.here.as_fd(), &mut [0], &mut descriptors, libc::MSG_DONTWAIT)?;
                (received, gate.listener) = (true, descriptors.take());
            } else if over {
                return Ok(gate);
            } else if received && gate.listener.is_none() {
                thread::sleep(std::time::Duration::from_millis(START_PAUSE_MS.into()));
            }
            gate.answer(|_| {});
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

    /// Programs that were executed with memory of this machine alone.
    pub fn into_executions(self) -> Executions {
        self.executions
    }

    /// Starts the keeper, which answers the calls of processes that outlive this one. To be called while this process
    /// has one thread.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn post_keeper(&self) -> io::Result<()> {
        self.descriptor().map_or(Ok(()), |listener| keeper::post(listener, self.policy))
    }

    /// Closes the listener: no process has the filter any more.
    pub fn close(&mut self) {
        self.listener = None;
    }

    /// Answers pending calls. Each message is passed to `say` before the call is answered: until then the program is
    /// stopped, so its own message follows this one, and the file's name can be read.
    pub fn answer(&mut self, mut say: impl FnMut(&str)) {
        let Gate { listener: Some(listener), policy, told, executions } = self else { return };
        for _ in 0..ANSWERS_MAX {
            match ready(listener.as_fd(), 0) {
                Some(true) => {}
                _ => break,
            }
            // The calling process may have been killed since the poll.
            let Some(question) = receive(listener.as_fd()) else { continue };
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
                None => refusal(&question).map_or(0, |(rule, subject)| {
                    if told.insert(rule.what.name()) {
                        say(&refusal_text(question.pid, rule.what, &subject));
                    }
                    rule.what.errno()
                }),
            };
            send(listener.as_fd(), question.id, errno);
        }
    }
}

/// Answers the calls of processes that have outlived the supervisor, until no process has the filter.
pub(crate) fn answer_alone(listener: BorrowedFd<'_>, policy: GatePolicy) {
    while let Some(waits) = ready(listener, -1) {
        let Some(question) = waits.then(|| receive(listener)).flatten() else { continue };
        let errno = match seccomp::execution(question.data.nr) {
            Some(_) if !policy.require_remote => 0,
            Some(at) => executions::local_program(&question, at).map_or(0, |_| policy.of_local_program()),
            None => refusal(&question).map_or(0, |(rule, _)| rule.what.errno()),
        };
        send(listener, question.id, errno);
    }
}

/// Whether a call waits for a decision, after at most `limit` milliseconds (-1: no limit); `None` once no process has
/// the filter.
fn ready(listener: BorrowedFd<'_>, limit: i32) -> Option<bool> {
    let mut set = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), 1, limit) };
    let over = set[0].revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0;
    (!over).then_some(ready > 0 && set[0].revents & libc::POLLIN != 0)
}

/// The rule that a call breaks, and the call's subject for the message.
fn refusal(question: &seccomp_notif) -> Option<(&'static Rule, String)> {
    let rule = seccomp::met(question.data.nr, &question.data.args)?;
    Some((rule, subject(rule.what, question)?))
}

fn refusal_text(pid: u32, what: RuleSubject, subject: &str) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!(
        "process {pid} ({}) is refused {}{subject}: it writes into pages past the page table, which loses data on its \
         way to memory nodes; have the program do without, or run it with --allow-direct-io, which keeps all memory \
         it touches in this machine",
        name.trim_end(),
        what.name()
    )
}

/// Subject of a refused call, for the message; `None` if a closer look permits the call.
fn subject(what: RuleSubject, question: &seccomp_notif) -> Option<String> {
    let (pid, arguments) = (question.pid, &question.data.args);
    let of_path = |argument: usize| match path(pid, arguments[argument]) {
        Some(path) => format!(" of {path}"),
        None => String::new(),
    };
    match what {
        RuleSubject::Open(argument) => Some(of_path(argument)),
        RuleSubject::Open2 => {
            let mut flags = [0; 8];
            match memory(pid).and_then(|memory| memory.read_exact_at(&mut flags, arguments[2])) {
                Ok(()) if !seccomp::opens_direct(u64::from_le_bytes(flags)) => None,
                _ => Some(of_path(1)),
            }
        }
        RuleSubject::SetFlag => {
            let fd = arguments[0] as u32;
            let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
            let target = target.to_string_lossy().into_owned();
            let only_written = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))
                .ok()
                .and_then(|info| {
                    Some(info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_string())
                })
                .and_then(|flags| u32::from_str_radix(&flags, 8).ok())
                .is_some_and(|flags| flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32);
            // On a pipe, O_DIRECT means packet mode.
            (!only_written && !target.starts_with("pipe:")).then(|| format!(" of {target}"))
        }
        RuleSubject::OpenByHandle
        | RuleSubject::IoUring
        | RuleSubject::Xdp
        | RuleSubject::Device
        | RuleSubject::OtherProcess
        | RuleSubject::Merging => Some(String::new()),
    }
}

fn memory(pid: u32) -> io::Result<std::fs::File> {
    std::fs::File::open(format!("/proc/{pid}/mem"))
}

/// Reads a path from the memory of process `pid`.
fn path(pid: u32, address: u64) -> Option<String> {
    let mut bytes = [0; PATH_MAX];
    let mut length = memory(pid).ok()?.read_at(&mut bytes, address).ok()?;
    length = bytes[..length].iter().position(|byte| *byte == 0).unwrap_or(length);
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn receive(listener: BorrowedFd<'_>) -> Option<seccomp_notif> {
    let mut question = MaybeUninit::<seccomp_notif>::zeroed();
    // SAFETY: the kernel writes one question into live memory, which has to be zeros before.
    let got =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, question.as_mut_ptr()) };
    // SAFETY: a question of zeros is valid, too.
    (got == 0).then(|| unsafe { question.assume_init() })
}

/// Makes the call `id` fail with `errno`; with 0 the call proceeds.
fn send(listener: BorrowedFd<'_>, id: u64, errno: i32) {
    let flags = if errno == 0 { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
    let mut answer = seccomp_notif_resp { id, val: 0, error: -errno, flags };
    const { assert!(size_of::<seccomp_notif_resp>() == 24) };
    // SAFETY: the kernel reads one answer; the error for a caller that has been killed is ignored.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
}
