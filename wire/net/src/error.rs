//! Errors of opening a link, and of links that have stopped working.

use std::net::SocketAddr;

use cxloe_wire::frame::Mac;

/// Reason why a link could not be opened or has stopped working. Each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no such interface in this network namespace.
    #[error(
        "no network interface named `{0}` here; `ip link` lists them (names differ between network namespaces)"
    )]
    NoSuchInterface(String),
    /// The interface exists but is not up.
    #[error("interface `{0}` is down; bring it up with `ip link set {0} up`")]
    Down(String),
    /// Opening raw sockets was refused.
    #[error("no permission to {what} on `{interface}`: {needs}")]
    Permission {
        /// System call or other operation that failed.
        what: &'static str,
        /// Name of the interface.
        interface: String,
        /// The missing capability and the way to grant it.
        needs: &'static str,
    },
    /// The MTU does not even carry a single line.
    #[error(
        "MTU {mtu} of `{interface}` is too small: at least {needed} bytes are needed; raise it with `ip link set {interface} mtu 1500` (9000 is best where every hop allows it)"
    )]
    MtuTooSmall {
        /// Name of the interface.
        interface: String,
        /// MTU of the interface in bytes.
        mtu: usize,
        /// Least MTU in bytes: for a line with its header and trailer.
        needed: usize,
    },
    /// This kernel or interface lacks a feature that the backend needs.
    #[error("{backend} does not work on `{interface}`: {why}")]
    Unsupported {
        /// Name of the backend requested.
        backend: &'static str,
        /// Name of the interface.
        interface: String,
        /// Feature that is missing, as text.
        why: String,
    },
    /// A `udp` link has no address to listen at.
    #[error(
        "interface `{0}` has no IP address to listen at; give it one with `ip address add ADDRESS/PREFIX dev {0}`, or name an address of this machine with --udp-address"
    )]
    NoAddress(String),
    /// Another process has the address of a `udp` link.
    #[error(
        "{address} on `{interface}` is in use by another process; end it, or listen elsewhere with --udp-address: `:PORT` takes another port of the same address"
    )]
    AddressInUse {
        /// Name of the interface.
        interface: String,
        /// Address and port in use.
        address: SocketAddr,
    },
    /// Frames were to go to a MAC for which no outer address is known.
    #[error(
        "no UDP address is known for {0}: start that node with --link udp, so that the manager learns it, or name it here with --udp-peer {0}=ADDRESS:PORT"
    )]
    NoPeerAddress(Mac),
    /// Frames have become too long for the path to a peer.
    #[error(
        "IP packets of {packet} bytes do not pass to {peer}: the path carries {path}, `{interface}` {mtu}; raise the MTU of the hop that is narrower, or lower this one with `ip link set {interface} mtu {path}`"
    )]
    PathMtu {
        /// Name of the interface.
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
    /// Any other failure of a system call.
    #[error("{what} on `{interface}`: {source}")]
    Io {
        /// System call or other operation that failed.
        what: &'static str,
        /// Name of the interface.
        interface: String,
        /// Error that the operating system returned.
        source: std::io::Error,
    },
}

impl LinkError {
    /// Whether the next attempt with the same options ends the same way.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            LinkError::NoSuchInterface(_) | LinkError::Permission { .. } | LinkError::Unsupported { .. }
        )
    }
}
