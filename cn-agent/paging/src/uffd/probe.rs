//! What this kernel offers this user: asked once at start, so that what is missing is said before a program depends
//! on it.

use super::{Features, Ioctls, OpenError, Uffd, scan};

/// How a userfaultfd is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// For all faults.
    AllFaults,
    /// For faults of user mode alone; why not for all of them is in [`Probe::limit`].
    UserFaultsOnly,
}

/// What there is.
#[derive(Debug)]
pub struct Probe {
    /// Every feature of this kernel. EVENT_FORK among them still needs CAP_SYS_PTRACE.
    pub features: Features,
    /// What may be done to a userfaultfd.
    pub ioctls: Ioctls,
    /// How one is to be had.
    pub way: Way,
    /// Why one for all faults is not, if so.
    pub limit: Option<OpenError>,
    /// Whether written pages can be found by [`scan`].
    pub scan: bool,
}

/// Asks the kernel, with a userfaultfd that is closed again.
pub fn probe() -> Result<Probe, OpenError> {
    let (uffd, way, limit) = match Uffd::create() {
        Ok(uffd) => (uffd, Way::AllFaults, None),
        Err(limit @ OpenError::Forbidden { .. }) => match Uffd::create_user_only() {
            Ok(uffd) => (uffd, Way::UserFaultsOnly, Some(limit)),
            Err(_) => return Err(limit),
        },
        Err(other) => return Err(other),
    };
    let (features, ioctls) = uffd.ask()?;
    Ok(Probe { features, ioctls, way, limit, scan: scan::is_supported() })
}

impl Probe {
    /// Whether all of `features` are there; else an error that names those that are not and the kernel to have.
    pub fn require(&self, features: Features) -> Result<(), OpenError> {
        let missing = features - self.features;
        if missing.is_empty() { Ok(()) } else { Err(OpenError::Missing { missing, present: self.features }) }
    }
}
