//! Filter of a packet socket: passes frames for this station. If several sockets share an interface, each
//! gets the frames of some of the senders.

use std::io;
use std::os::fd::OwnedFd;

use crate::LinkConfig;
use crate::interface::Interface;
use crate::socket::set_option;
use cxloe_wire::frame::Command;
use cxloe_wire::session::{HelloSieve, Share};

const PACKET_FANOUT_CBPF: libc::c_int = 6;
const PACKET_FANOUT_DATA: libc::c_int = 22;
const BPF_A: u32 = 0x10;

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Offsets of the source address and of the command in a frame.
const SOURCE_AT: u32 = 6;
const COMMAND_AT: u32 = 14;
/// Offset at which the kernel's filter machine loads a random number instead of bytes of the frame.
const RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;

/// Returns instructions that drop the Hellos rejected by the sieve; all other frames continue with the next
/// instruction of the filter.
fn sift(sieve: &HelloSieve) -> Vec<libc::sock_filter> {
    const PASS: libc::sock_filter = statement(libc::BPF_RET | libc::BPF_K, u32::MAX);
    const DROP: libc::sock_filter = statement(libc::BPF_RET | libc::BPF_K, 0);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let by_chance = |share: Share| match share {
        Share::ALL => vec![PASS],
        Share(share) => vec![
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, RANDOM),
            jump(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, share, 0, 1),
            DROP,
            PASS,
        ],
    };
    let mut program = vec![
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, COMMAND_AT),
        jump(equal, Command::Hello as u32, 1, 0),
        PASS,
    ];
    for (mac, share) in &sieve.known {
        let [a, b, c, d, e, f] = mac.0;
        let decided = by_chance(*share);
        let over = decided.len() as u8;
        program.extend([
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SOURCE_AT + 2),
            jump(equal, u32::from_be_bytes([c, d, e, f]), 0, over + 2),
            statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, SOURCE_AT),
            jump(equal, u32::from(u16::from_be_bytes([a, b])), 0, over),
        ]);
        program.extend(decided);
    }
    program.extend(by_chance(sieve.others));
    program
}

/// Attaches the filter, in place of the current one. It passes only frames to the interface's own address, so
/// that a promiscuous neighbour's traffic does not reach the ring. With a port, it passes only whole IPv4
/// datagrams to it; with a sieve and no port, it drops the Hellos that the sieve does not pass.
pub(super) fn attach_filter(
    socket: &OwnedFd,
    interface: &Interface,
    port: Option<u16>,
    sieve: Option<&HelloSieve>,
) -> io::Result<()> {
    let mac = interface.mac.0;
    let high = u32::from_be_bytes([mac[0], mac[1], mac[2], mac[3]]);
    let low = u32::from(u16::from_be_bytes([mac[4], mac[5]]));
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut program = vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump(equal, high, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, 0),
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 4),
        jump(equal, low, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ];
    if let Some(port) = port {
        // Checks that the packet is UDP, is no fragment, and goes to the port; the IP header may have any
        // length.
        program.extend([
            statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 23),
            jump(equal, 17, 1, 0),
            statement(libc::BPF_RET | libc::BPF_K, 0),
            statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 20),
            jump(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0x3FFF, 0, 1),
            statement(libc::BPF_RET | libc::BPF_K, 0),
            statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 14),
            statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 16),
            jump(equal, port.into(), 1, 0),
            statement(libc::BPF_RET | libc::BPF_K, 0),
        ]);
    }
    if let Some(sieve) = sieve {
        program.extend(sift(sieve));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, u32::MAX));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Makes the interface accept frames for a further address while the socket is open.
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

