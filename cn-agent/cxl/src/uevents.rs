//! Events that start a scan of sysfs: the kernel announces a device, a caller wakes the monitor, or the interval is
//! over. Announcements do not reach every container, and there are none for a root other than the real sysfs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// Netlink multicast group of the kernel's announcements; udev sends to another group.
const KERNEL: u32 = 1;
/// Maximum length of an announcement in bytes.
const ANNOUNCEMENT_MAX: usize = 8192;
/// Maximum number of announcements taken by one call.
const ANNOUNCEMENTS_MAX: usize = 256;
/// Subsystems whose announcements start a scan.
const SUBSYSTEMS: [&[u8]; 3] = [b"SUBSYSTEM=dax", b"SUBSYSTEM=cxl", b"SUBSYSTEM=nd"];

/// Handle by which other threads end a wait of the monitor.
#[derive(Clone, Debug)]
pub struct MonitorWaker(Arc<EventFd>);

impl MonitorWaker {
    /// Makes [`UeventMonitor::wait`] return.
    pub fn wake(&self) {
        // If the counter is full, `wait` returns anyway.
        let _ = self.0.write(1);
    }
}

/// Waits for events that start a scan.
#[derive(Debug)]
pub struct UeventMonitor {
    woken: Arc<EventFd>,
    announcements: Option<OwnedFd>,
}

impl UeventMonitor {
    /// Opens the netlink socket for announcements.
    ///
    /// # Errors
    /// The waker's descriptor cannot be opened. A failure to open the netlink socket is only logged.
    pub fn listen() -> io::Result<(UeventMonitor, MonitorWaker)> {
        let woken = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let announcements = announcements().inspect_err(|error| {
            tracing::debug!(%error, "cannot receive the kernel's announcements of devices; scanning periodically instead");
        });
        Ok((
            UeventMonitor { woken: Arc::clone(&woken), announcements: announcements.ok() },
            MonitorWaker(woken),
        ))
    }

    /// Waits for an event that starts a scan, at most for `most`.
    pub fn wait(&self, most: Duration) {
        let woken = PollFd::new(self.woken.as_fd(), PollFlags::POLLIN);
        let heard = self.announcements.as_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = [woken].into_iter().chain(heard).collect();
        let until = std::time::Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, timeout) {
                Ok(0) => return,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for announcements of devices");
                    std::thread::sleep(left);
                    return;
                }
                Ok(_) => {}
            }
            let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
            if ready(&fds[0]) {
                let _ = self.woken.read();
                return;
            }
            if fds.get(1).is_some_and(ready) && self.take_announcements() {
                return;
            }
        }
    }

    /// Takes the waiting announcements; returns whether one concerns a device of [`SUBSYSTEMS`].
    fn take_announcements(&self) -> bool {
        let Some(fd) = &self.announcements else { return false };
        let mut bytes = [0; ANNOUNCEMENT_MAX];
        let mut matters = false;
        for _ in 0..ANNOUNCEMENTS_MAX {
            match recv(fd.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => matters |= is_of_ours(&bytes[..length]),
                Err(Errno::EAGAIN) => return matters,
                // Announcements were lost, and one of them may have concerned such a device.
                Err(_) => matters = true,
            }
        }
        matters
    }
}

fn announcements() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkKObjectUEvent)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
    Ok(fd)
}

/// Whether an announcement, made of texts between zero bytes, concerns a device of [`SUBSYSTEMS`].
fn is_of_ours(announcement: &[u8]) -> bool {
    announcement.split(|byte| *byte == 0).any(|part| SUBSYSTEMS.contains(&part))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn announcements_are_distinguished() {
        let dax =
            b"add@/devices/platform/x/dax0.0\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=dax\0SEQNUM=1\0";
        assert!(is_of_ours(dax));
        assert!(is_of_ours(b"bind@/x\0SUBSYSTEM=nd"));
        for other in
            [&b"add@/x\0SUBSYSTEM=net\0INTERFACE=SUBSYSTEM=daxes\0"[..], b"", b"\0\0", b"SUBSYSTEM=da"]
        {
            assert!(!is_of_ours(other));
        }
    }

    #[test]
    fn a_nudge_ends_the_wait_and_so_does_time() {
        let (monitor, waker) = UeventMonitor::listen().unwrap();
        waker.wake();
        let long = Duration::from_secs(60);
        let begun = Instant::now();
        monitor.wait(long);
        assert!(begun.elapsed() < long);
        // The first wait has consumed the wake-up; the time limit ends the second.
        monitor.wait(Duration::from_millis(5));
        std::thread::spawn(move || waker.wake());
        monitor.wait(long);
    }
}
