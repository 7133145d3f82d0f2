//! A raw packet socket: a neighbour on the wire that follows no protocol. The socket sends arbitrary bytes
//! and receives every frame that arrives at its interface, with the 802.1Q tag that the kernel removes from
//! the frame.

#![expect(unsafe_code, reason = "the 802.1Q tag of a frame comes in control data of recvmsg, a raw buffer")]

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use cxloe_lab::Lab;
use cxloe_wire::frame::Mac;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket};

use crate::outcome::Outcome;

/// Option of packet(7) that the libc crate lacks; from `linux/if_packet.h`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Bytes of the receive buffer, enough for the longest frame.
const FRAME_MAX: usize = 16 << 10;

#[derive(Debug)]
pub struct ReceivedFrame {
    /// The frame's bytes from its destination MAC address to its end, without the 802.1Q tag.
    pub bytes: Vec<u8>,
    /// Tag control information (PCP, DEI, VID) of the frame's 802.1Q tag, if it had one.
    pub tag: Option<u16>,
}

/// A raw packet socket on one interface, for frames of every EtherType.
pub struct RawSocket {
    socket: OwnedFd,
    /// Headers put before each frame sent, if any.
    outer: Option<Outer>,
}

/// Headers around a frame inside UDP. The source address `from` need not be one of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    /// Destination MAC address: that of the next hop on this segment.
    pub next: Mac,
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

impl Outer {
    /// Bytes of an Ethernet, an IPv4 and a UDP header together.
    pub const LEN: usize = 14 + 20 + 8;

    /// A packet with these headers before `frame`, without UDP checksum.
    pub fn around(&self, frame: &[u8]) -> Vec<u8> {
        let mut outer = [0; Outer::LEN];
        outer[..6].copy_from_slice(&self.next.0);
        outer[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
        outer[12..14].copy_from_slice(&[8, 0]);
        // Version and header length, "don't fragment", time to live, protocol UDP.
        (outer[14], outer[20], outer[22], outer[23]) = (0x45, 0x40, 64, 17);
        outer[26..30].copy_from_slice(&self.from.ip().octets());
        outer[30..34].copy_from_slice(&self.to.ip().octets());
        outer[34..36].copy_from_slice(&self.from.port().to_be_bytes());
        outer[36..38].copy_from_slice(&self.to.port().to_be_bytes());
        let udp = 8 + frame.len() as u16;
        outer[16..18].copy_from_slice(&(20 + udp).to_be_bytes());
        outer[38..40].copy_from_slice(&udp.to_be_bytes());
        let mut packet = [&outer, frame].concat();
        Outer::sum(&mut packet);
        packet
    }

    /// Writes the checksum of a packet's IPv4 header.
    pub fn sum(packet: &mut [u8]) {
        packet[24..26].fill(0);
        let words = packet[14..34].as_chunks::<2>().0;
        let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
    }

    /// Payload of a received packet, if it is one unfragmented datagram.
    pub fn inner(packet: &[u8]) -> Option<&[u8]> {
        let header = packet.first_chunk::<{ Outer::LEN }>()?;
        let length = usize::from(u16::from_be_bytes([header[38], header[39]]));
        let whole = header[12..15] == [8, 0, 0x45] && header[23] == 17 && length == packet.len() - 34;
        whole.then(|| &packet[Outer::LEN..])
    }
}

impl RawSocket {
    /// Opens a socket on `interface` in this thread's network namespace.
    pub fn open(interface: &str) -> io::Result<RawSocket> {
        let index = if_nametoindex(interface)? as i32;
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        set_option(&socket, PACKET_IGNORE_OUTGOING)?;
        set_option(&socket, libc::PACKET_AUXDATA)?;
        // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: pointer and length describe `address`, which outlives the call.
        let rc = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        if rc == 0 { Ok(RawSocket { socket, outer: None }) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens a socket on `interface`, in that interface's namespace of the lab.
    pub fn open_in(lab: &Lab, interface: &str) -> Outcome<RawSocket> {
        Ok(lab.home_of(interface)?.enter(|| RawSocket::open(interface))??)
    }

    /// Wraps each frame sent in a datagram with headers `outer`.
    pub fn inside_udp(mut self, outer: Outer) -> RawSocket {
        self.outer = Some(outer);
        self
    }

    /// Sends a frame unchanged. A frame for which the transmit queue has no room is dropped, as on a wire.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let whole = self.outer.map(|outer| outer.around(frame));
        let frame = whole.as_deref().unwrap_or(frame);
        match send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            Ok(_) | Err(nix::Error::ENOBUFS | nix::Error::EAGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Receives the next frame; `None` after `timeout`.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<ReceivedFrame>> {
        let limit = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], limit)? == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0_u8; FRAME_MAX];
        let mut control = [0_u64; 16];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: msghdr is plain data for which all zeros is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the kernel writes into `bytes` and `control`, at most their lengths given in the header.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        bytes.truncate(length as usize);
        Ok(Some(ReceivedFrame { bytes, tag: tag_of(&message) }))
    }

    /// Discards all frames that have arrived.
    pub fn drain(&self) -> io::Result<()> {
        // Bounded, because a neighbour may send without end.
        for _ in 0..100_000 {
            if self.receive(Duration::ZERO)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

fn set_option(socket: &OwnedFd, name: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: pointer and length describe `on`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, std::ptr::from_ref(&on).cast(), length)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tag control information in the control data of a message just received.
fn tag_of(message: &libc::msghdr) -> Option<u16> {
    // SAFETY: `message` was filled in by recvmsg and its control buffer is still alive.
    let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if first.cmsg_level != libc::SOL_PACKET || first.cmsg_type != libc::PACKET_AUXDATA {
        return None;
    }
    // SAFETY: a message of this type holds a tpacket_auxdata, possibly unaligned.
    let data = unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
    (data.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(data.tp_vlan_tci)
}
