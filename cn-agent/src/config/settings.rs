//! The options of `cn-agent run`, each of which may be given as a flag, in the TOML file, or not at all.
//!
//! One struct serves for all three: clap fills it from flags, serde from the file; the flags are laid over the
//! file; and what results is checked and completed into a [`Config`](super::Config). `--print-config` prints
//! a complete one, which is a valid file.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::{EtherType, LogFormat, PfcTrust, Span, Switch};
use cxloe_fabric::model::ByteSize;
use cxloe_link::keys::PeerKey;
use cxloe_link::limit::Rate;
use cxloe_link::outer::{Peer, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap};
use serde::{Deserialize, Serialize};

use cxloe_cn_core::backing::Preference;

/// Every option; `None` where it was not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// This node's name in the fabric, unique among compute nodes [default: the host name]
    #[arg(long, help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Where the node remembers what must survive a restart [default: /var/lib/cxloe as root, else
    /// ~/.local/state/cxloe]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,

    /// The manager to register with, for example https://10.0.0.1:7440 or unix:/run/cxloe-gmm/gmm.sock; several that share a
    /// store, separated by commas [default: the variable CXLOE_MANAGER]
    #[arg(long, value_name = "URL", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,

    /// The file by which this node is known to the manager, as `join` has written it
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<PathBuf>,

    /// What serves a region, decided once, when it is first attached: ethernet (its memory nodes), auto (a CXL device of
    /// this machine that fits, in devdax mode and not in use, else Ethernet; what is on the device is overwritten), cxl
    /// (such a device or nothing). `cn-agent list` tells what serves each, `cn-agent cxl list` what there is
    /// [default: ethernet]
    #[arg(long, value_name = "auto|ethernet|cxl", help_heading = "Real CXL memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Preference>,

    /// Where the kernel shows devices [default: /sys]
    #[arg(long, value_name = "DIR", help_heading = "Real CXL memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_root: Option<PathBuf>,

    /// Where device files are; elsewhere than in /dev, plain files may stand for devices [default: /dev]
    #[arg(long, value_name = "DIR", help_heading = "Real CXL memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev_root: Option<PathBuf>,

    /// The network interface by which this node reaches memory nodes, for example enp3s0f0; its MAC address
    /// is the CN id
    #[arg(short, long, value_name = "NAME", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,

    /// How frames are exchanged with the kernel: auto takes what suits the interface and logs why; auto:latency the
    /// quickest for single lines, auto:throughput the one with the most frames a second; udp puts frames into UDP, which
    /// both ends have to do, and needs no rights
    #[arg(long, value_name = Backend::VALUES, help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Backend>,

    /// What frames of a raw link travel in: none (Ethernet) or udp, as those of link udp, under headers of this node's own, so that
    /// any network that carries IPv4 carries them, and NICs spread them over queues [default: none]
    #[arg(long, value_name = Encap::VALUES, help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encap: Option<Encap>,

    /// Over UDP: where this node listens, as ADDRESS, ADDRESS:PORT or :PORT [default: the interface's first address, port
    /// 63669]
    #[arg(long, value_name = "ADDRESS", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_address: Option<UdpAddress>,

    /// Over UDP: the node with this MAC is at this address, whatever the manager says; give it once for each
    #[arg(long, value_name = "MAC=ADDRESS:PORT", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_peer: Option<Vec<Peer>>,

    /// Use so many queues of the interface, 1, 2, 4, 8 or 16, each with an address and a session of its own with every
    /// memory node, by page, so that as many workers there serve this node [default: 1]
    #[arg(long, value_name = "N", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u8>,

    /// What the idle worker does: busy (spins: fastest, one whole core), adaptive or adaptive:TIME (spins that
    /// long, then sleeps), sleep [default: adaptive]
    #[arg(long, value_name = "STYLE", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitStyle>,

    /// CPU to pin the worker to; best on the NUMA node of the interface
    #[arg(long, value_name = "CPU", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,

    /// Tag frames with this 802.1Q priority (0 to 7), so that PFC acts on their class only [default: untagged]
    #[arg(long, value_name = "PCP", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,

    /// EtherType of the frames; the same on every node [default: 0x88B5]
    #[arg(long, value_name = "HEX", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,

    /// Seal frames with the pre-shared key in FILE, instead of a plain checksum
    #[arg(long, value_name = "FILE", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,

    /// This node's key, which seals its sessions with memory nodes that have one; made if there is none in FILE
    #[arg(long, value_name = "FILE", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_key: Option<PathBuf>,

    /// The memory node with this MAC has this public key, whatever the manager says; give it once for each
    #[arg(long, value_name = "MAC=KEY", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_key: Option<Vec<PeerKey>>,

    /// A session between keys gets new ones this often [default: 2min]
    #[arg(long, value_name = "TIME", hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rekey_every: Option<Span>,

    /// Speak without keys, also if there is a --node-key: for laboratories, and for measuring. A node that has no key and is
    /// not told this does not start
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// Streams of each session, 1 to 64: a lost frame holds up its own stream only [default: 4]
    #[arg(long, value_name = "N", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u8>,

    /// A memory node silent for so long is gone: operations on it fail until it is back [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout: Option<Span>,

    /// Pace requests by what memory nodes say of their queues, and by trusted PFC frames [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_control: Option<Switch>,

    /// The link's rate, for example 25Gbit/s [default: what the interface says, else 10Gbit/s]
    #[arg(long, value_name = "RATE", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_rate: Option<Rate>,

    /// Wait so long after the last pause before speeding up [default: 50us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t1: Option<Span>,

    /// Pauses closer together than this count once [default: 10us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t2: Option<Span>,

    /// Interval of the speed-ups of fast recovery [default: 11us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t3: Option<Span>,

    /// Run stable for so long before exploring higher rates [default: 200us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t4: Option<Span>,

    /// Interval of the increments when exploring [default: 40us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t5: Option<Span>,

    /// After a pause while exploring, wait so long for another one [default: 20us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_t6: Option<Span>,

    /// An increment when exploring [default: a hundredth of the link's rate]
    #[arg(long, value_name = "RATE", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_increment: Option<Rate>,

    /// Bytes that may leave at once after a rest [default: 16K]
    #[arg(long, value_name = "SIZE", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc_bucket: Option<ByteSize>,

    /// Whether 802.1Qbb (PFC) frames on the cable, and the NIC's count of them, slow requests down: ignore, or trust
    /// whoever is at the cable, within bounds [default: ignore]
    #[arg(long, value_name = "ignore|trust", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pfc: Option<PfcTrust>,

    /// With --pfc trust: the statistic by which the NIC counts received PFC frames (`ethtool -S` lists them), {} standing
    /// for the class [default: the one known of its driver]
    #[arg(long, value_name = "NAME", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pfc_counter: Option<String>,

    /// Size of the line cache, for example 32K; 0 for none [default: 32K]
    #[arg(long, value_name = "SIZE", help_heading = "Cache")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_size: Option<ByteSize>,

    /// Ways of the line cache, 1 to 16 [default: 4]
    #[arg(long, value_name = "N", help_heading = "Cache")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_ways: Option<usize>,

    /// The socket by which programs reach this agent [default: /run/cxloe/cn-agent.sock as root, else below
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", help_heading = "Programs", env = "CXLOE_AGENT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,

    /// Ports that programs may have open at a time [default: 64]
    #[arg(long, value_name = "N", help_heading = "Programs")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clients: Option<usize>,

    /// Give programs of all users /dev/userfaultfd, so that pages that are not here may be given to system calls: exec and vm
    /// need it. A user who has it can hold the kernel up inside a system call [default: root and the agent's user only]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Programs")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_kernel_faults: Option<bool>,

    /// Serve metrics for Prometheus at this address, as in 0.0.0.0:9742 or unix:/run/cxloe/cn-agent-metrics.sock: /metrics,
    /// and /healthz [default: not served]
    #[arg(long, value_name = "ADDRESS", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsAddress>,

    /// What to log: error, warn, info, debug, trace, or per module, as in info,cxloe_cn=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,

    /// Lose and damage frames on purpose, for tests, as in drop=1%,dup=0.1%,corrupt=0.01%,seed=7
    #[arg(long, value_name = "PLAN", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,

    /// Record every frame in FILE, in pcap format (slow)
    #[arg(long, value_name = "FILE", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,

    /// Stop recording at this size [default: 1G]
    #[arg(long, value_name = "SIZE", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap_max: Option<ByteSize>,
}
