//! Traffic classes of an interface with PFC (802.1Qbb), from the kernel's netlink messages for Data Center Bridging.
//!
//! ```text
//!   RTM_GETDCB, command IEEE_GET, IFNAME --> kernel --> attribute IEEE { attribute PFC: struct ieee_pfc }
//! ```

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};

const RTM_GETDCB: u16 = 78;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_HEADER: usize = 16;
/// Length of struct dcbmsg in bytes: family, command, padding.
const DCB_HEADER: usize = 4;
const COMMAND_IEEE_GET: u8 = 21;
const ATTRIBUTE_IFNAME: u16 = 1;
const ATTRIBUTE_IEEE: u16 = 13;
const ATTRIBUTE_IEEE_PFC: u16 = 2;
/// Mask of an attribute's type, without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const TYPE_MASK: u16 = 0x3FFF;

/// Traffic classes with PFC, a bit each; `None` if the driver does not support Data Center Bridging.
pub fn pfc(interface: &str) -> Option<u8> {
    let socket: OwnedFd =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
            .ok()?;
    // The kernel answers at once; the timeout only makes sure that the doctor ends.
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(2)).ok()?;
    sendto(socket.as_raw_fd(), &request(interface), &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
    let mut answer = vec![0; 8192];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).ok()?;
    enabled(&answer[..length])
}

fn request(interface: &str) -> Vec<u8> {
    let name_len = 4 + interface.len() + 1;
    let length = NLMSG_HEADER + DCB_HEADER + name_len.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(RTM_GETDCB.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port are 0: this socket sends one request only.
    message.extend([0; 8]);
    message.extend([libc::AF_UNSPEC as u8, COMMAND_IEEE_GET, 0, 0]);
    message.extend((name_len as u16).to_ne_bytes());
    message.extend(ATTRIBUTE_IFNAME.to_ne_bytes());
    message.extend(interface.bytes());
    message.resize(length, 0);
    message
}

/// Traffic classes with PFC in the kernel's answer, a bit each.
fn enabled(answer: &[u8]) -> Option<u8> {
    // An error arrives as a message of another type.
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != RTM_GETDCB {
        return None;
    }
    let attributes = answer.get(NLMSG_HEADER + DCB_HEADER..)?;
    let pfc = find(find(attributes, ATTRIBUTE_IEEE)?, ATTRIBUTE_IEEE_PFC)?;
    // In struct ieee_pfc, the number of classes that support PFC precedes the bits of those that use it.
    pfc.get(1).copied()
}

/// Payload of the first attribute of type `wanted`.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?) & TYPE_MASK;
        // A length below that of the header ends the search, which could not advance.
        let content = attributes.get(4..length)?;
        if kind == wanted {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + content.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(attributes: &[u8]) -> Vec<u8> {
        let mut bytes = ((NLMSG_HEADER + DCB_HEADER + attributes.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(RTM_GETDCB.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([0, COMMAND_IEEE_GET, 0, 0]);
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn classes_are_found_where_the_kernel_puts_them() {
        let ets = attribute(1, &[0; 17]);
        let pfc = attribute(ATTRIBUTE_IEEE_PFC, &[8, 0b1000, 0, 0]);
        let ieee = attribute(0x8000 | ATTRIBUTE_IEEE, &[ets, pfc].concat());
        let told = answer(&[attribute(ATTRIBUTE_IFNAME, b"eth9\0"), ieee].concat());
        assert_eq!(enabled(&told), Some(0b1000));
        // A truncated answer causes no panic.
        for length in 0..told.len() {
            let _ = enabled(&told[..length]);
        }
        assert_eq!(enabled(&answer(&attribute(ATTRIBUTE_IFNAME, b"eth9\0"))), None);
        let mut error = told;
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(enabled(&error), None);
    }

    #[test]
    fn attributes_without_length_end_the_search() {
        assert_eq!(find(&[0; 64], 5), None);
    }

    #[test]
    fn questions_are_whole_words_and_say_how_long_they_are() {
        for name in ["lo", "eth9", "enp3s0f0np0"] {
            let asked = request(name);
            assert_eq!(u32::from_ne_bytes(asked[..4].try_into().unwrap()) as usize, asked.len());
            assert!(asked.len().is_multiple_of(4));
        }
        assert_eq!(pfc("lo"), None, "the loopback interface has no classes");
    }
}
