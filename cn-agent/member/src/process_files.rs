//! The files of `/proc` through which the agent reads the memory of a process. The process opens them itself,
//! so that the agent sees nothing that the process has no right to see, whatever program has the process's id
//! later.
//!
//! Such a file stays bound to the memory that the process had when it was opened. A program that the process executes
//! has other memory, which the file does not reach.

#![expect(unsafe_code, reason = "the bare system call openat takes a raw pointer")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

#[derive(Debug)]
pub struct ProcessFiles {
    memory: Option<OwnedFd>,
    table: OwnedFd,
}

impl ProcessFiles {
    /// Opens the memory and the page table of this process.
    ///
    /// # Errors
    /// The system call's error: EACCES if nobody may inspect this process, not even the process itself: after
    /// a change of user, or in a program that may be executed but not read.
    pub fn own() -> io::Result<ProcessFiles> {
        let memory = Some(open(c"/proc/self/mem")?);
        Ok(ProcessFiles { memory, table: open(c"/proc/self/pagemap")? })
    }

    /// Wraps files that are open already. The page table alone suffices for memory that the agent never
    /// reads.
    pub fn from_descriptors(memory: Option<OwnedFd>, table: OwnedFd) -> ProcessFiles {
        ProcessFiles { memory, table }
    }

    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(AsFd::as_fd)
    }

    pub fn table(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Further descriptors of the same files.
    ///
    /// # Errors
    /// The system call's error.
    pub fn try_clone(&self) -> io::Result<ProcessFiles> {
        let memory = self.memory.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(ProcessFiles { memory, table: self.table.try_clone()? })
    }
}

/// Opens a file for reading. Makes the system call itself, because the program may replace the function of its name.
fn open(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a NUL-terminated path.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_process_reads_its_own_memory() {
        let (word, mut read) = (0x1234_5678_9ABC_DEF0_u64, [0; 8]);
        let own = ProcessFiles::own().unwrap().try_clone().unwrap();
        let memory = File::from(own.memory().unwrap().try_clone_to_owned().unwrap());
        memory.read_exact_at(&mut read, &raw const word as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(read), word);
        let table = File::from(own.table().try_clone_to_owned().unwrap());
        table.read_exact_at(&mut read, &raw const word as u64 / 4096 * 8).unwrap();
        assert_ne!(u64::from_ne_bytes(read) >> 62, 0, "the page is there");
    }
}
