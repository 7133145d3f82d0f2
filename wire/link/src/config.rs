//! Which link to open, and how.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};

use crate::outer::{Peers, UdpAddress};

/// An implementation of [`Link`](crate::Link) on a real interface, or what one is to be chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Backend {
    /// The raw link that works here, with what is known of the interface, and serves both single lines and streams: AF_XDP where the
    /// driver hands frames over without a copy, else AF_PACKET rings, else pnet.
    #[default]
    Auto,
    /// The same for the shortest round trip of a line.
    AutoLatency,
    /// The same for the most frames a second.
    AutoThroughput,
    /// AF_XDP: needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in the initial user namespace.
    Xdp,
    /// AF_PACKET rings: needs CAP_NET_RAW.
    Packet,
    /// pnet: portable, slow, for kernels without packet rings.
    Pnet,
    /// UDP sockets: no rights needed, any network that carries IP. Never chosen by itself: both ends have to use it.
    Udp,
}

impl Backend {
    /// What options show as their values.
    pub const VALUES: &str = "auto|auto:latency|auto:throughput|xdp|packet|pnet|udp";

    /// The same where frames cannot be inside UDP.
    pub const RAW_VALUES: &str = "auto|auto:latency|auto:throughput|xdp|packet|pnet";

    /// Whether the implementation is chosen when the link is opened.
    pub fn is_auto(self) -> bool {
        matches!(self, Backend::Auto | Backend::AutoLatency | Backend::AutoThroughput)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::AutoLatency => "auto:latency",
            Backend::AutoThroughput => "auto:throughput",
            Backend::Xdp => "xdp",
            Backend::Packet => "packet",
            Backend::Pnet => "pnet",
            Backend::Udp => "udp",
        })
    }
}

impl FromStr for Backend {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "auto" => Backend::Auto,
            "auto:latency" => Backend::AutoLatency,
            "auto:throughput" => Backend::AutoThroughput,
            "xdp" => Backend::Xdp,
            "packet" => Backend::Packet,
            "pnet" => Backend::Pnet,
            "udp" => Backend::Udp,
            _ => {
                return Err(format!(
                    "no link named `{s}`: choose auto, auto:latency, auto:throughput, xdp, packet, pnet or udp"
                ));
            }
        })
    }
}

impl TryFrom<String> for Backend {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Backend> for String {
    fn from(backend: Backend) -> String {
        backend.to_string()
    }
}

/// What frames of a raw link travel in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encap {
    /// Ethernet, with an EtherType of their own.
    #[default]
    None,
    /// UDP over IPv4, as those of link `udp`, under headers that the link writes.
    Udp,
}

impl Encap {
    /// What options show as their values.
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

/// How to open a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The network interface, in the network namespace of the opening thread.
    pub interface: String,
    /// Which implementation.
    pub backend: Backend,
    /// What frames travel in, where the implementation is a raw one.
    pub encap: Encap,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// Priority (PCP 0-7) of an 802.1Q tag with VID 0 that every frame sent gets, so that PFC acts on this
    /// class only; `None` sends untagged.
    pub priority: Option<u8>,
    /// Which receive queue of the interface (AF_XDP) this link serves.
    pub queue: u32,
    /// How many links of this process share the interface. With AF_PACKET more than one makes a fan-out
    /// group by source address.
    pub queues: u32,
    /// Whether each of them has an address of its own, [`Mac::shard`](cxloe_wire::frame::Mac::shard) of the interface's by
    /// its queue (over UDP also a port, counted up), instead of a share of those who send to the interface's.
    pub sharded: bool,
    /// AF_PACKET: hand frames to the driver directly, past the queueing discipline (and `tc`).
    pub qdisc_bypass: bool,
    /// AF_XDP: the receiving thread runs the driver's receive path itself (SO_PREFER_BUSY_POLL). Fastest
    /// for a thread that spins, pointless for one that sleeps.
    pub busy_poll: bool,
    /// What a `udp` link needs to know besides.
    pub udp: UdpConfig,
}

/// Where a `udp` link listens, and whom it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpConfig {
    /// The outer address; by default the interface's first at the usual port.
    pub address: UdpAddress,
    /// Which outer address speaks for which MAC. Shared with those who learn of nodes.
    pub peers: Peers,
}

impl LinkConfig {
    /// Whether frames travel inside UDP, by whatever link: then nodes have outer addresses.
    pub fn is_over_udp(&self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }

    /// Which shard of its node the link is; 0 if it has the node's own address.
    pub(crate) fn shard(&self) -> u8 {
        if self.sharded { self.queue as u8 } else { 0 }
    }

    /// How many links share the address of this one.
    pub(crate) fn sharers(&self) -> u32 {
        if self.sharded { 1 } else { self.queues }
    }

    /// The addresses of all links of the interface, given the interface's.
    pub(crate) fn addresses(&self, interface: Mac) -> Vec<Mac> {
        let count = if self.sharded { self.queues } else { 1 };
        (0..count).map(|shard| interface.shard(shard as u8)).collect()
    }

    /// The defaults on `interface`: the best backend, the default EtherType, untagged, one queue.
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
