//! Identity of a process, and access to its memory. A process id alone identifies nothing: after the process
//! has ended, the id may belong to another one, and after `execve` the process runs another program in other
//! memory, perhaps with more rights.
//!
//! So the agent opens nothing of a process by its number. The process opens `/proc/self/mem` and
//! `/proc/self/pagemap` itself, with its own rights, and passes the open files. The files belong to the
//! memory that the process had at that time. Once that memory is gone, nothing can be read through them, even
//! if another process has the same id.

use std::fs::{File, read_link, read_to_string};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Uid, geteuid};

use super::shared_state::started;
use crate::uffd::pagemap::{self, is_something};
use crate::uffd::{Access, Uffd, UffdError};
use cxloe_cn_core::pager::PAGE_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has this id, or the process has just ended.
    #[error("there is no process {0} any more")]
    Ended(u32),
    /// The process belongs to another user than the requester, or has more rights than that user.
    #[error(
        "process {pid} is not one of user {uid}'s, who asks for it: it belongs to another user, or runs with other rights"
    )]
    Another {
        pid: u32,
        /// User id of the process that made the request to join.
        uid: u32,
    },
    /// A passed descriptor is not the file of this name in `/proc/PID`.
    #[error("what came as /proc/PID/{0} is no such file; the process has to open it itself")]
    OtherFile(&'static str),
    #[error("the process did not pass its /proc/self/mem and /proc/self/pagemap, through which it is paged")]
    NoFiles,
    /// The files do not show the memory that the userfaultfd serves.
    #[error("the process passed files of other memory than its userfaultfd is of")]
    OtherMemory,
    /// The first page cannot be filled through the userfaultfd.
    #[error("the first page of the process's memory is not absent and registered: {0}")]
    FirstPage(UffdError),
}

/// The files `/proc/self/mem` and `/proc/self/pagemap`, as a process has opened and passed them.
#[derive(Debug, Default)]
pub struct MemoryFiles {
    memory: Option<File>,
    table: Option<File>,
}

impl MemoryFiles {
    /// Checks that the descriptors are a `/proc/PID/mem` and a `/proc/PID/pagemap`. A program may pass a file
    /// of any file system, even of one that never answers, so the serving thread must not call this.
    ///
    /// # Errors
    /// [`ProcessError::OtherFile`].
    pub fn check([memory, table]: [Option<OwnedFd>; 2]) -> Result<MemoryFiles, ProcessError> {
        let check = |fd: Option<OwnedFd>, name| fd.map(|fd| file_of_process(fd, name)).transpose();
        Ok(MemoryFiles { memory: check(memory, "mem")?, table: check(table, "pagemap")? })
    }

    pub(crate) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.memory.is_some() && self.table.is_some()
    }
}

/// Returns `fd` as a file if it is the file `name` in `/proc/PID` of any process.
fn file_of_process(fd: OwnedFd, name: &'static str) -> Result<File, ProcessError> {
    let other = |_| ProcessError::OtherFile(name);
    // The kernel itself generates the text of this link without a call to the file's file system, so no program can
    // block the call.
    let path =
        read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| ProcessError::OtherFile(name))?;
    if path.file_name().is_none_or(|last| last != name) {
        return Err(ProcessError::OtherFile(name));
    }
    if fstatfs(&fd).map_err(other)?.filesystem_type() != PROC_SUPER_MAGIC {
        return Err(ProcessError::OtherFile(name));
    }
    Ok(File::from(fd))
}

/// One process, distinguished by its start time from later ones with the same id.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
    files: MemoryFiles,
}

impl Process {
    /// Identifies the process `pid` for the user `uid`. The process must run with that user's rights only,
    /// unless `uid` is root or the agent's user.
    pub fn of(pid: u32, uid: u32) -> Result<Process, ProcessError> {
        let started = started(pid).ok_or(ProcessError::Ended(pid))?;
        let process = Process { pid, started, files: MemoryFiles::default() };
        process.check(uid)?;
        Ok(process)
    }

    /// Attaches the files through which the agent reads the process's memory.
    #[must_use]
    pub fn showing(self, files: MemoryFiles) -> Process {
        Process { files, ..self }
    }

    /// Checks that the process has no more rights than this user. Success is no permission by itself, because the
    /// process may execute another program right after the check.
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

