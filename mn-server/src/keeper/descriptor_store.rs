//! Descriptor store of the service manager: descriptors that systemd keeps for a service across its restarts
//! (`FileDescriptorStoreMax=` of the unit; systemd.service(5), sd_notify(3)).

#![expect(unsafe_code, reason = "systemd passes descriptors by number")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use sd_notify::NotifyState;

/// Name of the pool's memory in the descriptor store.
const NAME: &str = "cxloe-pool";

/// Whether a service manager with a notification socket has started this process.
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// Takes the pool's memory that the store has passed to this process. Call once.
pub fn take() -> Vec<OwnedFd> {
    let Ok(passed) = sd_notify::listen_fds_with_names() else { return Vec::new() };
    let ours = passed.filter(|(_, name)| name == NAME);
    // SAFETY: the service manager has passed these descriptors to this process, which the variables name (LISTEN_PID).
    // This is called once, so no other code owns them.
    ours.map(|(descriptor, _)| unsafe { OwnedFd::from_raw_fd(descriptor) }).collect()
}

pub fn store(memory: BorrowedFd<'_>) -> io::Result<()> {
    sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(NAME)], &[memory])
}

pub fn remove() {
    if let Err(error) = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(NAME)]) {
        tracing::warn!(%error, "the service manager still keeps the pool's memory");
    }
}
