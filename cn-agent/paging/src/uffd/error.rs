//! Errors of operations on pages, and of opening a userfaultfd.

use nix::errno::Errno;

use super::Features;

/// Error of an operation on pages. Small and `Copy`, because it occurs in code that must not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UffdError {
    /// The address space is changing (EAGAIN): an event has not been read yet, or the thread that caused the event has
    /// not continued yet.
    #[error("the address space is just changing; read the events of the userfaultfd, then try again")]
    Again,
    /// The page is present already (EEXIST).
    #[error("a page is there already; wake the threads that wait for it")]
    Exists,
    /// The process that owned the memory has ended (ESRCH).
    #[error("the process that this memory belonged to has ended")]
    Gone,
    /// The range is not whole pages of one registered mapping (ENOENT, EINVAL): it was unmapped meanwhile,
    /// was never registered for these faults, or does not begin and end at page boundaries.
    #[error("no mapping registered for this covers the range, or the range is not whole pages")]
    NotMapped,
    /// The memory file lacks the page to be mapped (EFAULT of [`continue_`](super::Uffd::continue_)).
    #[error("the file has no page there to map; write it through another mapping of the file first")]
    NoPage,
    /// The page is pinned, or shared with a forked child ([`move_`](super::Uffd::move_)); or the range is registered
    /// with another userfaultfd ([`register`](super::Uffd::register)) (EBUSY).
    #[error(
        "the page is in use elsewhere: pinned for I/O, shared with a forked child, or another userfaultfd's"
    )]
    Busy,
    /// Any other error.
    #[error("userfaultfd: {doing} failed: {errno}")]
    Os { doing: &'static str, errno: Errno },
}

impl UffdError {
    /// Meaning of `errno` for an operation on pages.
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

/// Reason why there is no userfaultfd, or none with the requested features.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("what was handed over as a userfaultfd is {0:?}")]
    NotOne(String),
    /// This user may create a userfaultfd neither by the system call nor by the device.
    #[error(
        "this user may not handle page faults: /dev/userfaultfd cannot be opened ({device}) and userfaultfd(2) is \
         refused ({call}); as root, let the user in with `setfacl -m u:USER:rw /dev/userfaultfd` (Linux 6.1 and newer) \
         or for all users with `sysctl -w vm.unprivileged_userfaultfd=1`, or run with CAP_SYS_PTRACE"
    )]
    Forbidden {
        /// Error of opening `/dev/userfaultfd`.
        device: Errno,
        /// Error of `userfaultfd(2)`.
        call: Errno,
    },
    #[error(
        "this kernel has no userfaultfd (CONFIG_USERFAULTFD); use one that has, as those of all distributions"
    )]
    NoKernelSupport,
    #[error(
        "this kernel's userfaultfd lacks {}, which Linux {}.{} and newer have; it has {}",
        missing.names(), missing.since().0, missing.since().1, present.names()
    )]
    Missing {
        /// Requested features that the kernel lacks.
        missing: Features,
        present: Features,
    },
    /// The process lacks the privilege that fork events require.
    #[error(
        "forks of paged memory cannot be followed: EVENT_FORK needs CAP_SYS_PTRACE; run with it (root has it, or \
         `setcap cap_sys_ptrace+ep PROGRAM`), or do without fork"
    )]
    ForkNeedsPtrace,
    /// The descriptor is not a fresh userfaultfd.
    #[error("the descriptor is no userfaultfd, or its features were agreed before ({0})")]
    NotFresh(Errno),
    /// Any other error.
    #[error("{doing} failed: {errno}")]
    Os { doing: &'static str, errno: Errno },
}
