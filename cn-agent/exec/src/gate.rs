//! The gate that a program's system calls pass: a filter in the kernel, inherited by all that it starts, which asks the
//! supervisor about those that are refused (module `seccomp`).
//!
//! ```text
//!   program --openat(O_DIRECT)--> filter --asks--> supervisor: pipes and files that are only written go on,
//!           <------ EINVAL ------------------------            the rest fails, and standard error says why, once
//! ```
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

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use libc::{seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

use super::seccomp::{self, RuleSubject, Verdict};

/// Longest part of a path that is reported, in bytes.
const PATH_MAX: usize = 200;
/// Limit of calls answered in one turn of the supervisor.
const ANSWERS_MAX: usize = 16;

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
pub struct PendingGate(UnixStream);

/// Supervisor's side of the gate of a running program.
#[derive(Debug)]
pub struct Gate {
    /// `None`: refused calls fail in the kernel, without a message.
    listener: Option<OwnedFd>,
    told: HashSet<&'static str>,
}

impl PendingGate {
    /// Makes the process of `command` set up a gate before it executes its program.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn before(command: &mut Command) -> io::Result<PendingGate> {
        let (here, there) = UnixStream::pair()?;
        let asking = seccomp::filter(Verdict::Ask);
        let failing = seccomp::filter(Verdict::Fail);
        // SAFETY: system calls only, on memory made before.
        unsafe { command.pre_exec(move || set_up(&asking, &failing, &there)) };
        Ok(PendingGate(here))
    }

    /// Receives the listener of the gate, once the program has been started.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn gate(self) -> io::Result<Gate> {
        let mut descriptors = Descriptors::new();
        // The process has sent the listener before it executed the program.
        receive_some(self.0.as_fd(), &mut [0], &mut descriptors, libc::MSG_DONTWAIT)?;
        Ok(Gate { listener: descriptors.take(), told: HashSet::new() })
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

    /// Closes the listener: no process has the filter any more.
    pub fn close(&mut self) {
        self.listener = None;
    }

    /// Answers pending calls. Each message is passed to `say` before the call is answered: until then the program is
    /// stopped, so its own message follows this one, and the file's name can be read.
    pub fn answer(&mut self, mut say: impl FnMut(&str)) {
        for _ in 0..ANSWERS_MAX {
            let Some(listener) = &self.listener else { break };
            let mut set = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            // SAFETY: one live entry.
            let ready = unsafe { libc::poll(set.as_mut_ptr(), 1, 0) };
            if ready <= 0 || set[0].revents & libc::POLLIN == 0 {
                break;
            }
            // The calling process may have been killed since the poll.
            let Some(question) = receive(listener.as_fd()) else { continue };
            let refused = seccomp::met(question.data.nr, &question.data.args);
            let refused =
                refused.and_then(|rule| subject(rule.what, &question).map(|subject| (rule, subject)));
            let errno = refused.as_ref().map_or(0, |(rule, _)| rule.what.errno());
            if let Some((rule, subject)) = refused
                && self.told.insert(rule.what.name())
            {
                say(&refusal_text(question.pid, rule.what, &subject));
            }
            send(listener.as_fd(), question.id, errno);
        }
    }
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
        | RuleSubject::OtherProcess => Some(String::new()),
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
