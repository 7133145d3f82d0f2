//! One network namespace, held by a file descriptor, and the ways into it.
//!
//! A thread comes in with `setns`; after that it unshares its mount namespace and mounts a new sysfs over `/sys`,
//! because sysfs shows the interfaces of the namespace it was mounted from. Both last until the thread ends. Sockets
//! made inside stay inside, whichever thread uses them later.

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

/// A network namespace of a lab. Clones share the same namespace.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: Arc<str>,
    descriptor: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a new, empty namespace with loopback only, without IPv6 (whose router solicitations and neighbour
    /// discovery would be seen by every raw socket in the lab).
    pub(crate) fn create(name: &str) -> Result<Self, LabError> {
        let failed = |step| move |source| LabError::Namespace { step, namespace: name.into(), source };
        let file = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from).map_err(failed("unshare"))?;
            for scope in ["all", "default"] {
                // Absent when the kernel has no IPv6, read-only in some containers; noise is then all that is lost.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
            File::open("/proc/thread-self/ns/net").map_err(failed("opening /proc/thread-self/ns/net"))
        })?;
        Ok(Self { name: name.into(), descriptor: Arc::new(file.into()) })
    }

    /// The namespace that the calling thread is in.
    pub(crate) fn current(name: &str) -> Result<Self, LabError> {
        let step = "opening /proc/thread-self/ns/net";
        let failed = |source| LabError::Namespace { step, namespace: name.into(), source };
        let file = File::open("/proc/thread-self/ns/net").map_err(failed)?;
        Ok(Self { name: name.into(), descriptor: Arc::new(file.into()) })
    }

    /// The name it has in its lab; nothing outside the lab knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into this namespace for the rest of its life, with a `/sys` of the namespace's own.
    /// Threads it starts from then on are inside too; the other threads of the process stay where they are.
    ///
    /// # Errors
    /// [`LabError::Namespace`] when the kernel refuses; the thread may then be half-way in and should end.
    pub fn join(&self) -> Result<(), LabError> {
        self.join_network()?;
        mount_own_sysfs().map_err(|e| self.failed("mounting its own /sys", e.into()))
    }

    /// Runs `work` on a new thread inside this namespace and waits for its result. A panic in `work` goes on in the
    /// caller.
    ///
    /// # Errors
    /// [`LabError::Namespace`] when the thread cannot get in; `work` has then not run.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        on_a_thread(|| self.join().map(|()| work()))
    }

    /// Starts a named thread inside this namespace that runs on its own.
    ///
    /// The thread's own result is an error when it could not get in.
    ///
    /// # Errors
    /// [`LabError::Namespace`] when no thread could be started.
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

    /// Like [`Namespace::enter`], for work that does not look at `/sys`.
    pub(crate) fn enter_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        on_a_thread(|| self.join_network().map(|()| work()))
    }

    /// A path by which other programs of the same user can name this namespace while this process lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.descriptor.as_raw_fd())
    }

    /// Gives it a name at `place`, a file that is made, for `ip netns` and others who see this process's mounts.
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
/// its network namespace. Does system calls only: no allocation, no lock.
pub(crate) fn mount_own_sysfs() -> nix::Result<()> {
    const NONE: Option<&CStr> = None;
    let sysfs = |extra| {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | extra;
        mount(Some(c"sysfs"), c"/sys", Some(c"sysfs"), flags, NONE)
    };
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts made here must not show outside; those made outside later may show here.
    mount(NONE, c"/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
    // Where /sys is read-only (containers), a user namespace may mount it read-only only.
    match sysfs(MsFlags::empty()) {
        // The one that is there shows this namespace already, as in the namespace the system started with.
        Err(Errno::EBUSY) => Ok(()),
        Err(_) => sysfs(MsFlags::MS_RDONLY),
        Ok(()) => Ok(()),
    }
}

/// Runs `work` on a thread of its own, so that what it does to its namespaces ends with it.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
