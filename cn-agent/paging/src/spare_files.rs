//! Descriptors that the agent keeps free for itself: each program that connects, maps or forks takes up to
//! four, and the agent must still be able to open the link again.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::resource::{Resource, getrlimit};

/// Number of descriptors, those with the highest numbers, that are never used for clients.
const SPARE: u64 = 64;

/// Whether a descriptor opened for a client has one of the reserved numbers. The kernel assigns the lowest free number,
/// so a reserved number means that all other numbers are in use.
pub fn is_spare(descriptor: impl AsFd) -> bool {
    let number = descriptor.as_fd().as_raw_fd().cast_unsigned();
    getrlimit(Resource::RLIMIT_NOFILE).is_ok_and(|(limit, _)| u64::from(number) + SPARE >= limit)
}

/// Number of files open for each process with paged memory: userfaultfd, connection, memory and page table.
const FILES_OF_PROCESS: u64 = 4;

/// Maximum number of processes with paged memory that the limit of open files allows.
pub fn processes_max() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    (files.saturating_sub(SPARE) / FILES_OF_PROCESS) as usize
}

/// A file that is open for its descriptor's sake: it gives way to a descriptor that has to be opened when none is left.
#[derive(Debug)]
pub(crate) struct ReservedFile(Option<File>);

impl ReservedFile {
    pub(crate) fn open() -> ReservedFile {
        ReservedFile(File::open("/dev/null").ok())
    }

    /// Frees the descriptor for another one; `false` if there is none to free.
    pub(crate) fn give_way(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Opens the file again after it gave way, once a descriptor is free.
    pub(crate) fn reopen(&mut self) {
        if self.0.is_none() {
            *self = ReservedFile::open();
        }
    }
}

/// Text of the refusal when only reserved descriptors are left.
pub const NO_FILE_LEFT: &str = "the agent has no more files to open for programs: raise its limit (ulimit -n, in a unit LimitNOFILE=), or end \
                                programs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_numbers_are_for_clients() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!is_spare(&file));
    }
}
