//! Memory files that an agent creates, each for one purpose. A restarted agent recognises the files that its
//! predecessor created, when programs pass them back.
//!
//! A program that passes a descriptor is not trusted. A file counts as an agent's own only if it belongs to
//! the agent's user, was created for this purpose, and has a sealed size: the kernel reports all three, and a
//! program can change none of them. Programs cannot write to the file of a shared state: they get a read-only
//! descriptor, and the file's mode lets only the owner reopen the file for writing.

use std::ffi::CStr;
use std::fs::{File, Permissions, read_link};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::geteuid;

/// Seals of every file. The size is fixed, so no program can shrink a file that the agent has mapped.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);
/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// Purpose of a file, stored as the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The shared state of a space, which programs may only read.
    SharedState,
    /// The pages of a region that processes share, which programs read and write.
    Region,
}

/// Reason why a file does not count as an agent's own.
#[derive(Debug, thiserror::Error)]
pub enum NotAgentFile {
    /// The file belongs to another user, who may have written it.
    #[error("the file was made by user {0}, and not by an agent of this one's user")]
    Forged(u32),
    /// The file is no memory file, was created for another purpose, or its size or mode is not fixed.
    #[error("the file was not made for this purpose by an agent")]
    Other,
    #[error("the file cannot be inspected: {0}")]
    Io(#[from] io::Error),
}

impl Purpose {
    fn name(self) -> &'static CStr {
        match self {
            Purpose::SharedState => c"cxloe-shared-state",
            Purpose::Region => c"cxloe-region",
        }
    }

    /// Creates a file of `bytes` zeros, with its size sealed, that only the agent's user can open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(self, bytes: u64) -> io::Result<File> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(self.name(), flags)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(bytes)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Ok(file)
    }

    /// Checks that an agent created `file` for this purpose; returns the file's size in bytes.
    pub fn check(self, file: &File) -> Result<u64, NotAgentFile> {
        let sealed = fcntl(file, FcntlArg::F_GET_SEALS).map_err(|_| NotAgentFile::Other)?;
        let metadata = file.metadata()?;
        if metadata.uid() != geteuid().as_raw() && metadata.uid() != 0 {
            return Err(NotAgentFile::Forged(metadata.uid()));
        }
        let name = read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let own = format!("/memfd:{} (deleted)", self.name().to_string_lossy());
        let closed = metadata.mode() & OTHERS == 0 && SealFlag::from_bits_truncate(sealed).contains(SEALS);
        if !closed || name.as_os_str() != own.as_str() {
            return Err(NotAgentFile::Other);
        }
        Ok(metadata.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_serves_the_purpose_it_was_made_for_alone() {
        let state = Purpose::SharedState.create(8192).unwrap();
        assert_eq!(Purpose::SharedState.check(&state).unwrap(), 8192);
        assert!(matches!(Purpose::Region.check(&state), Err(NotAgentFile::Other)));
        assert!(state.set_len(4096).is_err());
        let region = Purpose::Region.create(4096).unwrap();
        assert!(matches!(Purpose::SharedState.check(&region), Err(NotAgentFile::Other)));
    }

    #[test]
    fn a_file_that_others_can_open_or_whose_size_can_change_is_not_taken() {
        let open = Purpose::SharedState.create(4096).unwrap();
        open.set_permissions(Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(Purpose::SharedState.check(&open), Err(NotAgentFile::Other)));
        let memfd = memfd_create(c"cxloe-shared-state", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        let unsealed = File::from(memfd);
        unsealed.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(Purpose::SharedState.check(&unsealed), Err(NotAgentFile::Other)));
        let other = File::open("/dev/null").unwrap();
        assert!(matches!(Purpose::SharedState.check(&other), Err(NotAgentFile::Other)));
    }
}
