//! One network namespace, held by a file descriptor, and ways to enter it.
//!
//! A thread enters with `setns`; then the thread unshares its mount namespace and mounts a new sysfs over `/sys`,
//! because sysfs shows the interfaces of the namespace it was mounted from. The thread stays in both namespaces until
//! it ends. Sockets belong to the namespace in which they were made, whichever thread uses them later.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::LabError;

/// A network namespace of a lab. Clones refer to the same namespace, which exists as long as one of them.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: Arc<str>,
    descriptor: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes an empty namespace with loopback only and without IPv6, whose router solicitations and neighbour
    /// discovery would reach every raw socket in the lab.
    pub(crate) fn create(name: &str) -> Result<Self, LabError> {
        let failed = |step| move |source| LabError::Namespace { step, namespace: name.into(), source };
        let file = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from).map_err(failed("unshare"))?;
            for scope in ["all", "default"] {
                // The file is absent if the kernel has no IPv6, and read-only in some containers. The error is ignored,
                // because IPv6 only adds unwanted frames.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
            File::open("/proc/thread-self/ns/net").map_err(failed("opening /proc/thread-self/ns/net"))
        })?;
        Ok(Self { name: name.into(), descriptor: Arc::new(file.into()) })
    }

    /// Returns the namespace of the calling thread, to be called `name` in the lab.
    pub(crate) fn current(name: &str) -> Result<Self, LabError> {
        let step = "opening /proc/thread-self/ns/net";
        let failed = |source| LabError::Namespace { step, namespace: name.into(), source };
        let file = File::open("/proc/thread-self/ns/net").map_err(failed)?;
        Ok(Self { name: name.into(), descriptor: Arc::new(file.into()) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into this namespace for good, with a `/sys` that shows the namespace's
    /// interfaces. Threads that the calling thread starts afterwards are inside as well; other threads of the
    /// process stay where they are.
    ///
    /// # Errors
    /// Returns [`LabError::Namespace`] when the kernel refuses; the thread may then have entered only one of the
    /// namespaces, and should end.
    pub fn join(&self) -> Result<(), LabError> {
        self.join_network()?;
        mount_own_sysfs().map_err(|e| self.failed("mounting its own /sys", e.into()))
    }

    /// Runs `work` on a new thread inside this namespace and waits for its result. A panic in `work` is resumed in the
    /// caller.
    ///
    /// # Errors
    /// Returns [`LabError::Namespace`] when the thread cannot enter; `work` has then not run.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        on_a_thread(|| self.join().map(|()| work()))
    }

    /// Starts a named thread inside this namespace, and does not wait for its end. The thread's result is an
    /// error if the thread could not enter the namespace.
    ///
    /// # Errors
    /// Returns [`LabError::Namespace`] when no thread could be started.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        let namespace = self.clone();
        thread::Builder::new()
            .name(name.into())
            .spawn(move || namespace.join().map(|()| work()))
            .map_err(|e| self.failed("starting a thread", e))
    }

    /// Runs `work` like [`Namespace::enter`], but faster, because no new `/sys` is mounted: `/sys` still shows the
    /// caller's interfaces.
    pub(crate) fn enter_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        on_a_thread(|| self.join_network().map(|()| work()))
    }

    /// Returns a path by which other programs of the same user can open this namespace while this process
    /// lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.descriptor.as_raw_fd())
    }

    /// Names the namespace by a mount at the new file `place`. Only `ip netns` and processes in the same
    /// mount namespace see the name.
    pub(crate) fn give_name(&self, place: &Path) -> Result<(), LabError> {
        File::create(place).map_err(|e| self.failed("making its name", e))?;
        mount(Some(self.path().as_str()), place, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| self.failed("mounting its name", e.into()))
    }

    fn join_network(&self) -> Result<(), LabError> {
        setns(self, CloneFlags::CLONE_NEWNET).map_err(|e| self.failed("setns", e.into()))
    }

    fn failed(&self, step: &'static str, source: io::Error) -> LabError {
        LabError::Namespace { step, namespace: self.name.to_string(), source }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Gives the caller (a thread, or a process between fork and exec) a mount namespace of its own in which `/sys` shows
/// its network namespace. Makes system calls only: no allocation, no lock.
pub(crate) fn mount_own_sysfs() -> nix::Result<()> {
    const NONE: Option<&CStr> = None;
    let sysfs = |extra| {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | extra;
        mount(Some(c"sysfs"), c"/sys", Some(c"sysfs"), flags, NONE)
    };
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts made by this process must stay invisible outside; later mounts outside may appear inside.
    mount(NONE, c"/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
    // If /sys is read-only (containers), a user namespace may only mount it read-only.
    match sysfs(MsFlags::empty()) {
        // EBUSY: the existing mount already shows this namespace, as in the initial namespace.
        Err(Errno::EBUSY) => Ok(()),
        Err(_) => sysfs(MsFlags::MS_RDONLY),
        Ok(()) => Ok(()),
    }
}

/// Runs `work` on a new thread, so that changes of its namespaces end with the thread.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
