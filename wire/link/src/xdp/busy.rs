//! Busy polling: the thread that waits for frames runs the driver's receive path (NAPI) itself.
//!
//! It works only where the kernel has tied the socket to a NAPI instance: at bind for zero copy and, since
//! 6.16, for drivers that publish their queues; on the first frame for kernels before 6.13. Where it has
//! not (veth on recent kernels), asking costs a system call per look and brings nothing, so the answer is
//! checked and busy polling left off.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::socket::{get_option, set_option};

const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// How long the kernel may poll in one call, in microseconds.
const BUSY_POLL_US: libc::c_int = 20;
/// Frames it may take in one call.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// Whether, and how, an AF_XDP socket busy-polls.
pub(super) enum BusyPoll {
    /// Not asked for, or of no use here.
    Off,
    /// Asked for; the first frame will tell whether the socket knows its NAPI instance.
    Unknown(String),
    /// In use. Interface settings that keep interrupts away are put back when this is dropped.
    On(#[allow(dead_code, reason = "held to be dropped")] Settings),
}

impl BusyPoll {
    /// Asks for busy polling on a bound socket, if `wanted`.
    pub fn start(wanted: bool, socket: &OwnedFd, interface: &str) -> BusyPoll {
        let option = |name, value: libc::c_int| set_option(socket, libc::SOL_SOCKET, name, &value).is_ok();
        let taken = wanted
            && option(SO_PREFER_BUSY_POLL, 1)
            && option(libc::SO_BUSY_POLL, BUSY_POLL_US)
            && option(SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET);
        match taken {
            false => BusyPoll::Off,
            true if napi_id(socket) != 0 => BusyPoll::On(Settings::apply(interface)),
            true => BusyPoll::Unknown(interface.to_owned()),
        }
    }

    /// Runs the receive path once; `false` if that is not how this socket gets its frames.
    #[inline]
    pub fn poll(&self, socket: &OwnedFd) -> bool {
        if !matches!(self, BusyPoll::On(_)) {
            return false;
        }
        // SAFETY: no buffer: for an AF_XDP socket this only runs the driver's receive path.
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

    /// To be called when frames have arrived: the first of them decides what was unknown.
    #[inline]
    pub fn received(&mut self, socket: &OwnedFd) {
        if let BusyPoll::Unknown(interface) = self {
            *self = match napi_id(socket) {
                0 => {
                    tracing::info!(%interface, "busy polling off: the kernel gives this socket no NAPI instance");
                    BusyPoll::Off
                }
                _ => BusyPoll::On(Settings::apply(interface)),
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

/// The NAPI instance the kernel has tied the socket to, 0 if none.
fn napi_id(socket: &OwnedFd) -> u32 {
    get_option(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).unwrap_or(0)
}

/// Interface settings that leave the receive path to whoever polls; what they were is put back on drop.
pub(super) struct Settings {
    before: Vec<(PathBuf, String)>,
}

impl Settings {
    fn apply(interface: &str) -> Settings {
        let mut before = Vec::new();
        for (file, value) in [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")] {
            let path = PathBuf::from(format!("/sys/class/net/{interface}/{file}"));
            match std::fs::read_to_string(&path).and_then(|old| std::fs::write(&path, value).map(|()| old)) {
                Ok(old) => before.push((path, old)),
                // Advice only: without it interrupts come in between now and then.
                Err(e) => tracing::debug!(path = %path.display(), value, %e, "interface setting not changed"),
            }
        }
        Settings { before }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, old) in &self.before {
            let _ = std::fs::write(path, old.trim());
        }
    }
}
