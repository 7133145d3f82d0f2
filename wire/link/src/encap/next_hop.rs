//! Next hop of packets to an address: the routing table has the gateway, the neighbour table the gateway's
//! MAC. Both are the kernel's tables; nothing is learned from frames. Look-ups are made outside the data
//! path.
//!
//! The sockets belong to the network namespace in which the link was opened, whatever namespace its worker
//! runs in.

#![expect(unsafe_code, reason = "netlink sockets and SIOCGARP take raw pointers")]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use cxloe_wire::frame::Mac;

use crate::socket::{owned, poll_in};
use crate::udp::bound_socket;

/// Maximum wait for the kernel's answer, which normally comes at once.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Flag of a complete neighbour entry (`linux/if_arp.h`: ATF_COM).
const COMPLETE: libc::c_int = 2;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// Length in bytes of the headers of a route message: `struct nlmsghdr`, then `struct rtmsg`.
const HEADERS: usize = 16 + 12;

/// Route in the kernel's table: the gateway, if any, and the path MTU, if smaller than the interface's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KernelRoute {
    gateway: Option<Ipv4Addr>,
    mtu: Option<usize>,
}

/// Station that packets are sent to, and the path MTU if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    pub mac: Mac,
    pub mtu: Option<usize>,
}

pub(super) struct NextHops {
    netlink: OwnedFd,
    /// Socket that reserves the outer address, so that no other process can use it and the kernel does not
    /// answer its datagrams with ICMP errors. It receives nothing.
    socket: UdpSocket,
    interface: String,
}

impl NextHops {
    /// Prepares look-ups for `own` on `interface`, in this thread's network namespace. Set `shared` if other links of
    /// this process use the address too.
    pub fn open(interface: &str, own: SocketAddrV4, shared: bool) -> io::Result<NextHops> {
        let socket = UdpSocket::from(bound_socket(own.into(), shared)?);
        socket.set_nonblocking(true)?;
        // This filter drops every packet, because the raw link receives the packets for this node.
        let nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
        let filter = libc::sock_fprog { len: 1, filter: nothing.as_ptr().cast_mut() };
        crate::socket::set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        // SAFETY: creates a socket; the result is checked.
        let netlink = owned(unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
        })?;
        Ok(NextHops { netlink, socket, interface: interface.to_owned() })
    }

    /// Finds the station that packets for `to` are sent to.
    ///
    /// # Errors
    /// A text: there is no route, or no neighbour entry for the next hop. If the neighbour entry is missing, the kernel
    /// begins to resolve it, so that a later call succeeds.
    pub fn find(&self, to: SocketAddrV4) -> Result<NextHop, String> {
        let KernelRoute { gateway, mtu } =
            self.route(*to.ip()).map_err(|error| format!("no route to {}: {error}", to.ip()))?;
        let next = gateway.unwrap_or(*to.ip());
        match self.neighbour(next) {
            Ok(Some(mac)) => Ok(NextHop { mac, mtu }),
            unknown => {
                // An empty datagram makes the kernel resolve the neighbour.
                let _ = self.socket.send_to(&[], to);
                let why = unknown.err().map_or_else(String::new, |error| format!(" ({error})"));
                Err(format!("no neighbour on {} has answered for {next}{why}", self.interface))
            }
        }
    }

    /// Asks the kernel for its route to an address.
    fn route(&self, to: Ipv4Addr) -> io::Result<KernelRoute> {
        let request = route_request(to);
        // SAFETY: pointer and length describe the request, which outlives the call.
        let sent = unsafe {
            libc::send(self.netlink.as_raw_fd(), request.as_ptr().cast(), request.len(), libc::MSG_DONTWAIT)
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        poll_in(&self.netlink, ANSWER_TIMEOUT)?;
        let mut answer = [0_u8; 4096];
        // SAFETY: pointer and length describe the buffer, which outlives the call.
        let got = unsafe {
            libc::recv(self.netlink.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(got) {
            Ok(len) => route_of(&answer[..len.min(answer.len())]),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the MAC of a station on the network segment, or `None` if it is unknown.
    fn neighbour(&self, ip: Ipv4Addr) -> io::Result<Option<Mac>> {
        // SAFETY: arpreq is plain data for which all zeros is valid.
        let mut request: libc::arpreq = unsafe { std::mem::zeroed() };
        request.arp_pa.sa_family = libc::AF_INET as libc::sa_family_t;
        for (to, from) in request.arp_pa.sa_data[2..6].iter_mut().zip(ip.octets()) {
            *to = from as libc::c_char;
        }
        for (to, from) in request.arp_dev.iter_mut().zip(self.interface.bytes().take(15)) {
            *to = from as libc::c_char;
        }
        // SAFETY: the kernel reads and fills a structure of this type, which outlives the call.
        let rc = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::SIOCGARP as libc::Ioctl,
                std::ptr::from_mut(&mut request),
            )
        };
        if rc < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) };
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(request.arp_ha.sa_data) {
            *to = from as u8;
        }
        Ok((request.arp_flags & COMPLETE != 0).then_some(Mac(mac)).filter(|mac| mac.is_unicast()))
    }
}

