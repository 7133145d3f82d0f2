//! Outer headers of frames on a raw link: Ethernet, IPv4 and UDP, built and parsed in user space, without
//! I/O.
//!
//! ```text
//!   0          14             34        42
//!   | Ethernet | IPv4, 20     | UDP, 8  | the whole inner frame, from its destination MAC on |
//! ```
//!
//! The UDP checksum is left out, which IPv4 permits: the inner frame's own trailer covers more. Received
//! bytes are not trusted: options in the IP header are skipped; fragments, wrong lengths and wrong IP
//! checksums are refused.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

use cxloe_wire::frame::Mac;

use crate::ETHERNET_HEADER;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// Length in bytes of the outer headers of frames sent.
pub(super) const OUTER_LEN: usize = ETHERNET_HEADER + IP_LEN + UDP_LEN;
const PROTOCOL_UDP: u8 = 17;
const TTL: u8 = 64;

/// Headers of frames to one peer, complete except for the lengths and the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outer {
    bytes: [u8; OUTER_LEN],
    /// Sum of the IP header without its length field, not folded to 16 bits yet.
    sum: u32,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

#[inline]
fn folded(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

impl Outer {
    /// Makes the headers of packets from address `from`, on the interface with MAC `own`, to address `to` by
    /// way of the station `next`. `priority` becomes the DSCP class selector.
    pub fn new(own: Mac, next: Mac, from: SocketAddrV4, to: SocketAddrV4, priority: Option<u8>) -> Outer {
        let mut bytes = [0; OUTER_LEN];
        bytes[..6].copy_from_slice(&next.0);
        bytes[6..12].copy_from_slice(&own.0);
        bytes[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        let ip = &mut bytes[ETHERNET_HEADER..];
        ip[0] = 0x45;
        ip[1] = priority.unwrap_or(0) << 5;
        // Don't Fragment is set, because a frame that is too long must cause an error and must not be fragmented.
        ip[6] = 0x40;
        ip[8] = TTL;
        ip[9] = PROTOCOL_UDP;
        ip[12..16].copy_from_slice(&from.ip().octets());
        ip[16..20].copy_from_slice(&to.ip().octets());
        ip[20..22].copy_from_slice(&from.port().to_be_bytes());
        ip[22..24].copy_from_slice(&to.port().to_be_bytes());
        let sum = sum(&ip[..IP_LEN]);
        Outer { bytes, sum }
    }

    /// Writes the headers at the beginning of `out`, for an inner frame of `len` bytes.
    #[inline]
    pub fn write(&self, len: usize, out: &mut [u8]) {
        let Some(out) = out.first_chunk_mut::<OUTER_LEN>() else { return };
        *out = self.bytes;
        let (ip_len, udp_len) = ((IP_LEN + UDP_LEN + len) as u16, (UDP_LEN + len) as u16);
        let checksum = !folded(self.sum + u32::from(ip_len));
        out[16..18].copy_from_slice(&ip_len.to_be_bytes());
        out[24..26].copy_from_slice(&checksum.to_be_bytes());
        out[38..40].copy_from_slice(&udp_len.to_be_bytes());
    }
}

/// Source and destination of a datagram, and the range of the inner frame in the outer frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub inner: Range<usize>,
}

/// Parses the headers of an outer frame. Returns `None` if it is not a whole datagram over IPv4 and Ethernet.
#[inline]
pub(super) fn parse(outer: &[u8]) -> Option<Datagram> {
    if outer.get(12..14)? != ETHERTYPE_IPV4.to_be_bytes() {
        return None;
    }
    let ip = outer.get(ETHERNET_HEADER..)?;
    let first = *ip.first()?;
    let header_len = usize::from(first & 0xF) * 4;
    if first >> 4 != 4 || header_len < IP_LEN {
        return None;
    }
    let header = ip.get(..header_len)?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF;
    if fragment != 0 || header[9] != PROTOCOL_UDP || folded(sum(header)) != 0xFFFF {
        return None;
    }
    // Leaves out Ethernet's padding after the packet.
    let udp = ip.get(header_len..total)?;
    let (ports, _) = udp.split_first_chunk::<UDP_LEN>()?;
    let udp_len = usize::from(u16::from_be_bytes([ports[4], ports[5]]));
    if udp_len < UDP_LEN || udp_len > udp.len() {
        return None;
    }
    let address = |at: usize, port: usize| {
        let ip = Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        SocketAddrV4::new(ip, u16::from_be_bytes([ports[port], ports[port + 1]]))
    };
    let start = ETHERNET_HEADER + header_len + UDP_LEN;
    Some(Datagram { from: address(12, 0), to: address(16, 2), inner: start..start + udp_len - UDP_LEN })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const NEXT: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn at(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    fn datagram(len: usize) -> Vec<u8> {
        let outer = Outer::new(OWN, NEXT, at("10.77.0.1:63670"), at("10.77.0.2:63669"), Some(3));
        let mut bytes = vec![0xAB; OUTER_LEN + len];
        outer.write(len, &mut bytes);
        bytes
    }

    /// The expected bytes were written by hand from RFC 791 and RFC 768.
    #[test]
    fn the_bytes_are_those_of_the_standards() {
        let bytes = datagram(60);
        assert_eq!(bytes[..14], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0]);
        assert_eq!(bytes[14..24], [0x45, 0x60, 0, 88, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(bytes[26..34], [10, 77, 0, 1, 10, 77, 0, 2]);
        assert_eq!(bytes[34..42], [0xF8, 0xB6, 0xF8, 0xB5, 0, 68, 0, 0]);
        assert_eq!(folded(sum(&bytes[14..34])), 0xFFFF, "a header with its checksum sums up to all ones");
    }

    #[test]
    fn what_was_written_is_read_also_with_padding_and_options() {
        for len in [0, 1, 60, 1472] {
            let mut bytes = datagram(len);
            let read = parse(&bytes).unwrap();
            assert_eq!((read.from, read.to), (at("10.77.0.1:63670"), at("10.77.0.2:63669")));
            assert_eq!(read.inner, 42..42 + len);
            bytes.extend([0; 20]);
            assert_eq!(parse(&bytes).unwrap().inner, 42..42 + len, "padding is not of it");
        }
        // Four bytes of IP options: no-operation, four times.
        let mut bytes = datagram(60);
        bytes.splice(34..34, [1; 4]);
        bytes[14] = 0x46;
        bytes[17] += 4;
        bytes[24..26].fill(0);
        let checksum = !folded(sum(&bytes[14..38]));
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(parse(&bytes).unwrap().inner, 46..106);
    }

    #[test]
    fn what_is_no_whole_datagram_is_refused() {
        let good = datagram(60);
        let fixed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            bytes[24..26].fill(0);
            let checksum = !folded(sum(&bytes[14..34]));
            bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
            parse(&bytes)
        };
        assert!(fixed(&|_| {}).is_some());
        for (what, change) in [
            ("another EtherType", &(|b: &mut Vec<u8>| b[13] = 6) as &dyn Fn(&mut Vec<u8>)),
            ("IPv6", &|b| b[14] = 0x65),
            ("a header too short", &|b| b[14] = 0x44),
            ("longer than the frame", &|b| b[17] += 1),
            ("no room for UDP", &|b| b[16..18].copy_from_slice(&[0, 27])),
            ("more fragments", &|b| b[20] = 0x20),
            ("a later fragment", &|b| b[21] = 1),
            ("TCP", &|b| b[23] = 6),
            ("UDP longer than IP", &|b| b[39] += 1),
            ("UDP shorter than its header", &|b| b[38..40].copy_from_slice(&[0, 7])),
        ] {
            assert_eq!(fixed(change), None, "{what}");
        }
        let mut damaged = good.clone();
        damaged[30] ^= 1;
        assert_eq!(parse(&damaged), None, "a wrong checksum");
        (0..OUTER_LEN).for_each(|len| assert_eq!(parse(&good[..len]), None, "cut off at {len}"));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..60, byte: u8) {
            if let Some(read) = parse(&bytes) {
                prop_assert!(read.inner.end <= bytes.len() && read.inner.start <= read.inner.end);
            }
            let mut good = datagram(60);
            good[at] = byte;
            if let Some(read) = parse(&good) {
                prop_assert!(read.inner.end <= good.len() && read.inner.start <= read.inner.end);
            }
            bytes.splice(0..0, datagram(0));
            if let Some(read) = parse(&bytes) {
                prop_assert!(read.inner.end <= bytes.len());
            }
        }
    }
}
