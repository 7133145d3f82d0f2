//! Facts from a driver by the ioctl SIOCETHTOOL: structures of 32-bit words whose first is the command, filled in
//! place.

#![expect(unsafe_code, reason = "SIOCETHTOOL takes raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Coalescing, DriverInfo, Offload, Queues, Rings, SteeringRule};
use cxloe_wire::frame::Mac;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GDRVINFO: u32 = 0x03;
const GRXCSUM: u32 = 0x14;
const GTXCSUM: u32 = 0x16;
const GSG: u32 = 0x18;
const GTSO: u32 = 0x1e;
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const GGSO: u32 = 0x23;
const GFLAGS: u32 = 0x25;
const GGRO: u32 = 0x2b;
/// Commands for the rules that choose a queue (struct ethtool_rxnfc): their number, one of them, the numbers of all.
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const GCHANNELS: u32 = 0x3c;
/// Flag of large receive offload (ETH_FLAG_LRO): the interface merges received frames.
const FLAG_LRO: u32 = 1 << 15;
/// Offloads that have a command of their own, which returns 0 or 1; and those that are flags of [`GFLAGS`]. The names are
/// those of ethtool(8).
const OFFLOADS: [(&str, u32); 6] =
    [("rx", GRXCSUM), ("tx", GTXCSUM), ("sg", GSG), ("tso", GTSO), ("gso", GGSO), ("gro", GGRO)];
const OFFLOAD_FLAGS: [(&str, u32); 5] =
    [("lro", FLAG_LRO), ("rxvlan", 1 << 8), ("txvlan", 1 << 7), ("ntuple", 1 << 27), ("rxhash", 1 << 28)];

/// Length of struct ethtool_rxnfc in words, padding included; and the words in it that hold the number of a rule, the
/// number of rules, and the first element of the list of their numbers, which may extend beyond the structure.
const RXNFC: usize = 48;
const RULE: usize = 44;
const RULE_COUNT: usize = 46;
const RULE_LIST: usize = 47;
/// Bytes of struct ethtool_rxnfc with the kind of a rule, the destination and the source of its frames, the masks of these
/// two, and the queue.
const RULE_KIND: usize = 16;
const RULE_TO: usize = 20;
const RULE_TO_MASK: usize = 92;
const RULE_FROM_MASK: usize = 98;
const RULE_QUEUE: usize = 168;
/// Kind of a rule by the Ethernet header (ETHER_FLOW), and a flag that drivers may add (FLOW_EXT).
const ETHER_FLOW: u32 = 0x12;
const FLOW_EXT: u32 = 0x8000_0000;
/// Maximum number of rules that are read.
const RULES_MAX: u32 = 4096;

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

    /// Description of the driver and the card; `None` if the driver gives none.
    pub fn driver(&self) -> Option<DriverInfo> {
        // struct ethtool_drvinfo, 196 bytes: texts of 32 bytes each after the command.
        let words = self.ask::<49>(GDRVINFO)?;
        let text = |number: usize| {
            let words = &words[1 + 8 * number..][..8];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
        };
        Some(DriverInfo { name: text(0), version: text(1), firmware: text(2), bus: text(3) })
    }

    /// Offloads that the interface can tell of; the driver may not be able to change them.
    pub fn offloads(&self) -> Vec<Offload> {
        let own = OFFLOADS.into_iter().filter_map(|(name, command)| {
            let is_on = self.ask::<2>(command)?[1] != 0;
            Some(Offload { name, is_on })
        });
        let flags = self.ask::<2>(GFLAGS).map(|words| words[1]);
        let by_flag = |flags: u32| {
            OFFLOAD_FLAGS.into_iter().map(move |(name, flag)| Offload { name, is_on: flags & flag != 0 })
        };
        own.chain(flags.into_iter().flat_map(by_flag)).collect()
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

    /// Rules for frames to an address; `None` if the driver has no rules.
    pub fn steering(&self) -> Option<Vec<SteeringRule>> {
        let count = self.ask::<RXNFC>(GRXCLSRLCNT)?[RULE_COUNT].min(RULES_MAX);
        if count == 0 {
            return Some(Vec::new());
        }
        let mut all = vec![0; RXNFC + count as usize];
        (all[0], all[RULE_COUNT]) = (GRXCLSRLALL, count);
        if !self.fill(&mut all) {
            return None;
        }
        let listed = all[RULE_COUNT].min(count) as usize;
        let read = |number: &u32| {
            let mut words = [0; RXNFC];
            (words[0], words[RULE]) = (GRXCLSRULE, *number);
            if self.fill(&mut words) { rule(&words) } else { None }
        };
        Some(all[RULE_LIST..].iter().take(listed).filter_map(read).collect())
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
        self.fill(&mut words).then_some(words)
    }

    /// Has the driver fill in a structure, whose first word is the command; returns whether the driver supports that.
    fn fill(&self, words: &mut [u32]) -> bool {
        // SAFETY: ifreq is plain data for which all zeros is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        let request = std::ptr::from_mut(&mut request);
        // SAFETY: the kernel reads the command in the first word, and writes at most the structure of that command with
        // the list that it announces: the callers above have reserved as many words. Both live until the call ends.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, request) };
        asked == 0
    }
}

