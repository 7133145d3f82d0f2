//! A process, told from all others there were or will be: a number alone is another process's after the first has ended,
//! and other memory's after a program has started another one in its place (`execve`), perhaps with more rights.
//!
//! What is opened here when a process joins belongs to the memory it had then. Once that is gone, nothing can be read
//! through it any more, whoever has the number by then.

use std::fs::{File, read_to_string};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::unistd::{Uid, geteuid};

use super::shared_state::started;
use cxloe_cn_core::pager::PAGE_BYTES;

/// Why a process is not taken for who it says it is.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is none, or it has just ended.
    #[error("there is no process {0} any more")]
    Ended(u32),
    /// It belongs to another user than who asks.
    #[error(
        "process {pid} is not one of user {uid}'s, who asks for it: it belongs to another user, or runs with other rights"
    )]
    Another {
        /// The process.
        pid: u32,
        /// Who asks.
        uid: u32,
    },
    /// The agent may not look into it.
    #[error(
        "the agent may not see which pages process {0} has; run the agent with CAP_DAC_READ_SEARCH and \
         CAP_SYS_PTRACE (its service does), or the program as the agent's user"
    )]
    Forbidden(u32),
    /// The system.
    #[error("process {pid} cannot be looked into: {source}")]
    Io {
        /// The process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
    /// Its memory and its page table, where the agent reads them.
    memory: Option<File>,
    table: Option<File>,
}

impl Process {
    /// The process `pid`, for the user `uid` who speaks for it: one of that user's own, unless the user is root or the
    /// agent's own.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    pub fn of(pid: u32, uid: u32) -> Result<Process, ProcessError> {
        let started = started(pid).ok_or(ProcessError::Ended(pid))?;
        let process = Process { pid, started, memory: None, table: None };
        process.check(uid)?;
        Ok(process)
    }

    /// The same, with what it takes to see which pages it has and, if it `reads`, to read them.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    pub fn with_pages(pid: u32, uid: u32, reads: bool) -> Result<Process, ProcessError> {
        let mut process = Process::of(pid, uid)?;
        let open = |what: &str| {
            File::open(format!("/proc/{pid}/{what}")).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => ProcessError::Forbidden(pid),
                io::ErrorKind::NotFound => ProcessError::Ended(pid),
                _ => ProcessError::Io { pid, source },
            })
        };
        process.memory = if reads { Some(open("mem")?) } else { None };
        process.table = Some(open("pagemap")?);
        // Whatever the process was when they were opened: it cannot have been one with more rights and be one of the user's
        // again, with the same memory.
        process.check(uid)?;
        Ok(process)
    }

    /// Checks that it belongs to this user alone.
    fn check(&self, uid: u32) -> Result<(), ProcessError> {
        let pid = self.pid;
        if has_all_rights(uid) {
            return Ok(());
        }
        let ended = |_| ProcessError::Ended(pid);
        // Owned by its effective user, and by root where it has, or had, other rights than its user's.
        let plain = std::fs::metadata(format!("/proc/{pid}/mem")).map_err(ended)?.uid() == uid;
        let status = read_to_string(format!("/proc/{pid}/status")).map_err(ended)?;
        let same = is_alone(&status, uid) && self.is_there();
        if same && (plain || is_without_capabilities(&status) || self.is_in_other_namespace()) {
            Ok(())
        } else {
            Err(ProcessError::Another { pid, uid })
        }
    }

    /// Whether it has its capabilities in a user namespace of its own, where they are worth nothing here.
    fn is_in_other_namespace(&self) -> bool {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
        matches!((of("self"), of(&self.pid.to_string())), (Ok(ours), Ok(its)) if ours != its)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it was started, in the kernel's ticks.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether it lives.
    pub fn is_there(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Copies memory of it from `address` on. A page that is served by userfaultfd and not there is an error, never waited
    /// for; memory that is gone is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    ///
    /// # Errors
    /// What the kernel says.
    #[inline]
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?.read_exact_at(into, address)
    }

    /// What its page table says from `address` on, as `/proc/PID/pagemap` has it; 0 for what it does not say.
    #[inline]
    pub fn entries<const N: usize>(&self, address: u64) -> [u64; N] {
        let mut bytes = [[0; 8]; N];
        if let Some(table) = &self.table
            && table.read_at(bytes.as_flattened_mut(), address / PAGE_BYTES as u64 * 8).is_err()
        {
            return [0; N];
        }
        bytes.map(u64::from_le_bytes)
    }

    /// Sends it a signal: to it, and to no other that has its number.
    pub fn kill(&self, signal: i32) {
        // SAFETY: the call takes numbers and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as i32;
        if fd < 0 {
            return;
        }
        // SAFETY: the kernel has just made it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The descriptor is of whoever had the number when it was opened, and has it still: was that the one?
        if self.is_there() {
            // SAFETY: the call takes numbers, and no information beside the signal.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, 0, 0) };
        }
    }
}