/// Netlink message that asks for the route to an address.
fn route_request(to: Ipv4Addr) -> [u8; HEADERS + 8] {
    let mut bytes = [0; HEADERS + 8];
    bytes[..4].copy_from_slice(&((HEADERS + 8) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Fields rtm_family and rtm_dst_len.
    (bytes[16], bytes[17]) = (libc::AF_INET as u8, 32);
    bytes[HEADERS..HEADERS + 2].copy_from_slice(&8_u16.to_ne_bytes());
    bytes[HEADERS + 2..HEADERS + 4].copy_from_slice(&RTA_DST.to_ne_bytes());
    bytes[HEADERS + 4..].copy_from_slice(&to.octets());
    bytes
}

/// Yields the attributes in `bytes` with their numbers, up to the first invalid one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let (len, kind) = (u16::from_ne_bytes([head[0], head[1]]), u16::from_ne_bytes([head[2], head[3]]));
        let value = bytes.get(4..usize::from(len))?;
        bytes = bytes.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Extracts the route from the kernel's answer.
fn route_of(answer: &[u8]) -> io::Result<KernelRoute> {
    let odd = || io::Error::other("the kernel's answer is of another shape");
    let u16_at = |at: usize| answer.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    match u16_at(4).ok_or_else(odd)? {
        RTM_NEWROUTE => {}
        // An NLMSG_ERROR, which has a negative error number.
        _ => {
            let code = answer.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
            return Err(io::Error::from_raw_os_error(-code.ok_or_else(odd)?));
        }
    }
    let mut route = KernelRoute::default();
    for (kind, value) in attributes(answer.get(HEADERS..).unwrap_or_default()) {
        match kind {
            RTA_GATEWAY => route.gateway = value.first_chunk::<4>().map(|ip| (*ip).into()),
            RTA_METRICS => {
                let mtu = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                route.mtu = mtu.and_then(|(_, mtu)| Some(u32::from_ne_bytes(*mtu.first_chunk()?) as usize));
            }
            _ => {}
        }
    }
    Ok(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answers_are_read_whatever_they_are() {
        let mut answer = route_request(Ipv4Addr::new(10, 0, 0, 1)).to_vec();
        answer[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        assert_eq!(
            route_of(&answer).unwrap(),
            KernelRoute::default(),
            "on this segment, as much as the interface carries"
        );
        answer.extend([8, 0, RTA_GATEWAY as u8, 0, 10, 77, 0, 254]);
        answer.extend([
            20,
            0,
            RTA_METRICS as u8,
            0,
            8,
            0,
            1,
            0,
            1,
            0,
            0,
            0,
            8,
            0,
            RTAX_MTU as u8,
            0,
            0x78,
            5,
            0,
            0,
        ]);
        let gateway = Some(Ipv4Addr::new(10, 77, 0, 254));
        assert_eq!(route_of(&answer).unwrap(), KernelRoute { gateway, mtu: Some(1400) });
        (0..answer.len()).for_each(|len| drop(route_of(&answer[..len])));
        let last = answer.len() - 20;
        answer[last] = 0;
        assert_eq!(
            route_of(&answer).unwrap(),
            KernelRoute { gateway, mtu: None },
            "an attribute without a length ends it"
        );
        let mut refused = vec![0; 36];
        refused[4] = 2;
        refused[16..20].copy_from_slice(&(-libc::ENETUNREACH).to_ne_bytes());
        assert_eq!(route_of(&refused).unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
    }

    #[test]
    fn the_local_route_has_no_gateway_and_the_port_is_exclusive() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let std::net::SocketAddr::V4(own) = free else { panic!("{free}") };
        let hops = NextHops::open("lo", own, false).unwrap();
        assert_eq!(hops.route(Ipv4Addr::LOCALHOST).unwrap().gateway, None);
        let unknown = hops.find(own).unwrap_err();
        assert!(unknown.contains("127.0.0.1"), "{unknown}");
        assert!(UdpSocket::bind(own).is_err());
    }
}
