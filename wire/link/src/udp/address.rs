//! Local outer address and MAC of a node.
//!
//! The address is the interface's first, unless one is configured. The MAC is the interface's, with two
//! exceptions: the interface has none (loopback, tunnels), or the node listens at another port than the
//! default, so that several nodes can share an interface. Then the MAC is a locally administered one, derived
//! from address and port.

#![expect(unsafe_code, reason = "getifaddrs returns a list of raw pointers")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cxloe_wire::frame::Mac;

use crate::interface::{Interface, true_name};
use crate::outer::{UDP_PORT_DEFAULT, UdpAddress, shard_port};
use crate::{LinkConfig, LinkError};

/// Returns the outer address of a `udp` link that is opened with `config` in this thread's network namespace.
/// The node registers this address with the manager.
///
/// # Errors
/// The interface does not exist or has no address.
pub fn own_address(config: &LinkConfig) -> Result<SocketAddr, LinkError> {
    let UdpAddress { ip, port } = config.udp.address;
    let ip = match ip {
        Some(ip) => ip,
        None => {
            let name = true_name(&config.interface);
            first_address(&name)?.ok_or(LinkError::NoAddress(name))?
        }
    };
    Ok(SocketAddr::new(ip, port))
}

/// Returns the MAC of a `udp` link that is opened with `config`: the node's identity.
///
/// # Errors
/// The interface does not exist or has no address.
pub fn own_mac(config: &LinkConfig) -> Result<Mac, LinkError> {
    station(config).map(|(interface, _)| interface.mac)
}

/// Returns the interface of `config`, with the MAC that the node has on it, and the node's outer address.
pub(crate) fn station(config: &LinkConfig) -> Result<(Interface, SocketAddr), LinkError> {
    let mut interface = Interface::find_any(&config.interface)?;
    let mut own = own_address(config)?;
    let has_mac = interface.mac != Mac::default() && !interface.mac.is_multicast();
    if !has_mac || own.port() != UDP_PORT_DEFAULT {
        interface.mac = derived_mac(own);
    }
    if config.shard() > 0 {
        interface.mac = interface.mac.shard(config.shard());
        own.set_port(shard_port(own.port(), config.shard()));
    }
    Ok((interface, own))
}

/// Derives a locally administered unicast MAC from address and port: 46 bits of their FNV-1a hash.
pub(super) fn derived_mac(own: SocketAddr) -> Mac {
    let v4: [u8; 4];
    let v6: [u8; 16];
    let ip: &[u8] = match own.ip().to_canonical() {
        IpAddr::V4(ip) => {
            v4 = ip.octets();
            &v4
        }
        IpAddr::V6(ip) => {
            v6 = ip.octets();
            &v6
        }
    };
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let mut hash = ip.iter().chain(&own.port().to_be_bytes()).fold(0xCBF2_9CE4_8422_2325, step);
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let [a, b, c, d, e, f, ..] = hash.to_be_bytes();
    Mac([(a & 0xFC) | 0x02, b, c, d, e, f])
}

/// Returns the first address of an interface: IPv4 before IPv6, and no link-local IPv6 address.
fn first_address(interface: &str) -> Result<Option<IpAddr>, LinkError> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the kernel's list is stored in `list`, which outlives the call; it is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(LinkError::Io {
            what: "list the addresses",
            interface: interface.to_owned(),
            source: std::io::Error::last_os_error(),
        });
    }
    let (mut v4, mut v6) = (None, None);
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the element is in the list from getifaddrs, which is not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: the name is a NUL-terminated text (getifaddrs(3)).
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        if entry.ifa_addr.is_null() || name.to_bytes() != interface.as_bytes() {
            continue;
        }
        // SAFETY: the pointer is not null; every sockaddr begins with its family.
        match libc::c_int::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET if v4.is_none() => {
                // SAFETY: the family shows that the address is a sockaddr_in.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
                v4 = Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))));
            }
            libc::AF_INET6 if v6.is_none() => {
                // SAFETY: the family shows that the address is a sockaddr_in6.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                v6 = (!ip.is_unicast_link_local()).then_some(IpAddr::V6(ip));
            }
            _ => {}
        }
    }
    // SAFETY: the list from getifaddrs is freed once, and no reference to it remains.
    unsafe { libc::freeifaddrs(list) };
    Ok(v4.or(v6))
}
