//! Busy polling: the thread that waits for frames executes the driver's receive path (NAPI).
//!
//! Busy polling needs a NAPI instance for the socket. The kernel assigns one at bind for zero copy and, since 6.16, for
//! drivers that publish their queues; before 6.13, on the first frame. Without an instance (veth on recent kernels),
//! each attempt costs a system call without effect. So the code checks for an instance, and does not use busy polling
//! if there is none.

#![expect(unsafe_code, reason = "recvfrom takes raw pointers")]

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::socket::{get_option, set_option};

const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// Maximum time of one poll by the kernel, in microseconds.
const BUSY_POLL_US: libc::c_int = 20;
/// Maximum number of frames that the kernel takes in one call.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// State of busy polling of an AF_XDP socket.
pub(super) enum BusyPoll {
    /// Not requested, or without effect on this interface.
    Off,
    /// Wanted; the first frame will show whether the socket has a NAPI instance.
    Unknown(String),
    /// In use. Dropping the value restores the interface's interrupt settings.
    On(#[allow(dead_code, reason = "held to be dropped")] InterfaceSettings),
}

impl BusyPoll {
    /// Asks the kernel for busy polling on a bound socket, if `wanted`.
    pub fn start(wanted: bool, socket: &OwnedFd, interface: &str) -> BusyPoll {
        let option = |name, value: libc::c_int| set_option(socket, libc::SOL_SOCKET, name, &value).is_ok();
        let taken = wanted
            && option(SO_PREFER_BUSY_POLL, 1)
            && option(libc::SO_BUSY_POLL, BUSY_POLL_US)
            && option(SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET);
        match taken {
            false => BusyPoll::Off,
            true if napi_id(socket) != 0 => BusyPoll::On(InterfaceSettings::apply(interface)),
            true => BusyPoll::Unknown(interface.to_owned()),
        }
    }

    /// Executes the receive path once. Returns `false` if this socket is not busy-polled.
    #[inline]
    pub fn poll(&self, socket: &OwnedFd) -> bool {
        if !matches!(self, BusyPoll::On(_)) {
            return false;
        }
        // SAFETY: the call gets no buffer; for an AF_XDP socket it only executes the driver's receive path.
        unsafe {
            libc::recvfrom(
                socket.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        true
    }

    /// Records that frames have arrived. The first ones show whether the socket has a NAPI instance, so the state is
    /// not unknown any more.
    #[inline]
    pub fn received(&mut self, socket: &OwnedFd) {
        if let BusyPoll::Unknown(interface) = self {
            *self = match napi_id(socket) {
                0 => {
                    tracing::info!(%interface, "busy polling off: the kernel gives this socket no NAPI instance");
                    BusyPoll::Off
                }
                _ => BusyPoll::On(InterfaceSettings::apply(interface)),
            };
        }
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BusyPoll::Off => "no busy polling",
            BusyPoll::Unknown(_) => "busy polling if the kernel can",
            BusyPoll::On(_) => "prefer-busy-poll",
        })
    }
}

/// Number of the NAPI instance that the kernel has assigned to the socket; 0 if there is none.
fn napi_id(socket: &OwnedFd) -> u32 {
    get_option(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).unwrap_or(0)
}

/// Interface settings by which only the polling thread executes the receive path. Dropping the value restores the
/// former settings.
pub(super) struct InterfaceSettings {
    before: Vec<(PathBuf, String)>,
}

impl InterfaceSettings {
    fn apply(interface: &str) -> InterfaceSettings {
        let mut before = Vec::new();
        for (file, value) in [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")] {
            let path = PathBuf::from(format!("/sys/class/net/{interface}/{file}"));
            match std::fs::read_to_string(&path).and_then(|old| std::fs::write(&path, value).map(|()| old)) {
                Ok(old) => before.push((path, old)),
                // This setting is optional: without it, the interface only raises an occasional interrupt.
                Err(e) => tracing::debug!(path = %path.display(), value, %e, "interface setting not changed"),
            }
        }
        InterfaceSettings { before }
    }
}

impl Drop for InterfaceSettings {
    fn drop(&mut self) {
        for (path, old) in &self.before {
            // An error is ignored: the interface then keeps the settings for polling, and only raises fewer interrupts
            // than before.
            let _ = std::fs::write(path, old.trim());
        }
    }
}
