//! Settings that `cn-agent vm` passes to this process in its environment.

#![expect(unsafe_code, reason = "descriptors are inherited by number")]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use cxloe_member::socket::SocketPath;

#[derive(Debug)]
pub struct Settings {
    pub agent: SocketPath,
    /// Number of the region's space.
    pub space: u64,
    /// Longest wait for the successor of an agent that has ended.
    pub wait: Duration,
    /// Descriptor of the region's memory, to be passed to an agent's successor.
    pub memory: OwnedFd,
    /// Descriptor of the memory that this process inherited from `cn-agent vm`, possibly through wrapper
    /// programs.
    inherited: c_int,
    /// Device and inode of the region's memory, by which the monitor's own descriptors of it are recognised.
    identity: (u64, u64),
    /// `/dev/userfaultfd`, opened by the agent.
    pub device: Option<OwnedFd>,
}

/// Settings of this process; `None` if the library has nothing to do here.
pub fn settings() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    SETTINGS.get_or_init(read).as_ref()
}

fn read() -> Option<Settings> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let agent = std::env::var_os("CXLOE_VM_AGENT")?;
    // The descriptors are copied, because the monitor may close those it inherited.
    let inherited = number("CXLOE_VM_MEMORY")? as c_int;
    let memory = copy(inherited)?;
    Some(Settings {
        agent: SocketPath::new(agent.as_encoded_bytes())?,
        space: number("CXLOE_VM_SPACE")?,
        wait: Duration::from_millis(number("CXLOE_VM_WAIT_MS")?),
        identity: identity(std::os::fd::AsRawFd::as_raw_fd(&memory))?,
        memory,
        inherited,
        device: number("CXLOE_VM_DEVICE").and_then(|number| copy(number as c_int)),
    })
}

fn copy(number: c_int) -> Option<OwnedFd> {
    // SAFETY: the number is borrowed for one call, which fails if it is no open descriptor.
    let borrowed = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })?;
    borrowed.try_clone_to_owned().ok()
}

fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros are a valid value, which the kernel overwrites.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to a live value; a number that is no open descriptor gives an error.
    (unsafe { libc::fstat(fd, &mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

impl Settings {
    pub fn is_memory(&self, fd: c_int) -> bool {
        fd >= 0 && identity(fd) == Some(self.identity)
    }

    /// Has the descriptor that was mapped, and the one that was inherited, closed in programs that the
    /// monitor starts: a program that maps the memory without this library reads absent pages as zeros.
    pub fn keep_from_programs(&self, mapped: c_int) {
        for fd in [mapped, self.inherited] {
            // The monitor may have closed the inherited descriptor and use the number for another file.
            if self.is_memory(fd) {
                // SAFETY: plain values.
                unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        }
    }
}
