//! Notices of the kernel about interfaces and their IP addresses: a netlink socket that wakes the thread at
//! each change and reports deleted interfaces.
//!
//! A notice only triggers a check: the state of the interface is then read by name. So notices that are lost,
//! or that the kernel never sends, only delay the reaction.

#![expect(unsafe_code, reason = "netlink sockets take raw pointers")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::socket::{bind, owned};

/// Length of `struct nlmsghdr`: length, type, and fields that are not used here.
const HEADER: usize = 16;
/// Offsets in `struct ifinfomsg`, which follows the header: address family, index, end.
const FAMILY_AT: usize = HEADER;
const INDEX_AT: usize = HEADER + 4;
const END: usize = HEADER + 16;
/// Length of the buffer in bytes; notices that do not fit are read by the next call.
const BUFFER: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Notices {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl Notices {
    /// Subscribes to changes of interfaces and IP addresses in this thread's network namespace.
    pub fn listen() -> io::Result<Notices> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: creates a socket; the result is checked.
        let socket = owned(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: sockaddr_nl is plain data for which all zeros is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        bind(&socket, &address)?;
        Ok(Notices { socket, buffer: vec![0; BUFFER].into_boxed_slice() })
    }

    /// Descriptor that becomes readable when notices have arrived.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Reads one datagram of notices and passes on the index of each deleted interface. Returns `false` if
    /// there was none.
    pub fn take(&mut self, deleted: &mut dyn FnMut(u32)) -> bool {
        // SAFETY: the kernel writes at most as many bytes as the buffer has, which outlives the call.
        let len = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                self.buffer.as_mut_ptr().cast(),
                self.buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        let Ok(len) = usize::try_from(len) else {
            // ENOBUFS means that notices were lost. The interface is checked nevertheless, and the next call reads the
            // remaining notices.
            return io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
        };
        parse(&self.buffer[..len.min(BUFFER)], deleted);
        len > 0
    }
}

/// Passes on the deletions among the messages of a datagram.
fn parse(mut rest: &[u8], deleted: &mut dyn FnMut(u32)) {
    let u32_at = |bytes: &[u8], at: usize| {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    while rest.len() >= HEADER {
        let len = u32_at(rest, 0) as usize;
        if len < HEADER || len > rest.len() {
            return;
        }
        let (message, kind) = (&rest[..len], u16::from_ne_bytes([rest[4], rest[5]]));
        // The kernel also reports by this type that a port was removed from a bridge, but with another address family.
        if kind == libc::RTM_DELLINK && message.len() >= END && message[FAMILY_AT] == libc::AF_UNSPEC as u8 {
            deleted(u32_at(message, INDEX_AT));
        }
        // Messages are aligned to four bytes.
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, index: u32, more: usize) -> Vec<u8> {
        let mut bytes = vec![0; END + more];
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[FAMILY_AT] = family;
        bytes[INDEX_AT..INDEX_AT + 4].copy_from_slice(&index.to_ne_bytes());
        bytes.resize((END + more).next_multiple_of(4), 0);
        bytes
    }

    fn deleted(bytes: &[u8]) -> Vec<u32> {
        let mut all = Vec::new();
        parse(bytes, &mut |index| all.push(index));
        all
    }

    #[test]
    fn deletions_are_found_among_other_notices() {
        let all = [
            message(libc::RTM_NEWLINK, 0, 3, 41),
            message(libc::RTM_DELLINK, 0, 4, 7),
            message(libc::RTM_DELLINK, libc::AF_BRIDGE as u8, 5, 0),
            message(libc::RTM_DELLINK, 0, 6, 0),
        ]
        .concat();
        assert_eq!(deleted(&all), [4, 6]);
    }

    #[test]
    fn what_is_cut_off_or_lies_about_its_length_ends_the_walk() {
        let whole = message(libc::RTM_DELLINK, 0, 4, 0);
        for len in 0..whole.len() {
            assert_eq!(deleted(&whole[..len]), [] as [u32; 0]);
        }
        for lie in [0_u32, 1, 15, 33, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[..4].copy_from_slice(&lie.to_ne_bytes());
            assert_eq!(deleted(&bytes), [] as [u32; 0]);
        }
        let mut short = whole.clone();
        short[..4].copy_from_slice(&20_u32.to_ne_bytes());
        assert_eq!(deleted(&short), [] as [u32; 0]);
    }
}
