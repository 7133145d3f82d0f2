//! Options of both kinds of node, in the three groups of `--help`. A program's own options struct flattens the groups,
//! for clap and for serde.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::{EtherType, LogFormat};
use cxloe_fabric::model::ByteSize;
use cxloe_link::keys::PeerKey;
use cxloe_link::outer::{Peer, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap};
use serde::{Deserialize, Serialize};

/// Options of the node as a part of the fabric; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeSettings {
    /// This node's name in the fabric, unique among nodes of its kind [default: the host name]
    #[arg(long, help_heading = "Node")]
    pub name: Option<String>,

    /// Folder for state that must survive a restart [default: /var/lib/cxloe as root, else ~/.local/state/cxloe]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    pub data_dir: Option<PathBuf>,

    /// The manager to register with, for example https://10.0.0.1:7440 or unix:/run/cxloe-gmm/gmm.sock; several that share a
    /// store, separated by commas [default: the variable CXLOE_MANAGER]
    #[arg(long, value_name = "URL", help_heading = "Node")]
    pub manager: Option<String>,

    /// The file with this node's certificate for the manager, as `join` has written it
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub identity: Option<PathBuf>,
}

/// Options of the link and of its protection; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkSettings {
    /// The network interface by which this node reaches the other nodes, for example enp3s0f0, or an alternative name of up
    /// to 15 characters; or a device of DPDK, as dpdk:0000:03:00.0 or dpdk:0000:03:00.0,mtu=9000. The MAC address of a
    /// compute node's interface is its CN id
    #[arg(short, long, value_name = "NAME", help_heading = "Link")]
    pub interface: Option<String>,

    /// Backend that exchanges frames with the kernel: auto selects by the interface and logs why; auto:latency
    /// selects the fastest for single lines, auto:throughput the one with the most frames per second; udp puts frames
    /// into UDP datagrams, needs no rights, and has to be used at both ends
    #[arg(long, value_name = Backend::VALUES, help_heading = "Link")]
    pub link: Option<Backend>,

    /// Encapsulation of frames of a raw link: none (Ethernet), or udp (compatible with link udp, with headers
    /// written by the node): for networks that carry IPv4 only, and NICs that spread UDP flows over queues [default:
    /// none]
    #[arg(long, value_name = Encap::VALUES, help_heading = "Link")]
    pub encap: Option<Encap>,

    /// Over UDP: local address, as ADDRESS, ADDRESS:PORT or :PORT [default: the interface's first address, port 63669]
    #[arg(long, value_name = "ADDRESS", help_heading = "Link")]
    pub udp_address: Option<UdpAddress>,

    /// Over UDP: address of the node with this MAC, instead of the one from the manager; can be repeated
    #[arg(long, value_name = "MAC=ADDRESS:PORT", help_heading = "Link")]
    pub udp_peer: Option<Vec<Peer>>,

    /// Waiting style of an idle worker: busy (spins: fastest, one whole core each), adaptive or adaptive:TIME (spins that
    /// long, then sleeps), sleep [default: adaptive]
    #[arg(long, value_name = "busy|adaptive|sleep", help_heading = "Link")]
    pub wait: Option<WaitStyle>,

    /// Tag frames with this 802.1Q priority (0 to 7), so that PFC acts on their class only [default: untagged]
    #[arg(long, value_name = "PCP", help_heading = "Link")]
    pub priority: Option<u8>,

    /// EtherType of the frames; the same on every node [default: 0x88B5]
    #[arg(long, value_name = "HEX", help_heading = "Link")]
    pub ethertype: Option<EtherType>,

    /// Seal frames under the pre-shared key in FILE, the same on all nodes
    #[arg(long, value_name = "FILE", help_heading = "Link")]
    pub key_file: Option<PathBuf>,

    /// This node's private key, which seals its sessions with nodes that have a key; created if FILE does not exist
    #[arg(long, value_name = "FILE", help_heading = "Link")]
    pub node_key: Option<PathBuf>,

    /// Public key of the node with this MAC, instead of the one from the manager; can be repeated
    #[arg(long, value_name = "MAC=KEY", help_heading = "Link")]
    pub peer_key: Option<Vec<PeerKey>>,

    /// Do not seal frames, even with a --node-key: for laboratories and measurements. A node without a key does not
    /// start without this option
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Link")]
    pub insecure: Option<bool>,
}

/// Options of metrics, logs, and what tests and measurements record and inject; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DiagnosticsSettings {
    /// Serve metrics for Prometheus at this address, as in 0.0.0.0:9741 (of a memory node; of a compute node 9742) or
    /// unix:/run/cxloe/metrics.sock: /metrics, and /healthz [default: not served]
    #[arg(long, value_name = "ADDRESS", help_heading = "Diagnostics")]
    pub metrics: Option<MetricsAddress>,

    /// Log filter: error, warn, info, debug, trace, or per module, as in info,cxloe_link=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Diagnostics")]
    pub log: Option<String>,

    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Diagnostics")]
    pub log_format: Option<LogFormat>,

    /// Drop and corrupt frames on purpose, for tests, as in drop=1%,dup=0.1%,corrupt=0.01%,seed=7
    #[arg(long, value_name = "PLAN", help_heading = "Diagnostics")]
    pub faults: Option<String>,

    /// Record every frame in FILE, in pcap format (slow)
    #[arg(long, value_name = "FILE", help_heading = "Diagnostics")]
    pub pcap: Option<PathBuf>,

    /// Stop recording at this size [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Diagnostics")]
    pub pcap_max: Option<ByteSize>,
}
