//! Facts from a driver by the ioctl SIOCETHTOOL: structures of 32-bit words whose first is the command, filled in
//! place.

#![expect(unsafe_code, reason = "SIOCETHTOOL takes raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Coalescing, Queues, Rings};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const GFLAGS: u32 = 0x25;
const GCHANNELS: u32 = 0x3c;
/// Flag of large receive offload (ETH_FLAG_LRO): the interface merges received frames.
const FLAG_LRO: u32 = 1 << 15;

/// Socket and interface name for ethtool requests.
pub struct Ethtool {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Ethtool {
    /// Prepares to ask about `interface`, in this thread's network namespace.
    pub fn open(interface: &str) -> io::Result<Ethtool> {
        let mut name = [0; libc::IFNAMSIZ];
        if interface.len() >= name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: plain socket creation; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor and nothing else owns it.
        Ok(Ethtool { socket: unsafe { OwnedFd::from_raw_fd(socket) }, name })
    }

    pub fn driver(&self) -> Option<String> {
        // struct ethtool_drvinfo, 196 bytes: the name is 32 bytes after the command.
        let words = self.ask::<49>(GDRVINFO)?;
        let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Settings of interrupt moderation; `None` if the driver does not show them.
    pub fn coalescing(&self) -> Option<Coalescing> {
        // struct ethtool_coalesce: 23 words.
        let words = self.ask::<23>(GCOALESCE)?;
        Some(Coalescing { rx_usecs: words[1], tx_usecs: words[5], adaptive_rx: words[10] != 0 })
    }

    /// Ring sizes, in slots; `None` if the driver does not show them.
    pub fn rings(&self) -> Option<Rings> {
        // struct ethtool_ringparam: 9 words, the limits before the present sizes.
        let words = self.ask::<9>(GRINGPARAM)?;
        Some(Rings { rx_max: words[1], tx_max: words[4], rx: words[5], tx: words[8] })
            .filter(|rings| rings.rx > 0)
    }

    /// Numbers of queues that receive: receive-only and combined ones.
    pub fn queues(&self) -> Option<Queues> {
        // struct ethtool_channels: 9 words, the limits before the present numbers.
        let words = self.ask::<9>(GCHANNELS)?;
        let (rx, combined) = (5, 8);
        Some(Queues {
            rx: words[rx] + words[combined],
            rx_max: (words[1] + words[4]).max(words[rx] + words[combined]),
        })
        .filter(|queues| queues.rx > 0)
    }

    pub fn merges(&self) -> Option<bool> {
        Some(self.ask::<2>(GFLAGS)?[1] & FLAG_LRO != 0)
    }

    pub fn pauses(&self) -> Option<bool> {
        // struct ethtool_pauseparam: command, negotiation, receiving, sending.
        let words = self.ask::<4>(GPAUSEPARAM)?;
        Some(words[2] != 0 || words[3] != 0)
    }

    /// Structure of `N` words as the driver fills it; `None` if the driver does not support the command.
    fn ask<const N: usize>(&self, command: u32) -> Option<[u32; N]> {
        let mut words = [0; N];
        words[0] = command;
        // SAFETY: ifreq is plain data for which all zeros is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the kernel reads the command in the first word and writes no more than the structure of that command,
        // for which the callers above have chosen `N`; both outlive the call.
        let asked =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, std::ptr::from_mut(&mut request)) };
        (asked == 0).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_interface_reports_nothing() {
        let ethtool = Ethtool::open("no-such-nic").unwrap();
        assert!(ethtool.driver().is_none() && ethtool.rings().is_none() && ethtool.coalescing().is_none());
        assert!(Ethtool::open("a-name-that-is-too-long").is_err());
    }
}