/// Rule in a filled struct ethtool_rxnfc; `None` if the rule does not put all frames to one address into one queue.
fn rule(words: &[u32; RXNFC]) -> Option<SteeringRule> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let octets = |at: usize| -> Option<[u8; 6]> { bytes[at..at + 6].try_into().ok() };
    let kind = u32::from_ne_bytes(bytes[RULE_KIND..RULE_KIND + 4].try_into().ok()?);
    // Higher words of the number select a virtual function, and all ones discards the frames.
    let queue = u64::from_ne_bytes(bytes[RULE_QUEUE..RULE_QUEUE + 8].try_into().ok()?);
    let all_of_one = kind & !FLOW_EXT == ETHER_FLOW
        && octets(RULE_TO_MASK)? == [0xff; 6]
        && octets(RULE_FROM_MASK)? == [0; 6];
    let queue = u32::try_from(queue).ok().filter(|_| all_of_one)?;
    Some(SteeringRule { to: Mac(octets(RULE_TO)?), queue })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure as the kernel fills it for `flow-type ether dst 12:00:00:00:00:02 action 3`.
    fn filled() -> [u8; RXNFC * 4] {
        let mut bytes = [0; RXNFC * 4];
        bytes[RULE_KIND..RULE_KIND + 4].copy_from_slice(&ETHER_FLOW.to_ne_bytes());
        bytes[RULE_TO..RULE_TO + 6].copy_from_slice(&[0x12, 0, 0, 0, 0, 2]);
        bytes[RULE_TO_MASK..RULE_TO_MASK + 6].copy_from_slice(&[0xff; 6]);
        bytes[RULE_QUEUE..RULE_QUEUE + 8].copy_from_slice(&3_u64.to_ne_bytes());
        bytes
    }

    fn parsed(change: impl FnOnce(&mut [u8])) -> Option<SteeringRule> {
        let mut bytes = filled();
        change(&mut bytes);
        let mut words = [0; RXNFC];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        rule(&words)
    }

    #[test]
    fn rules_that_steer_an_address_to_a_queue_are_read() {
        let wanted = SteeringRule { to: Mac([0x12, 0, 0, 0, 0, 2]), queue: 3 };
        assert_eq!(parsed(|_| {}), Some(wanted));
        assert_eq!(parsed(|bytes| bytes[RULE_TO_MASK + 5] = 0), None, "several addresses");
        assert_eq!(parsed(|bytes| bytes[RULE_FROM_MASK] = 0xff), None, "frames of one sender only");
        assert_eq!(parsed(|bytes| bytes[RULE_QUEUE..RULE_QUEUE + 8].fill(0xff)), None, "they are discarded");
        let ip = 0x10_u32.to_ne_bytes();
        assert_eq!(parsed(|bytes| bytes[RULE_KIND..RULE_KIND + 4].copy_from_slice(&ip)), None, "IP alone");
    }

    #[test]
    fn an_absent_interface_reports_nothing() {
        let ethtool = Ethtool::open("no-such-nic").unwrap();
        assert!(ethtool.driver().is_none() && ethtool.rings().is_none() && ethtool.coalescing().is_none());
        assert!(ethtool.steering().is_none() && ethtool.offloads().is_empty());
        assert!(Ethtool::open("a-name-that-is-too-long").is_err());
    }
}
