//! Files in memory that an agent makes, each for one purpose, and finds again when a program shows them to its successor.
//!
//! A program that shows a descriptor is not trusted. A file is taken for an agent's own only if nobody but the agent's user
//! can have made it, it was made for this very purpose, and its size cannot change: the kernel says all three, and none of
//! them can be changed by a program. That programs cannot write a shared state follows from its mode: they get descriptors
//! to read it, and only its owner can open it anew.

use std::ffi::CStr;
use std::fs::{File, Permissions, read_link};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::geteuid;

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);
/// Mode bits of anybody but the owner.
const OTHERS: u32 = 0o077;

/// The purpose of a file, which is its name for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The shared state of a space: programs read it.
    SharedState,
    /// The pages of a region that processes share: programs read and write it.
    Region,
}

/// The reason why a file is not taken for an agent's own.
#[derive(Debug, thiserror::Error)]
pub enum NotAgentFile {
    /// It belongs to another user, who may have written it.
    #[error("what was shown was made by user {0}, and not by an agent of this one's user")]
    Forged(u32),
    /// It is no file in memory, was made for another purpose, or its size or mode could have changed.
    #[error("what was shown was not made for this purpose by an agent")]
    Other,
    /// The system does not say.
    #[error("what was shown cannot be looked at: {0}")]
    Io(#[from] io::Error),
}

impl Purpose {
    fn name(self) -> &'static CStr {
        match self {
            Purpose::SharedState => c"cxloe-shared-state",
            Purpose::Region => c"cxloe-region",
        }
    }

    /// Makes a file of `bytes` zeros, whose size cannot change and which nobody but the agent's user can open.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(self, bytes: u64) -> io::Result<File> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(self.name(), flags)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(bytes)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Ok(file)
    }

    /// Checks that an agent made `file` for this purpose; its size in bytes.
    ///
    /// # Errors
    /// Any [`NotAgentFile`].
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
