//! A network interface as the kernel reports it, with the checks that every link makes when it is opened, so that all
//! links report the same errors.

#![expect(unsafe_code, reason = "ioctls of interfaces take raw pointers, and fill in unions")]

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use super::socket::owned;
use super::{LinkError, dpdk};
use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE, Mac};

pub use cxloe_net::ETHERNET_HEADER;

/// Minimum MTU: a frame with header, one line and a trailer of 16 bytes.
const MTU_MIN: usize = HEADER_LEN + LINE_SIZE + 16 - ETHERNET_HEADER;

/// An interface that exists and is up.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    /// Name of the interface in `/sys` and in the kernel's lists, even if an alternative name was used to find it.
    pub name: String,
    pub index: u32,
    pub mac: Mac,
    pub mtu: usize,
}

impl Interface {
    /// Finds the Ethernet interface `name` in this thread's network namespace, or the device of DPDK with
    /// that name, and checks that a line fits its frames.
    pub fn find(name: &str) -> Result<Interface, LinkError> {
        Interface::find_for(name, 1)
    }

    /// Like [`find`](Self::find), for a process that opens `queues` links, which a device of DPDK has to know when it is
    /// found first.
    pub fn find_for(name: &str, queues: u32) -> Result<Interface, LinkError> {
        if dpdk::is_device(name) {
            // Index 0 marks a device that is no interface of the kernel, which never assigns 0.
            let (mac, mtu) = dpdk::address_and_mtu(name, queues)?;
            return Ok(Interface { name: name.to_owned(), index: 0, mac, mtu });
        }
        let (interface, kind) = Interface::look_up(name)?;
        if kind != libc::ARPHRD_ETHER {
            return Err(LinkError::Unsupported {
                backend: "a raw frame link",
                interface: interface.name,
                why: format!("it is not an Ethernet interface (hardware type {kind}); `udp` needs none"),
            });
        }
        if interface.mtu < MTU_MIN {
            let Interface { name: interface, mtu, .. } = interface;
            return Err(LinkError::MtuTooSmall { interface, mtu, needed: MTU_MIN });
        }
        Ok(interface)
    }

    /// Finds the interface `name` of any kind. One that is not Ethernet gets a MAC of all zeros.
    pub fn find_any(name: &str) -> Result<Interface, LinkError> {
        let (mut interface, kind) = Interface::look_up(name)?;
        if kind != libc::ARPHRD_ETHER {
            interface.mac = Mac::default();
        }
        Ok(interface)
    }

    /// Reads the properties and the hardware type of an interface that is up.
    fn look_up(name: &str) -> Result<(Interface, u16), LinkError> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|b| b == 0) {
            return Err(LinkError::NoSuchInterface(name.to_owned()));
        }
        let io = |what| move |source| LinkError::Io { what, interface: name.to_owned(), source };
        // SAFETY: creates a socket; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let socket = owned(socket).map_err(io("open a control socket"))?;

        let query = |request: libc::Ioctl| -> io::Result<libc::ifreq> {
            // SAFETY: ifreq is plain data for which all zeros is valid.
            let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in req.ifr_name.iter_mut().zip(name.bytes()) {
                *to = from as libc::c_char;
            }
            // SAFETY: every request used below reads and writes one ifreq, which outlives the call.
            match unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut req) } {
                0 => Ok(req),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let index = match query(libc::SIOCGIFINDEX as libc::Ioctl) {
            // SAFETY: SIOCGIFINDEX has filled this member of the union.
            Ok(req) => unsafe { req.ifr_ifru.ifru_ifindex as u32 },
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {
                return Err(LinkError::NoSuchInterface(name.to_owned()));
            }
            Err(e) => return Err(io("look up the interface index")(e)),
        };
        let req = query(libc::SIOCGIFFLAGS as libc::Ioctl).map_err(io("read the interface flags"))?;
        // SAFETY: SIOCGIFFLAGS has filled this member of the union.
        let flags = libc::c_int::from(unsafe { req.ifr_ifru.ifru_flags });
        if flags & libc::IFF_UP == 0 {
            return Err(LinkError::Down(name.to_owned()));
        }
        let req = query(libc::SIOCGIFHWADDR as libc::Ioctl).map_err(io("read the MAC address"))?;
        // SAFETY: SIOCGIFHWADDR has filled this member of the union.
        let hw = unsafe { req.ifr_ifru.ifru_hwaddr };
        let mut mac = Mac([0; 6]);
        for (to, from) in mac.0.iter_mut().zip(hw.sa_data.iter()) {
            *to = *from as u8;
        }
        let req = query(libc::SIOCGIFMTU as libc::Ioctl).map_err(io("read the MTU"))?;
        // SAFETY: SIOCGIFMTU has filled this member of the union.
        let mtu = unsafe { req.ifr_ifru.ifru_mtu } as usize;
        // `name` may be an alternative name (`ip link property add ... altname`), which ioctls accept as
        // well.
        let name = name_of(index).unwrap_or_else(|| name.to_owned());
        Ok((Interface { name, index, mac, mtu }, hw.sa_family))
    }

    /// Converts the error of a system call on this interface. Missing permission and a missing or inactive
    /// interface become variants of their own.
    pub fn error(&self, what: &'static str, needs: &'static str, source: io::Error) -> LinkError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                LinkError::Permission { what, interface: self.name.clone(), needs }
            }
            Some(libc::ENETDOWN) => LinkError::Down(self.name.clone()),
            Some(libc::ENXIO | libc::ENODEV) => LinkError::NoSuchInterface(self.name.clone()),
            _ => LinkError::Io { what, interface: self.name.clone(), source },
        }
    }
}

pub(crate) fn name_of(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IFNAMSIZ];
    // SAFETY: the name with its final zero fits IFNAMSIZ bytes, the length of the buffer.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let len = name.iter().position(|byte| *byte == 0)?;
    (!found.is_null()).then(|| String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Returns the name that interface `name` has in `/sys` and in the kernel's lists, because `name` may be an alternative
/// name. Returns `name` if there is no such interface.
pub(crate) fn true_name(name: &str) -> String {
    let Ok(text) = CString::new(name) else { return name.to_owned() };
    // SAFETY: the text ends with a zero and outlives the call.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    name_of(index).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_its_name_and_others_keep_theirs() {
        assert_eq!(true_name("lo"), "lo");
        assert_eq!([true_name("none-such"), true_name("a\0b"), true_name("")], ["none-such", "a\0b", ""]);
    }
}
