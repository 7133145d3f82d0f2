//! Files that the agent keeps free for itself: programs that connect, map and fork take up to four each, and the link
//! must be able to open again.

use std::os::fd::{AsFd, AsRawFd};

use nix::sys::resource::{Resource, getrlimit};

/// Number of the highest descriptors that clients get none of.
const SPARE: u64 = 64;

/// Whether a descriptor that was opened for a client is one of those that the agent keeps for itself. The kernel gives
/// the lowest free number, so all others are in use then.
pub fn is_spare(descriptor: impl AsFd) -> bool {
    let number = descriptor.as_fd().as_raw_fd().cast_unsigned();
    getrlimit(Resource::RLIMIT_NOFILE).is_ok_and(|(limit, _)| u64::from(number) + SPARE >= limit)
}

/// Files that a process whose memory is paged takes: its userfaultfd, its connection, its memory and its page table.
const FILES_OF_PROCESS: u64 = 4;

/// Number of processes for which this agent may open files.
pub fn processes_max() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    (files.saturating_sub(SPARE) / FILES_OF_PROCESS) as usize
}

/// Words of the refusal.
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
