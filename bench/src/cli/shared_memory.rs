//! Devices of DPDK's driver `net_memif`: memory that two processes share, as a link with two ends and nothing between
//! them. The processes meet at a socket, which the server makes; the memory has no name, and nothing of it is left.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_link::LinkConfig;
use cxloe_link::dpdk::look;

use super::Failure;

/// Longest path of a socket in bytes (unix(7): 108 with the final zero).
const PATH_MAX: usize = 107;
/// Longest name that a socket has in its folder, in bytes.
const NAME_MAX: usize = "/memif00.sock".len();

/// Number and address of the client's end by which [`SharedMemory::new`] tries the driver.
pub(super) const FIRST: u8 = 0;
pub(super) const FIRST_MAC: &str = "02:00:00:00:00:01";
/// Limit on the time until this process has noticed that the other end is gone.
const END_MAX: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The device that listens at a socket, and the one that connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// Memory between this process and others, with the sockets in one folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory<'a> {
    folder: &'a Path,
    /// MTU in bytes of all devices: their buffers hold frames of this length.
    mtu: u32,
}

impl<'a> SharedMemory<'a> {
    /// Makes devices with sockets in `folder` possible. Starts DPDK in this process, and tries its driver.
    ///
    /// # Errors
    /// A sentence on what is missing: the plug-in, the driver, or a shorter path.
    pub fn new(folder: &'a Path, mtu: u32) -> Result<SharedMemory<'a>, Failure> {
        let length = folder.as_os_str().len() + NAME_MAX;
        if length > PATH_MAX {
            let folder = folder.display();
            return Err(format!(
                "sockets in {folder} would have paths of {length} bytes, and {PATH_MAX} is the most there can be: set \
                 TMPDIR to a folder with a shorter path"
            )
            .into());
        }
        let memory = SharedMemory { folder, mtu };
        look(&memory.link(FIRST, Role::Client, FIRST_MAC)).map_err(|error| {
            format!(
                "{error}. This measures over DPDK's driver net_memif, which needs neither a card nor huge pages: `make dpdk` \
                 installs the driver (librte-net-memif) and builds the plug-in, the package cxloe-dpdk brings both"
            )
        })?;
        Ok(memory)
    }

    /// Name of an interface: an end of the memory with this number, with the MAC address `mac`. A process uses a
    /// number with one role and address only, because DPDK finds a device by its name, with its first arguments.
    pub fn interface(&self, number: u8, role: Role, mac: &str) -> String {
        let role = match role {
            Role::Server => "server",
            Role::Client => "client",
        };
        let (folder, mtu) = (self.folder.display(), self.mtu);
        format!(
            "dpdk:net_memif{number},role={role},socket={folder}/memif{number}.sock,socket-abstract=no,mac={mac},mtu={mtu}"
        )
    }

    /// Configuration of a link over that interface.
    pub fn link(&self, number: u8, role: Role, mac: &str) -> LinkConfig {
        LinkConfig::new(self.interface(number, role, mac))
    }

    /// MTU of all devices in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }
}

/// Waits until this process has noticed that the process at the other end, which has ended, is gone: a thread of DPDK
/// unmaps the memory then, and the device must neither receive nor be closed meanwhile. `is_up` tells whether an end
/// is there.
pub(super) fn wait_for_end(is_up: impl Fn() -> bool) {
    let until = Instant::now() + END_MAX;
    while is_up() && Instant::now() < until {
        thread::sleep(LOOK_EVERY);
    }
    // The device is down shortly before its memory is unmapped.
    thread::sleep(LOOK_EVERY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_meet_at_one_socket() {
        let memory = SharedMemory { folder: Path::new("/tmp/x"), mtu: 9000 };
        let server = memory.interface(1, Role::Server, "02:00:00:00:00:09");
        assert_eq!(
            server,
            "dpdk:net_memif1,role=server,socket=/tmp/x/memif1.sock,socket-abstract=no,mac=02:00:00:00:00:09,mtu=9000"
        );
        let client = memory.link(1, Role::Client, "02:00:00:00:00:01").interface;
        assert!(client.contains("role=client,socket=/tmp/x/memif1.sock,"), "{client}");
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let folder = format!("/{}", "x".repeat(PATH_MAX - NAME_MAX));
        let error = SharedMemory::new(Path::new(&folder), 1500).unwrap_err().to_string();
        assert!(error.contains("108 bytes") && error.contains("TMPDIR"), "{error}");
    }
}
