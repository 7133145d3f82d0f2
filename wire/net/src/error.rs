//! Errors when a link is opened, and of a link that has stopped working.

use std::net::SocketAddr;

use cxloe_wire::frame::Mac;

/// Reason why a link could not be opened or has stopped working. Each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// This network namespace has no interface of that name.
    #[error(
        "no network interface named `{0}` here; `ip link` lists them (names differ between network namespaces)"
    )]
    NoSuchInterface(String),
    /// The interface exists but is set down.
    #[error("interface `{0}` is down; bring it up with `ip link set {0} up`")]
    Down(String),
    /// The kernel refused a system call for lack of rights.
    #[error("no permission to {what} on `{interface}`: {needs}")]
    Permission {
        /// Operation that failed, as a part of a sentence.
        what: &'static str,
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// Missing capability, and the way to grant it.
        needs: &'static str,
    },
    /// The MTU is too small for a frame with a single line.
    #[error(
        "MTU {mtu} of `{interface}` is too small: at least {needed} bytes are needed; raise it with `ip link set {interface} mtu 1500` (9000 is best where every hop allows it)"
    )]
    MtuTooSmall {
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// MTU of the interface in bytes.
        mtu: usize,
        /// Minimum MTU in bytes: that of a line with its header and trailer.
        needed: usize,
    },
    /// This kernel or interface lacks a feature that the backend needs.
    #[error("{backend} does not work on `{interface}`: {why}")]
    Unsupported {
        /// Kind of link that was asked for.
        backend: &'static str,
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// Missing feature, as a part of a sentence.
        why: String,
    },
    /// The interface of a `udp` link has no IP address to listen at.
    #[error(
        "interface `{0}` has no IP address to listen at; give it one with `ip address add ADDRESS/PREFIX dev {0}`, or name an address of this machine with --udp-address"
    )]
    NoAddress(String),
    /// Another process uses the address of a `udp` link.
    #[error(
        "{address} on `{interface}` is in use by another process; end it, or listen elsewhere with --udp-address: `:PORT` takes another port of the same address"
    )]
    AddressInUse {
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// Address and port that the other process uses.
        address: SocketAddr,
    },
    /// A frame could not be sent, because no outer address is known for its destination MAC.
    #[error(
        "no UDP address is known for {0}: start that node with --link udp, so that the manager learns it, or name it here with --udp-peer {0}=ADDRESS:PORT"
    )]
    NoPeerAddress(Mac),
    /// The path to a peer no longer carries packets as long as the frames need.
    #[error(
        "IP packets of {packet} bytes do not pass to {peer}: the path carries {path}, `{interface}` {mtu}; raise the MTU of the hop that is narrower, or lower this one with `ip link set {interface} mtu {path}`"
    )]
    PathMtu {
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// MTU of the interface in bytes.
        mtu: usize,
        /// Outer address that the frames go to.
        peer: SocketAddr,
        /// MTU of the path to the peer in bytes; 0 if it is no longer known.
        path: usize,
        /// Length in bytes of the packet to be sent, headers included.
        packet: usize,
    },
    /// Another error of a system call.
    #[error("{what} on `{interface}`: {source}")]
    Io {
        /// Operation that failed, as a part of a sentence.
        what: &'static str,
        /// Name of the network interface, as in the kernel's lists.
        interface: String,
        /// Error of the system call.
        source: std::io::Error,
    },
}

impl LinkError {
    /// Whether another attempt with the same options would fail in the same way.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            LinkError::NoSuchInterface(_) | LinkError::Permission { .. } | LinkError::Unsupported { .. }
        )
    }
}