/// Whether a user may do what it likes with processes and regions here: root, and the agent's own.
pub fn has_all_rights(uid: u32) -> bool {
    Uid::from_raw(uid).is_root() || uid == geteuid().as_raw()
}

/// The values of a line of `/proc/PID/status`.
fn line<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace()
}

/// Whether all of a process's users (real, effective, saved, of files) are this one.
fn is_alone(status: &str, uid: u32) -> bool {
    let mut users = line(status, "Uid:").map(|user| user.parse::<u32>()).peekable();
    users.peek().is_some() && users.all(|user| user == Ok(uid))
}

/// Whether a process has no capability, and cannot have one without starting another program.
fn is_without_capabilities(status: &str) -> bool {
    let mut permitted = line(status, "CapPrm:").map(|word| u64::from_str_radix(word, 16)).peekable();
    permitted.peek().is_some() && permitted.all(|capabilities| capabilities == Ok(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn sleeper() -> Ends {
        Ends(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    #[test]
    fn a_process_is_its_users_alone() {
        let child = sleeper();
        let pid = child.0.id();
        let me = geteuid().as_raw();
        assert!(Process::of(pid, me).unwrap().is_there());
        assert!(Process::of(pid, 0).is_ok(), "root may");
        assert!(matches!(Process::of(pid, me + 4711), Err(ProcessError::Another { .. })));
        drop(child);
        assert!(matches!(Process::of(pid, me), Err(ProcessError::Ended(_))));
    }

    #[test]
    fn users_and_capabilities_are_those_of_the_status() {
        let status = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t1\t1\t1\nCapPrm:\t0000000000000000\n";
        assert!(is_alone(status, 7) && !is_alone(status, 1) && is_without_capabilities(status));
        for other in ["Uid:\t7\t0\t7\t7\n", "Uid:\t7\t7\t0\t7\n", "", "Uid:\n", "Uid:\tx\n"] {
            assert!(!is_alone(other, 7), "{other}");
        }
        for other in ["", "CapPrm:\n", "CapPrm:\t0000000000200000\n", "CapPrm:\tzz\n"] {
            assert!(!is_without_capabilities(other), "{other}");
        }
    }

    #[test]
    fn memory_that_is_gone_is_not_another_programs() {
        // A shell that becomes another program, under the same number, when it is told to. It runs, and is mapped whole, once
        // it says so.
        let mut child = Command::new("sh")
            .args(["-c", "echo here; read line; exec sleep 1000"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let child = Ends(child);
        let pid = child.0.id();
        let exe = || std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        io::Read::read_exact(&mut output, &mut [0; 5]).unwrap();
        let before = exe();
        let maps = read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let address = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let process = Process::with_pages(pid, geteuid().as_raw(), true).unwrap();
        let mut bytes = [0; 4];
        process.read(address, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\x7FELF");
        assert_ne!(process.entries::<1>(address), [0]);
        io::Write::write_all(&mut input, b"go\n").unwrap();
        while exe() == before {
            std::thread::yield_now();
        }
        assert_eq!(process.read(address, &mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(process.entries::<1>(address), [0]);
        assert!(process.is_there(), "its number is the same");
    }

    #[test]
    fn a_signal_goes_to_the_one_that_was_meant() {
        let mut child = sleeper();
        let pid = child.0.id();
        let other = Process { pid, started: started(pid).unwrap() + 1, memory: None, table: None };
        other.kill(libc::SIGKILL);
        assert!(child.0.try_wait().unwrap().is_none());
        Process::of(pid, 0).unwrap().kill(libc::SIGKILL);
        assert!(!child.0.wait().unwrap().success());
    }
}