    /// Verifies that the files show the memory that `uffd` serves: writes random content to the absent page
    /// at `address` through `uffd`, and reads it back through the files. Returns the first word of that
    /// content, with which a successor of this agent repeats the check ([`shows`](Self::shows)).
    ///
    /// # Errors
    /// [`ProcessError::OtherMemory`], [`ProcessError::FirstPage`].
    pub(crate) fn confirm(&self, uffd: &Uffd, address: u64) -> Result<u64, ProcessError> {
        let nonce: [u64; 4] = rand::random();
        let mut page = [0; PAGE_BYTES];
        page.as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(nonce)
            .for_each(|(place, word)| *place = word.to_le_bytes());
        uffd.copy(address, &page, Access::Writable).map_err(ProcessError::FirstPage)?;
        let mut shown = [0; PAGE_BYTES];
        let same = self.read(address, &mut shown).is_ok() && shown == page;
        let [entry] = self.entries(address);
        if same && is_something(entry) { Ok(nonce[0]) } else { Err(ProcessError::OtherMemory) }
    }

    /// Whether the memory that the files show has this word at `address`.
    pub(crate) fn shows(&self, word: u64, address: u64) -> bool {
        let mut shown = [0; 8];
        self.read(address, &mut shown).is_ok() && u64::from_le_bytes(shown) == word
    }

    /// Whether the process has passed both files, so that the agent can read its memory.
    pub(crate) fn is_readable(&self) -> bool {
        self.files.is_complete()
    }

    /// Whether the process's capabilities belong to another user namespace, so that they confer no rights in
    /// this one.
    fn is_in_other_namespace(&self) -> bool {
        let of = |process: &str| read_link(format!("/proc/{process}/ns/user"));
        matches!((of("self"), of(&self.pid.to_string())), (Ok(ours), Ok(its)) if ours != its)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time of the process, in the kernel's ticks since boot.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether the process still exists; a later process with the same id has another start time.
    pub fn is_there(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Copies the process's memory from `address` on. The call never waits for an absent page of a
    /// userfaultfd: such a page is an error. For memory that no longer exists, the error is
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    ///
    /// # Errors
    /// The kernel's error.
    #[inline]
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.files.memory.as_ref().ok_or(io::ErrorKind::Unsupported)?.read_exact_at(into, address)
    }

    /// Entries of the page table from `address` on, in the format of `/proc/PID/pagemap`; 0 where they cannot
    /// be read.
    #[inline]
    pub fn entries<const N: usize>(&self, address: u64) -> [u64; N] {
        self.try_entries(address).unwrap_or([0; N])
    }

    /// Returns the same as [`entries`](Self::entries), or the reason why the entries cannot be read.
    ///
    /// # Errors
    /// The kernel's error; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) for memory that is gone.
    #[inline]
    pub(crate) fn try_entries<const N: usize>(&self, address: u64) -> io::Result<[u64; N]> {
        pagemap::read(self.files.table.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?, address)
    }
}

/// Whether a user may access all processes and regions: root, and the agent's own user.
pub fn has_all_rights(uid: u32) -> bool {
    Uid::from_raw(uid).is_root() || uid == geteuid().as_raw()
}

/// Words after `name` on the line of `/proc/PID/status` that begins with `name`; none if there is no such
/// line.
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
        // A shell that executes another program, under the same process id, when it reads a line. The shell's memory is
        // completely mapped after it has written a line.
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
        let process = {
            let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).unwrap().into();
            let files = MemoryFiles::check([Some(open("mem")), Some(open("pagemap"))]).unwrap();
            Process::of(pid, geteuid().as_raw()).unwrap().showing(files)
        };
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
    fn other_files_are_not_a_processs() {
        let refused = |fd: OwnedFd, is_memory: bool| {
            let files = if is_memory { [Some(fd), None] } else { [None, Some(fd)] };
            matches!(MemoryFiles::check(files), Err(ProcessError::OtherFile(_)))
        };
        let open = |path: &str| File::open(path).unwrap().into();
        assert!(!refused(open("/proc/self/mem"), true) && refused(open("/proc/self/mem"), false));
        assert!(
            !refused(open("/proc/thread-self/pagemap"), false) && refused(open("/proc/self/pagemap"), true)
        );
        for other in ["/proc/self/maps", "/dev/zero", "/proc"] {
            assert!(refused(open(other), true) && refused(open(other), false), "{other}");
        }
        let folder = std::env::temp_dir().join(format!("cxloe-process-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mem"), "no process").unwrap();
        let named = File::open(folder.join("mem")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused(named.into(), true), "a name alone says nothing");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(refused(socket.into(), true));
    }
}
