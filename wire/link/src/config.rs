//! Configuration of a link, as the options of the programs set it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};

use crate::outer::{Peers, UdpAddress};

cxloe_wire::named! {
    /// Implementation of [`Link`](crate::Link) for a real interface, or the rule by which one is chosen.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    pub enum Backend {
        /// The raw link that works on this interface and suits both single lines and streams: AF_XDP if the
        /// driver passes frames without a copy, else AF_PACKET rings, else pnet.
        #[default]
        Auto = "auto",
        /// Like `Auto`, but chosen for the shortest round trip of a line.
        AutoLatency = "auto:latency",
        /// Like `Auto`, but chosen for the most frames per second.
        AutoThroughput = "auto:throughput",
        /// AF_XDP: needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the initial user namespace.
        Xdp = "xdp",
        /// AF_PACKET rings: need CAP_NET_RAW.
        Packet = "packet",
        /// pnet: portable but slow, for kernels without packet rings.
        Pnet = "pnet",
        /// UDP sockets: need no rights, and work on any network that carries IP. `Auto` never chooses them, as
        /// both ends must use UDP.
        Udp = "udp",
    }
}

impl Backend {
    /// Values of `--link`, separated by `|`.
    pub const VALUES: &str = "auto|auto:latency|auto:throughput|xdp|packet|pnet|udp";

    /// Values of `--link` for raw links, separated by `|`.
    pub const RAW_VALUES: &str = "auto|auto:latency|auto:throughput|xdp|packet|pnet";

    /// Whether the implementation is chosen when the link is opened.
    pub fn is_auto(self) -> bool {
        matches!(self, Backend::Auto | Backend::AutoLatency | Backend::AutoThroughput)
    }
}

impl FromStr for Backend {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let named = Backend::ALL.into_iter().find(|backend| backend.name() == s);
        named.ok_or_else(|| {
            format!(
                "no link named `{s}`: choose auto, auto:latency, auto:throughput, xdp, packet, pnet or udp"
            )
        })
    }
}

cxloe_wire::spelled!(Backend);

/// Encapsulation of the frames of a raw link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encap {
    /// Frames are sent directly on Ethernet, with their own EtherType.
    #[default]
    None,
    /// Frames are sent inside UDP over IPv4, as on a `udp` link; this link writes the outer headers.
    Udp,
}

impl Encap {
    /// Values of the option `--encap`, separated by `|`.
    pub const VALUES: &str = "none|udp";
}

impl fmt::Display for Encap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encap::None => "none",
            Encap::Udp => "udp",
        })
    }
}

impl FromStr for Encap {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "none" => Ok(Encap::None),
            "udp" => Ok(Encap::Udp),
            _ => Err(format!("frames cannot be put into `{s}`: choose none or udp")),
        }
    }
}

/// Parameters for opening a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Name of the network interface, in the network namespace of the opening thread.
    pub interface: String,
    /// Implementation, or the rule by which one is chosen.
    pub backend: Backend,
    /// Encapsulation of the frames of a raw link.
    pub encap: Encap,
    /// EtherType of the frames ([`ETHERTYPE_DEFAULT`] unless configured).
    pub ethertype: u16,
    /// Priority (PCP 0-7) of an 802.1Q tag with VID 0, which every frame sent then gets, so that PFC pauses
    /// only this class. `None` sends untagged frames.
    pub priority: Option<u8>,
    /// Receive queue of the interface that this link serves (AF_XDP); also the number of the shard if
    /// `sharded` is set.
    pub queue: u32,
    /// Number of links that this process has on the interface. Several AF_PACKET links form a fan-out group, in which
    /// the source address of a frame determines the link.
    pub queues: u32,
    /// Set if each link has its own address: the [`Mac::shard`](cxloe_wire::frame::Mac::shard) of the
    /// interface's address with the link's queue as the number (over UDP also its own port, counted up). If
    /// not set, all links have the interface's address, and each receives the frames of some of the senders.
    pub sharded: bool,
    /// AF_PACKET: pass frames directly to the driver, without the queueing discipline (and `tc`).
    pub qdisc_bypass: bool,
    /// AF_XDP: the receiving thread executes the driver's receive path (SO_PREFER_BUSY_POLL). Fastest for a
    /// thread that spins, useless for a thread that sleeps.
    pub busy_poll: bool,
    /// Local address and peers, for frames inside UDP.
    pub udp: UdpConfig,
}

/// Local address and peers of a `udp` link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpConfig {
    /// Local outer address; by default the first address of the interface, with the default port.
    pub address: UdpAddress,
    /// Outer address registered for each MAC; clones share the table.
    pub peers: Peers,
}

impl LinkConfig {
    /// Whether frames are sent inside UDP, by a `udp` link or an encapsulated raw link; then nodes have outer
    /// addresses.
    pub fn is_over_udp(&self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }

    /// Number of the shard (queue with an address of its own) that the link serves; 0 if the link has the node's
    /// address.
    pub(crate) fn shard(&self) -> u8 {
        if self.sharded { self.queue as u8 } else { 0 }
    }

    /// Number of links that share this link's address, this one included.
    pub(crate) fn sharers(&self) -> u32 {
        if self.sharded { 1 } else { self.queues }
    }

    /// Addresses of all links on an interface with the address `interface`.
    pub(crate) fn addresses(&self, interface: Mac) -> Vec<Mac> {
        let count = if self.sharded { self.queues } else { 1 };
        (0..count).map(|shard| interface.shard(shard as u8)).collect()
    }

    /// Default parameters for `interface`: backend by `Auto`, default EtherType, untagged, one queue.
    pub fn new(interface: impl Into<String>) -> Self {
        LinkConfig {
            interface: interface.into(),
            backend: Backend::Auto,
            encap: Encap::None,
            ethertype: ETHERTYPE_DEFAULT,
            priority: None,
            queue: 0,
            queues: 1,
            sharded: false,
            qdisc_bypass: true,
            busy_poll: true,
            udp: UdpConfig::default(),
        }
    }
}
