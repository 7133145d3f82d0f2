//! Ethtool queries of an interface's driver (`SIOCETHTOOL`): name, speed, and statistics, among them those
//! that count PFC frames handled inside the NIC.
//!
//! A driver may take a millisecond to gather its statistics, so they must not be read on the data path.

#![expect(unsafe_code, reason = "SIOCETHTOOL takes raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::LinkError;
use super::interface::Interface;
use super::pfc_statistic::{Counting, Found};
use super::socket::owned;
use cxloe_net::rate::Rate;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
/// Length in bytes of a statistic's name (ETH_GSTRING_LEN).
const NAME_LEN: usize = 32;
/// Maximum number of statistics accepted from a driver; no known driver has as many.
const STATISTICS_MAX: usize = 1 << 16;
/// Buffer space for further statistics, because there may be more than the driver reported before.
const SPARE_STATISTICS: usize = 1024;

/// Drivers that count received PFC frames, and the name of the counter, with `{}` for the class.
const PFC_COUNTERS: &[(&str, &str)] = &[
    ("mlx5_core", "rx_prio{}_pause"),
    ("mlx4_en", "rx_pause_prio_{}"),
    ("ice", "rx_priority_{}_xoff.nic"),
    ("i40e", "port.rx_priority_{}_xoff"),
    ("i40e", "port.rx_priority_{}_xoff_rx"),
    ("ixgbe", "rx_pb_{}_pxoff"),
    ("bnxt_en", "rx_pfc_ena_frames_pri{}"),
    ("cxgb4", "rx_ppp{}_frames"),
    ("hns3", "mac_rx_pfc_pri{}_pkt_num"),
    ("hinic", "mac_rx_pfc_pri{}_pkt_num"),
    ("qede", "rx_pfc_frames"),
];

/// Makes ethtool queries on one interface; may block for a millisecond.
pub struct Ethtool {
    interface: Interface,
    socket: OwnedFd,
}

/// Driver counter that is read repeatedly.
pub struct DriverCounter {
    ethtool: Ethtool,
    name: String,
    index: usize,
    /// Buffer for the kernel's answer: command and count, then the values.
    values: Vec<u64>,
}

impl Ethtool {
    /// Prepares queries on `interface`, in this thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError::NoSuchInterface`] and [`LinkError::Down`], as for opening a link.
    pub fn open(interface: &str) -> Result<Ethtool, LinkError> {
        let interface = Interface::find(interface)?;
        // SAFETY: creates a socket; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(socket).map_err(|e| interface.error("open a control socket", "", e))?;
        Ok(Ethtool { interface, socket })
    }

    /// Speed of the interface; `None` if the driver reports none or there is no carrier.
    pub fn speed(&self) -> Option<Rate> {
        // struct ethtool_cmd has 44 bytes; the speed in Mbit/s is in two halves, at bytes 12 and 28.
        let mut request = [0; 11];
        request[0] = ETHTOOL_GSET;
        self.ask(&mut request).ok()?;
        let mbit = request[3].to_ne_bytes();
        let (low, high) = (u16::from_ne_bytes([mbit[0], mbit[1]]), request[7].to_ne_bytes());
        let mbit = u32::from(u16::from_ne_bytes([high[0], high[1]])) << 16 | u32::from(low);
        if mbit == u32::MAX || mbit == u32::from(u16::MAX) {
            return None;
        }
        Rate::bits_per_s(u64::from(mbit) * 1_000_000)
    }

    /// Name of the driver; empty if the driver reports none.
    pub fn driver(&self) -> String {
        self.info().map(|info| text(&bytes(&info)[4..36])).unwrap_or_default()
    }

    /// Reads the driver's information (struct ethtool_drvinfo, 196 bytes).
    fn info(&self) -> io::Result<[u32; 49]> {
        let mut info = [0; 49];
        info[0] = ETHTOOL_GDRVINFO;
        self.ask(&mut info)?;
        Ok(info)
    }

    /// Names of the driver's statistics, in the order of their values.
    ///
    /// # Errors
    /// [`LinkError::Io`] if the driver has no statistics or does not report them.
    pub fn statistics(&self) -> Result<Vec<String>, LinkError> {
        let fail = |e| self.interface.error("ask for the names of the driver's statistics", "", e);
        // The field n_stats is at byte 180.
        let count = self.info().map_err(fail)?[45] as usize;
        if count > STATISTICS_MAX {
            return Err(fail(io::Error::from_raw_os_error(libc::E2BIG)));
        }
        // The driver writes all its current names, whatever the count in the request.
        let mut request = vec![0; 3 + (count + SPARE_STATISTICS) * NAME_LEN / 4];
        request[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count as u32]);
        self.ask(&mut request).map_err(fail)?;
        Ok(bytes(&request)[12..].chunks_exact(NAME_LEN).take(count).map(text).collect())
    }

    /// Finds the driver's counter of PFC frames received for `class`: the statistic called `name`, in which `{}` stands
    /// for the class, or, if `name` is `None`, the one in the table of known drivers.
    ///
    /// # Errors
    /// [`LinkError::Unsupported`] if there is no such counter; the message suggests similar ones.
    pub fn pfc_counter(self, class: u8, name: Option<&str>) -> Result<DriverCounter, LinkError> {
        let driver = self.driver();
        let counting = Counting {
            interface: &self.interface.name,
            driver: &driver,
            known: PFC_COUNTERS,
            listed_by: "`ethtool -S` lists them",
        };
        let Found { name, index, count } = counting.find(class, name, || self.statistics())?;
        // struct ethtool_stats: command and count are the first eight bytes.
        let values = vec![0; 1 + count];
        Ok(DriverCounter { ethtool: self, name, index, values })
    }

    /// Passes a request to the driver. The kernel writes the answer into it.
    fn ask<T>(&self, request: &mut [T]) -> io::Result<()> {
        // SAFETY: ifreq is plain data for which all zeros is valid.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in ifreq.ifr_name.iter_mut().zip(self.interface.name.bytes()) {
            *to = from as libc::c_char;
        }
        ifreq.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: the kernel reads the command at the start of `request`, and writes at most the structure of that
        // command. The callers above have reserved the size of that structure, with its counts and some spare.
        let rc = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, std::ptr::from_mut(&mut ifreq)) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl DriverCounter {
    /// Name of the statistic that this counter reads.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the counter.
    ///
    /// # Errors
    /// [`LinkError::Io`], also if the driver has other statistics now, for example because the number of queues was
    /// changed.
    pub fn read(&mut self) -> Result<u64, LinkError> {
        let count = self.values.len() - 1;
        let fail = |e| self.ethtool.interface.error("read the driver's statistics", "", e);
        // The driver writes all its current values, whatever the count in the request.
        if self.ethtool.info().map_err(fail)?[45] as usize != count {
            return Err(fail(io::Error::other("the driver has other statistics than before")));
        }
        let head = [ETHTOOL_GSTATS, count as u32].map(u32::to_ne_bytes).concat();
        self.values[0] = u64::from_ne_bytes(head.try_into().unwrap_or_default());
        self.values.resize(count + 1 + SPARE_STATISTICS, 0);
        let asked = self.ethtool.ask(&mut self.values);
        self.values.truncate(count + 1);
        asked.map_err(fail)?;
        Ok(self.values[1 + self.index])
    }
}

/// Text of a name from the kernel: up to the first zero, without surrounding blanks.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// Converts words to their bytes, in memory order.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(text(b"rx_ppp0_frames         \0\0junk"), "rx_ppp0_frames");
    }
}