/// Spreads the senders to this interface over its queues. All frames of one source address go to one worker,
/// so that a session stays with its worker.
pub(super) fn join_fanout(
    socket: &OwnedFd,
    config: &LinkConfig,
    interface: &Interface,
    inside_udp: bool,
) -> io::Result<()> {
    // Sockets of one process on one interface and EtherType share a group id.
    let group = (std::process::id() ^ (interface.index << 8) ^ u32::from(config.ethertype)) & 0xFFFF;
    let argument = (group as i32) | (PACKET_FANOUT_CBPF << 16);
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    // Loads the last two bytes of the source address, which are then taken modulo the number of queues. The packet data
    // of this program begins after the Ethernet header; SKF_LL_OFF addresses the header before it.
    let link_layer = libc::SKF_LL_OFF as u32;
    // Inside UDP, senders are distinguished by the source address of the inner frame, after the IP and UDP
    // headers.
    let senders_end = if inside_udp { 20 + 8 + 10 } else { link_layer.wrapping_add(10) };
    let program = [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, senders_end),
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, config.queues),
        statement(libc::BPF_RET | BPF_A, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, &filter)
}

#[cfg(test)]
mod tests {
    use cxloe_wire::frame::Mac;

    use super::*;

    const CN: Mac = Mac([2, 0xF0, 0xFE, 0xDC, 0xBA, 1]);
    const NAMED: Mac = Mac([2, 0xF0, 0xFE, 0xDC, 0xBA, 2]);

    /// Runs a filter program as the kernel does, with `random` as the random number. Returns whether the
    /// program passes the frame.
    fn passes(program: &[libc::sock_filter], frame: &[u8], random: u32) -> bool {
        let load = |at: u32, len: usize| {
            let at = at as usize;
            frame[at..at + len].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
        };
        let (mut at, mut a) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            if code == libc::BPF_RET | libc::BPF_K {
                return k > 0;
            } else if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                a = if k == RANDOM { random } else { load(k, 4) };
            } else if code == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS {
                a = load(k, 2);
            } else if code == libc::BPF_LD | libc::BPF_B | libc::BPF_ABS {
                a = load(k, 1);
            } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
                at += usize::from(if a == k { jt } else { jf });
            } else if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K {
                at += usize::from(if a >= k { jt } else { jf });
            } else {
                panic!("another instruction: {code:#x}");
            }
        }
    }

    fn frame(from: Mac, command: Command) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[6..12].copy_from_slice(&from.0);
        frame[14] = command as u8;
        frame
    }

    #[test]
    fn a_sieve_lets_a_share_of_hellos_through_and_all_other_frames() {
        let quarter = Share(1 << 30);
        let sieve = HelloSieve { known: vec![(CN, Share::ALL), (NAMED, quarter)], others: Share(1 << 20) };
        let program = sift(&sieve);
        let hello = |from, random| passes(&program, &frame(from, Command::Hello), random);
        let similar = |at: usize| {
            let mut mac = CN;
            mac.0[at] ^= 1;
            mac
        };
        for random in [0, 1 << 19, 1 << 20, (1 << 30) - 1, 1 << 30, u32::MAX] {
            assert!(hello(CN, random), "all of it, {random}");
            assert_eq!(hello(NAMED, random), random < 1 << 30, "{random}");
            for other in (0..5).map(similar).chain([Mac([6; 6]), Mac::BROADCAST]) {
                assert_eq!(hello(other, random), random < 1 << 20, "{other}, {random}");
            }
            for command in [Command::ReadReq, Command::Start, Command::Ping, Command::BurstWriteReq] {
                assert!(passes(&program, &frame(Mac([6; 6]), command), random));
                assert!(passes(&program, &frame(NAMED, command), random));
            }
        }
        // For any number of peers, the program must not exceed the kernel's length limit, and each jump distance must
        // fit one byte.
        let known: Vec<_> = (0..128).map(|n| (Mac::from_u64(n), quarter)).collect();
        let program = sift(&HelloSieve { known, others: Share::ALL });
        assert!(program.len() < 4096);
        assert!(!passes(&program, &frame(Mac::from_u64(127), Command::Hello), u32::MAX));
        assert!(passes(&program, &frame(Mac::from_u64(128), Command::Hello), u32::MAX));
    }
}
