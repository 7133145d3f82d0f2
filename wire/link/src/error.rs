//! Why a link could not be opened or has stopped working.

use std::net::SocketAddr;

use cxloe_wire::frame::Mac;

/// Why a link could not be opened or has stopped working. Each message says what to do.
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
        /// What was tried.
        what: &'static str,
        /// On which interface.
        interface: String,
        /// Which capability is missing and how to give it.
        needs: &'static str,
    },
    /// The MTU does not even carry a single line.
    #[error(
        "MTU {mtu} of `{interface}` is too small: at least {needed} bytes are needed; raise it with `ip link set {interface} mtu 1500` (9000 is best where every hop allows it)"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
        /// What a line with its header and trailer takes.
        needed: usize,
    },
    /// This kernel or interface lacks what the backend needs.
    #[error("{backend} does not work on `{interface}`: {why}")]
    Unsupported {
        /// The backend asked for.
        backend: &'static str,
        /// The interface.
        interface: String,
        /// What is missing.
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
        /// The interface.
        interface: String,
        /// The address.
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
        /// The interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// Where the frames were to go.
        peer: SocketAddr,
        /// The MTU of the path there in bytes; 0 if it is not known any more.
        path: usize,
        /// Length in bytes of what was to be sent, headers included.
        packet: usize,
    },
    /// Any other failure of a system call.
    #[error("{what} on `{interface}`: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which interface.
        interface: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
}
