//! Support of userfaultfd by this kernel for this user. It is probed once at the start, so that missing support is
//! reported before a program depends on it.

use super::{Features, Ioctls, OpenError, Uffd, scan};

/// Faults that a userfaultfd of this user can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// Faults of user mode, and of the kernel in system calls.
    AllFaults,
    /// Faults of user mode only; [`Probe::limit`] gives the reason.
    UserFaultsOnly,
}

/// Support for userfaultfd that the probe has found.
#[derive(Debug)]
pub struct Probe {
    /// All features of this kernel. EVENT_FORK needs CAP_SYS_PTRACE in addition.
    pub features: Features,
    /// Operations on a userfaultfd that this kernel supports.
    pub ioctls: Ioctls,
    /// Faults that can be served for this user.
    pub way: FaultScope,
    /// Reason why faults of the kernel cannot be served; `None` if they can.
    pub limit: Option<OpenError>,
    /// Whether written pages can be found by [`scan`].
    pub scan: bool,
}

/// Probes the kernel with a userfaultfd, which is closed afterwards.
pub fn probe() -> Result<Probe, OpenError> {
    let (uffd, way, limit) = match Uffd::create() {
        Ok(uffd) => (uffd, FaultScope::AllFaults, None),
        Err(limit @ OpenError::Forbidden { .. }) => match Uffd::create_user_only() {
            Ok(uffd) => (uffd, FaultScope::UserFaultsOnly, Some(limit)),
            Err(_) => return Err(limit),
        },
        Err(other) => return Err(other),
    };
    let (features, ioctls) = uffd.ask()?;
    Ok(Probe { features, ioctls, way, limit, scan: scan::is_supported() })
}

impl Probe {
    /// Checks that the kernel has all of `features`; the error names the missing ones and the kernel release that has
    /// them.
    pub fn require(&self, features: Features) -> Result<(), OpenError> {
        let missing = features - self.features;
        if missing.is_empty() { Ok(()) } else { Err(OpenError::Missing { missing, present: self.features }) }
    }
}
