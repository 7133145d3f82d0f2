//! Why an operation on pages did not happen, and why there is no userfaultfd to begin with.

use nix::errno::Errno;

use super::Features;

/// What an operation on pages says. Small and `Copy`: it is made where every nanosecond and every allocation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UffdError {
    /// The address space is changing (EAGAIN): an event waits to be read, or its sender has not gone on yet.
    #[error("the address space is just changing; read the events of the userfaultfd, then try again")]
    Again,
    /// The page is there already (EEXIST).
    #[error("a page is there already; wake the threads that wait for it")]
    Exists,
    /// The process whose memory it was has ended (ESRCH).
    #[error("the process that this memory belonged to has ended")]
    Gone,
    /// Not whole pages of one registered mapping (ENOENT, EINVAL): unmapped meanwhile, never registered for this, or
    /// not at page boundaries.
    #[error("no mapping registered for this covers the range, or the range is not whole pages")]
    NotMapped,
    /// The file has no page there (EFAULT of [`continue_`](super::Uffd::continue_)).
    #[error("the file has no page there to map; write it through another mapping of the file first")]
    NoPage,
    /// The page is pinned, or shared with a forked child ([`move_`](super::Uffd::move_)); or the range is registered
    /// with another userfaultfd ([`register`](super::Uffd::register)) (EBUSY).
    #[error(
        "the page is in use elsewhere: pinned for I/O, shared with a forked child, or another userfaultfd's"
    )]
    Busy,
    /// Something else.
    #[error("userfaultfd: {doing} failed: {errno}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

impl UffdError {
    /// What `errno` means for an operation on pages.
    #[inline]
    pub(super) fn new(doing: &'static str, errno: Errno) -> UffdError {
        match errno {
            Errno::EAGAIN => UffdError::Again,
            Errno::EEXIST => UffdError::Exists,
            Errno::ESRCH => UffdError::Gone,
            Errno::ENOENT | Errno::EINVAL => UffdError::NotMapped,
            Errno::EBUSY => UffdError::Busy,
            errno => UffdError::Os { doing, errno },
        }
    }
}

/// Why a userfaultfd cannot be had, or not one with the features wanted.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What was handed over is something else.
    #[error("what was handed over as a userfaultfd is {0:?}")]
    NotOne(String),
    /// This user may have none.
    #[error(
        "this user may not handle page faults: /dev/userfaultfd cannot be opened ({device}) and userfaultfd(2) is \
         refused ({call}); as root, let the user in with `setfacl -m u:USER:rw /dev/userfaultfd` (Linux 6.1 and newer) \
         or for all users with `sysctl -w vm.unprivileged_userfaultfd=1`, or run with CAP_SYS_PTRACE"
    )]
    Forbidden {
        /// What the device said.
        device: Errno,
        /// What the system call said.
        call: Errno,
    },
    /// The kernel was built without it.
    #[error(
        "this kernel has no userfaultfd (CONFIG_USERFAULTFD); use one that has, as those of all distributions"
    )]
    NoKernelSupport,
    /// The kernel lacks features.
    #[error(
        "this kernel's userfaultfd lacks {}, which Linux {}.{} and newer have; it has {}",
        missing.names(), missing.since().0, missing.since().1, present.names()
    )]
    Missing {
        /// What was wanted and is not there.
        missing: Features,
        /// What is there.
        present: Features,
    },
    /// Fork events are for the privileged.
    #[error(
        "forks of paged memory cannot be followed: EVENT_FORK needs CAP_SYS_PTRACE; run with it (root has it, or \
         `setcap cap_sys_ptrace+ep PROGRAM`), or do without fork"
    )]
    ForkNeedsPtrace,
    /// The descriptor is not a fresh userfaultfd.
    #[error("the descriptor is no userfaultfd, or its features were agreed before ({0})")]
    NotFresh(Errno),
    /// Something else.
    #[error("{doing} failed: {errno}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}
