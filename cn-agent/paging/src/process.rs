//! Identity of a process. Its number alone does not suffice: after the process has ended it may belong to another
//! one, and after `execve` the process runs another program in other memory, perhaps with more rights.
//!
//! Descriptors opened when a process joins belong to the memory that it had then. Once that memory is gone, nothing
//! can be read through the descriptors, even if the process's number is in use.

use std::fs::{File, read_to_string};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::unistd::{Uid, geteuid};

use super::shared_state::started;
use crate::uffd::pagemap;

/// Reason why the identity of a process is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is none, or it has just ended.
    #[error("there is no process {0} any more")]
    Ended(u32),
    /// It belongs to another user than the requester.
    #[error(
        "process {pid} is not one of user {uid}'s, who asks for it: it belongs to another user, or runs with other rights"
    )]
    Another {
        /// Process id that the request names.
        pid: u32,
        /// User id of the process that requested this.
        uid: u32,
    },
    /// The agent lacks the right to read its page table.
    #[error(
        "the agent may not see which pages process {0} has; run the agent with CAP_DAC_READ_SEARCH and \
         CAP_SYS_PTRACE (its service does), or the program as the agent's user"
    )]
    Forbidden(u32),
    /// A system call failed.
    #[error("process {pid} cannot be looked into: {source}")]
    Io {
        /// Process id that the call was about.
        pid: u32,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

/// One process, distinguished from later ones with its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
    /// The process's memory and page table, if the agent reads them.
    memory: Option<File>,
    table: Option<File>,
}

impl Process {
    /// The process `pid` on behalf of the user `uid`, who must be its only user, unless that is root or the agent's
    /// user.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    pub fn of(pid: u32, uid: u32) -> Result<Process, ProcessError> {
        let started = started(pid).ok_or(ProcessError::Ended(pid))?;
        let process = Process { pid, started, memory: None, table: None };
        process.check(uid)?;
        Ok(process)
    }

    /// As [`of`](Self::of), with the process's page table open and, if `reads`, its memory.
    ///
    /// # Errors
    /// Any [`ProcessError`].
    pub(crate) fn with_pages(pid: u32, uid: u32, reads: bool) -> Result<Process, ProcessError> {
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
        // Checked after opening: a process that had more rights at that time cannot have returned to the user's with
        // the same memory.
        process.check(uid)?;
        Ok(process)
    }

    /// Checks that the process has the rights of this user only.
    fn check(&self, uid: u32) -> Result<(), ProcessError> {
        let pid = self.pid;
        if has_all_rights(uid) {
            return Ok(());
        }
        let ended = |_| ProcessError::Ended(pid);
        // The files in /proc are owned by the process's effective user, and by root if the process has, or had, other
        // rights than that user's.
        let plain = std::fs::metadata(format!("/proc/{pid}/mem")).map_err(ended)?.uid() == uid;
        let status = read_to_string(format!("/proc/{pid}/status")).map_err(ended)?;
        let same = is_alone(&status, uid) && self.is_there();
        if same && (plain || is_without_capabilities(&status) || self.is_in_other_namespace()) {
            Ok(())
        } else {
            Err(ProcessError::Another { pid, uid })
        }
    }

    /// Whether the process's capabilities are those of another user namespace, where they give no rights here.
    fn is_in_other_namespace(&self) -> bool {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
        matches!((of("self"), of(&self.pid.to_string())), (Ok(ours), Ok(its)) if ours != its)
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time of the process, in the kernel's ticks since boot.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether the process still exists.
    pub fn is_there(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Copies the process's memory from `address` on. The call never waits for an absent page of a userfaultfd, which
    /// is an error; memory that is gone is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    ///
    /// # Errors
    /// The kernel's error.
    #[inline]
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?.read_exact_at(into, address)
    }

    /// Entries of the page table from `address` on, in the format of `/proc/PID/pagemap`; unavailable ones are 0.
    #[inline]
    pub fn entries<const N: usize>(&self, address: u64) -> [u64; N] {
        self.try_entries(address).unwrap_or([0; N])
    }

    /// As [`entries`](Self::entries), with the reason why they are unavailable.
    ///
    /// # Errors
    /// The kernel's error; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) for memory that is gone.
    #[inline]
    pub(crate) fn try_entries<const N: usize>(&self, address: u64) -> io::Result<[u64; N]> {
        pagemap::read(self.table.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?, address)
    }

    /// Sends a signal to this process, and never to another one that has its number.
    pub fn kill(&self, signal: i32) {
        // SAFETY: only integers are passed; the call creates a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as i32;
        if fd < 0 {
            return;
        }
        // SAFETY: the kernel has just made this descriptor; nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The descriptor refers to the process that had the number when it was opened; check that it was this
        // process.
        if self.is_there() {
            // SAFETY: only integers are passed, and no information beside the signal.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, 0, 0) };
        }
    }
}

/// Whether a user may access all processes and regions: root, and the agent's own user.
pub fn has_all_rights(uid: u32) -> bool {
    Uid::from_raw(uid).is_root() || uid == geteuid().as_raw()
}

/// Values of the line `name` of a `/proc/PID/status`.
fn line<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace()
}

/// Whether all user ids of a process (real, effective, saved, file system) equal `uid`.
fn is_alone(status: &str, uid: u32) -> bool {
    let mut users = line(status, "Uid:").map(|user| user.parse::<u32>()).peekable();
    users.peek().is_some() && users.all(|user| user == Ok(uid))
}

/// Whether a process has no capability, and cannot gain one without executing another program.
fn is_without_capabilities(status: &str) -> bool {
    let mut permitted = line(status, "CapPrm:").map(|word| u64::from_str_radix(word, 16)).peekable();
    permitted.peek().is_some() && permitted.all(|capabilities| capabilities == Ok(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct KillOnDrop(Child);

    impl Drop for KillOnDrop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn sleeper() -> KillOnDrop {
        KillOnDrop(Command::new("sleep").arg("1000").spawn().unwrap())
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
        // A shell that, on request, executes another program under the same process number. Its memory is completely
        // mapped once it has written a line.
        let mut child = Command::new("sh")
            .args(["-c", "echo here; read line; exec sleep 1000"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let child = KillOnDrop(child);
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
