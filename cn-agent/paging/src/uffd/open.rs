//! Opening a userfaultfd and negotiating its features.

#![expect(unsafe_code, reason = "userfaultfd and its ioctls return raw descriptors")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{O_CLOEXEC, O_NONBLOCK, c_int};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;

use crate::descriptor_kinds::is_userfaultfd;

use super::{Features, Ioctls, OpenError, Uffd, abi, probe};

/// Device that gives userfaultfds to users who may open it (Linux 6.1).
const DEVICE: &str = "/dev/userfaultfd";

impl Uffd {
    /// A userfaultfd for the memory of this process and for all faults, including those of the kernel in
    /// system calls. It is made by the system call or, if that is refused, by `/dev/userfaultfd`.
    pub fn create() -> Result<Uffd, OpenError> {
        let call = match by_call(0) {
            Err(errno @ (Errno::EPERM | Errno::ENOSYS)) => errno,
            Err(errno) => return Err(OpenError::Os { doing: "userfaultfd(2)", errno }),
            Ok(uffd) => return Ok(uffd),
        };
        match open(DEVICE, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(device) => Uffd::create_from(device.as_fd()),
            Err(_) if call == Errno::ENOSYS => Err(OpenError::NoKernelSupport),
            Err(device) => Err(OpenError::Forbidden { device, call }),
        }
    }

    /// A userfaultfd for the memory of this process that serves only faults of user mode, for which no privilege is
    /// needed: a system call that accesses an absent page fails with EFAULT.
    pub fn create_user_only() -> Result<Uffd, OpenError> {
        by_call(abi::USER_MODE_ONLY).map_err(|errno| match errno {
            Errno::ENOSYS => OpenError::NoKernelSupport,
            errno => OpenError::Os { doing: "userfaultfd(2) with UFFD_USER_MODE_ONLY", errno },
        })
    }

    /// A userfaultfd for the memory of this process and for all faults, made from an open `/dev/userfaultfd`. Another
    /// process that may open the device can pass its descriptor to this process.
    pub fn create_from(device: BorrowedFd<'_>) -> Result<Uffd, OpenError> {
        let flags = O_CLOEXEC | O_NONBLOCK;
        // SAFETY: the request takes flags by value and touches no memory.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), abi::NEW, flags) };
        match Errno::result(made) {
            // SAFETY: the kernel has just made this descriptor; nothing else owns it.
            Ok(fd) => Ok(Uffd::new(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(errno) => Err(OpenError::Os { doing: "USERFAULTFD_IOC_NEW on /dev/userfaultfd", errno }),
        }
    }

    /// Wraps a userfaultfd of another process, or of a fork event, and sets it non-blocking.
    ///
    /// # Errors
    /// [`OpenError::NotOne`] for any other descriptor, because a read from it might block for ever.
    pub fn from_fd(fd: OwnedFd) -> Result<Uffd, OpenError> {
        if !is_userfaultfd(&fd) {
            let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            return Err(OpenError::NotOne(kind.to_string_lossy().into_owned()));
        }
        let uffd = Uffd::new(fd);
        uffd.set_nonblocking()?;
        Ok(uffd)
    }

    /// Sets the descriptor non-blocking; returns whether it was blocking before.
    ///
    /// # Errors
    /// [`OpenError::Os`].
    pub fn set_nonblocking(&self) -> Result<bool, OpenError> {
        let failed = |errno| OpenError::Os { doing: "setting a userfaultfd not to block", errno };
        let flags = OFlag::from_bits_retain(fcntl(&self.fd, FcntlArg::F_GETFL).map_err(failed)?);
        if flags.contains(OFlag::O_NONBLOCK) {
            return Ok(false);
        }
        fcntl(&self.fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(true)
    }

    /// Negotiates `features` with the kernel. This has to be the first operation, and can be done only once. Not needed
    /// for a userfaultfd from another process, which has made the handshake, or from a fork event, which has the
    /// features of the parent's. Returns the operations on the descriptor itself.
    pub fn handshake(&self, features: Features) -> Result<Ioctls, OpenError> {
        let mut api = abi::Api { api: abi::API_VERSION, features: features.bits(), ioctls: 0 };
        // SAFETY: the request reads and writes nothing but its argument.
        match unsafe { abi::ioctl(self.as_fd(), abi::API, &mut api) } {
            Ok(_) => Ok(Ioctls::from_bits_retain(api.ioctls)),
            Err(Errno::EPERM) if features.contains(Features::EVENT_FORK) => Err(OpenError::ForkNeedsPtrace),
            Err(errno @ (Errno::EINVAL | Errno::ENOTTY)) => match probe() {
                Ok(probe) if !probe.features.contains(features) => {
                    Err(OpenError::Missing { missing: features - probe.features, present: probe.features })
                }
                _ => Err(OpenError::NotFresh(errno)),
            },
            Err(errno) => Err(OpenError::Os { doing: "the handshake with userfaultfd (UFFDIO_API)", errno }),
        }
    }

    /// Makes a handshake without features. Returns the kernel's features, and leaves the userfaultfd without any.
    pub(super) fn ask(&self) -> Result<(Features, Ioctls), OpenError> {
        let mut api = abi::Api { api: abi::API_VERSION, features: 0, ioctls: 0 };
        // SAFETY: the request reads and writes nothing but its argument.
        match unsafe { abi::ioctl(self.as_fd(), abi::API, &mut api) } {
            Ok(_) => Ok((Features::from_bits_retain(api.features), Ioctls::from_bits_retain(api.ioctls))),
            Err(errno) => {
                Err(OpenError::Os { doing: "asking userfaultfd for its features (UFFDIO_API)", errno })
            }
        }
    }

    pub fn try_clone(&self) -> Result<Uffd, OpenError> {
        let copied = fcntl(&self.fd, FcntlArg::F_DUPFD_CLOEXEC(3));
        let fd = copied.map_err(|errno| OpenError::Os { doing: "duplicating a userfaultfd", errno })?;
        // SAFETY: the kernel has just made this descriptor; nothing else owns it.
        Ok(Uffd::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

fn by_call(flags: c_int) -> Result<Uffd, Errno> {
    // SAFETY: the call takes flags by value and touches no memory.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags) };
    // SAFETY: the kernel has just made this descriptor; nothing else owns it.
    Errno::result(made).map(|fd| Uffd::new(unsafe { OwnedFd::from_raw_fd(fd as c_int) }))
}
