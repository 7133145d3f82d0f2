//! What `cn-agent vm` tells this process, by its environment.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use cxloe_member::socket::SocketPath;

/// What a process needs to know.
#[derive(Debug)]
pub struct Settings {
    /// The agent's socket.
    pub agent: SocketPath,
    /// The region's space.
    pub space: u64,
    /// How long to wait for an agent that has ended.
    pub wait: Duration,
    /// An own descriptor of the region's memory, for an agent's successor.
    pub memory: OwnedFd,
    /// Device and inode of that memory, by which the monitor's own descriptors of it are known.
    identity: (u64, u64),
    /// `/dev/userfaultfd`, as the agent has opened it.
    pub device: Option<OwnedFd>,
}

/// Those of this process; `None`: none of its mappings are of concern here.
pub fn settings() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    SETTINGS.get_or_init(read).as_ref()
}

fn read() -> Option<Settings> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let agent = std::env::var_os("CXLOE_VM_AGENT")?;
    // Copies of our own: the monitor's are the monitor's to close.
    let memory = copy(number("CXLOE_VM_MEMORY")? as c_int)?;
    Some(Settings {
        agent: SocketPath::new(agent.as_encoded_bytes())?,
        space: number("CXLOE_VM_SPACE")?,
        wait: Duration::from_millis(number("CXLOE_VM_WAIT_MS")?),
        identity: identity(std::os::fd::AsRawFd::as_raw_fd(&memory))?,
        memory,
        device: number("CXLOE_VM_DEVICE").and_then(|number| copy(number as c_int)),
    })
}

fn copy(number: c_int) -> Option<OwnedFd> {
    // SAFETY: the number is borrowed for one call, which fails on what is no descriptor.
    let borrowed = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })?;
    borrowed.try_clone_to_owned().ok()
}

fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros are a valid value, which the kernel overwrites.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live value to write to; what is no descriptor is an error.
    (unsafe { libc::fstat(fd, &mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

impl Settings {
    /// Whether this descriptor is of the region's memory.
    pub fn is_memory(&self, fd: c_int) -> bool {
        fd >= 0 && identity(fd) == Some(self.identity)
    }
}
