//! Questions to a gate's listener, and the answers: each question is a system call that waits in the kernel.

#![expect(unsafe_code, reason = "ioctls of seccomp take raw pointers")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use libc::{seccomp_notif, seccomp_notif_resp};

use super::executions;
use super::open_question::OpenQuestion;
use super::seccomp::{self, Rule, RuleSubject};

/// Longest part of a path that is reported, in bytes.
const PATH_MAX: usize = 200;

/// Settings of a gate: calls that it permits or refuses, depending on the user's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePolicy {
    /// Whether calls that write to pages without using the page table (direct I/O) are permitted.
    pub direct: bool,
    /// Whether programs that would have memory of this machine alone are refused.
    pub require_remote: bool,
}

impl GatePolicy {
    /// Error number for the execution of a program that would have memory of this machine alone; 0 permits
    /// the execution.
    pub(crate) fn of_local_program(self) -> i32 {
        if self.require_remote { libc::EPERM } else { 0 }
    }
}

/// Answers the calls of processes that have outlived the supervisor, until no process has the filter. The first is the
/// call that the supervisor was answering.
pub(crate) fn answer_alone(listener: BorrowedFd<'_>, open: &OpenQuestion, policy: GatePolicy) {
    if let Some(question) = open.last() {
        answer(listener, &question, policy);
    }
    for id in open.unrecorded() {
        // Only the number of an unrecorded call is known: the call fails with EAGAIN, and its caller has to repeat it.
        send(listener, id, libc::EAGAIN);
    }
    while let Some(waits) = ready(listener, -1) {
        if let Some(question) = waits.then(|| receive(listener)).flatten() {
            answer(listener, &question, policy);
        }
    }
}

/// Answers a question without a message. If the question has an answer already, nothing changes.
fn answer(listener: BorrowedFd<'_>, question: &seccomp_notif, policy: GatePolicy) {
    let errno = match seccomp::execution(question.data.nr) {
        Some(_) if !policy.require_remote => 0,
        Some(at) => executions::local_program(question, at).map_or(0, |_| policy.of_local_program()),
        None => refusal(question).map_or(0, |(rule, _)| rule.what.errno()),
    };
    send(listener, question.id, errno);
}

/// Waits until a call needs a decision, for at most `limit` milliseconds (-1: no limit). Returns whether
/// there is such a call, or `None` once no process has the filter.
pub(crate) fn ready(listener: BorrowedFd<'_>, limit: i32) -> Option<bool> {
    let mut set = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), 1, limit) };
    let over = set[0].revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0;
    (!over).then_some(ready > 0 && set[0].revents & libc::POLLIN != 0)
}

/// The rule that a call breaks, and the call's subject for the message.
pub(crate) fn refusal(question: &seccomp_notif) -> Option<(&'static Rule, String)> {
    let rule = seccomp::met(question.data.nr, &question.data.args)?;
    Some((rule, subject(rule.what, question)?))
}

pub(crate) fn refusal_text(pid: u32, what: RuleSubject, subject: &str) -> String {
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

fn path(pid: u32, address: u64) -> Option<String> {
    let mut bytes = [0; PATH_MAX];
    let mut length = memory(pid).ok()?.read_at(&mut bytes, address).ok()?;
    length = bytes[..length].iter().position(|byte| *byte == 0).unwrap_or(length);
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

pub(crate) fn receive(listener: BorrowedFd<'_>) -> Option<seccomp_notif> {
    let mut question = MaybeUninit::<seccomp_notif>::zeroed();
    // SAFETY: the kernel writes one question into live memory, which has to be zeros before.
    let got =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, question.as_mut_ptr()) };
    // SAFETY: a question of zeros is valid, too.
    (got == 0).then(|| unsafe { question.assume_init() })
}

/// Makes the call `id` fail with `errno`; with 0 the call proceeds.
pub(crate) fn send(listener: BorrowedFd<'_>, id: u64, errno: i32) {
    let flags = if errno == 0 { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
    let mut answer = seccomp_notif_resp { id, val: 0, error: -errno, flags };
    const { assert!(size_of::<seccomp_notif_resp>() == 24) };
    // SAFETY: the kernel reads one answer; the error for a caller that has been killed is ignored.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
}
