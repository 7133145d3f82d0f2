//! Which frames reach a packet socket: those for this station, and of several sockets the one their sender belongs to.

use std::io;
use std::os::fd::OwnedFd;

use crate::LinkConfig;
use crate::interface::Interface;
use crate::socket::set_option;

const PACKET_FANOUT_CBPF: libc::c_int = 6;
const PACKET_FANOUT_DATA: libc::c_int = 22;
const BPF_A: u32 = 0x10;

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Lets only frames addressed to the interface itself through, so that a promiscuous neighbour's traffic
/// never reaches the ring.
pub(super) fn attach_filter(socket: &OwnedFd, interface: &Interface) -> io::Result<()> {
    let mac = interface.mac.0;
    let high = u32::from_be_bytes([mac[0], mac[1], mac[2], mac[3]]);
    let low = u32::from(u16::from_be_bytes([mac[4], mac[5]]));
    let program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, high, 0, 3),
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 4),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, low, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Has the interface take in frames for an address that is not its first, as long as the socket is open.
pub(super) fn accept_address(socket: &OwnedFd, interface: &Interface) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&interface.mac.0);
    let request = libc::packet_mreq {
        mr_ifindex: interface.index as libc::c_int,
        mr_type: libc::PACKET_MR_UNICAST as libc::c_ushort,
        mr_alen: 6,
        mr_address: address,
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Spreads the nodes that talk to this interface over its queues: all frames of one source address go to
/// one worker, so that a session never changes hands.
pub(super) fn join_fanout(socket: &OwnedFd, config: &LinkConfig, interface: &Interface) -> io::Result<()> {
    // A group id is shared by the sockets of one process on one interface and EtherType.
    let group = (std::process::id() ^ (interface.index << 8) ^ u32::from(config.ethertype)) & 0xFFFF;
    let argument = (group as i32) | (PACKET_FANOUT_CBPF << 16);
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    // The last two bytes of the source address, modulo the number of queues. At this point the kernel's
    // packet data starts behind the Ethernet header, which SKF_LL_OFF reaches.
    let link_layer = libc::SKF_LL_OFF as u32;
    let program = [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, link_layer.wrapping_add(10)),
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, config.queues),
        statement(libc::BPF_RET | BPF_A, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, &filter)
}
