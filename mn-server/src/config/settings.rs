//! The options of `mn-server`, each of which may be given as a flag, in the TOML file, or not at all.
//!
//! One struct serves for all three: clap fills it from flags, serde from the file; the flags are laid over the
//! file; and what results is checked and completed into a [`Config`](super::Config). `--print-config` prints
//! a complete one, which is a valid file.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::{CpuList, EtherType, LogFormat, Span};
use cxloe_fabric::model::{DeviceKind, Mac};
use cxloe_link::keys::PeerKey;
use cxloe_link::outer::{Peer, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap};
use serde::{Deserialize, Serialize};

use crate::pool::{ByteSize, PoolSpec};

/// Every option; `None` where it was not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// This node's name in the fabric, unique among memory nodes [default: the host name]
    #[arg(long, help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Where the node remembers what must survive a restart [default: /var/lib/cxloe as root, else
    /// ~/.local/state/cxloe]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,

    /// The socket that tells how things stand: `mn-server sessions` and `mn-server counters` ask there [default:
    /// /run/cxloe/mn-server.sock as root, else below $XDG_RUNTIME_DIR; where that cannot be had, the node serves without]
    #[arg(long, value_name = "PATH", help_heading = "Node", env = "CXLOE_MN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,

    /// The manager to register with, for example https://10.0.0.1:7440 or unix:/run/cxloe-gmm/gmm.sock; several that share a
    /// store, separated by commas [default: the variable CXLOE_MANAGER]
    #[arg(long, value_name = "URL", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,

    /// The file by which this node is known to the manager, as `join` has written it
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<PathBuf>,

    /// Serve without a manager what FILE lists: who gets how much (see the last example below)
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_map: Option<PathBuf>,

    /// How the manager may give this node's memory away: mld (in slices, to many compute nodes) or sld (whole, to one)
    /// [default: mld]
    #[arg(long, value_name = "mld|sld", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceKind>,

    /// The network interface that compute nodes reach this node by, for example enp3s0f0
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

    /// What an idle worker does: busy (spins: fastest, one core each), adaptive or adaptive:TIME (spins that
    /// long, then sleeps), sleep [default: adaptive]
    #[arg(long, value_name = "STYLE", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitStyle>,

    /// Worker threads, one per receive queue of the interface [default: 1]
    #[arg(long, value_name = "N", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,

    /// CPUs to pin the workers to, one each, for example 2,3 or 4-7; best on the NUMA node of the interface
    #[arg(long, value_name = "LIST", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,

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

    /// This node's key, which seals its sessions with compute nodes that have one; made if there is none in FILE
    #[arg(long, value_name = "FILE", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_key: Option<PathBuf>,

    /// The compute node with this MAC has this public key, whatever the manager says; give it once for each
    #[arg(long, value_name = "MAC=KEY", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_key: Option<Vec<PeerKey>>,

    /// Speak without keys, also if there is a --node-key: for laboratories, and for measuring. A node that has no key and is
    /// not told this does not start
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Link")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// What the lent memory is made of: anon, huge2m, huge1g, memfd, file:/path or dax:/dev/daxX.Y
    /// [default: anon]
    #[arg(long, value_name = "KIND", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,

    /// Memory to lend, for example 16G or 512MiB [default: what the file or device has, else 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_size: Option<ByteSize>,

    /// The unit of allocation, a power of two from 64KiB to 1GiB [default: what the file has, else 2MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extent_size: Option<ByteSize>,

    /// Bring all pages in before serving, so that no request waits for one [default: true, for files false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefault: Option<bool>,

    /// Lock the pool into memory, so that it is never swapped out
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlock: Option<bool>,

    /// Take the pool's memory from this NUMA node
    #[arg(long, value_name = "NODE", help_heading = "Pool")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,

    /// Tell compute nodes to slow down when more frames than this wait in a worker's receive queue; 0: never
    /// [default: 512]
    #[arg(long, value_name = "FRAMES", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_threshold: Option<usize>,

    /// Then also send 802.1Qbb (PFC) pause frames, for the switch at the other end of the cable [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pfc: Option<bool>,

    /// How long such a frame asks for, in quanta of 512 bit times [default: 1000, which is 50us at 10 Gbit/s]
    #[arg(long, value_name = "QUANTA", help_heading = "Rate control")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pfc_quanta: Option<u16>,

    /// Translations each worker keeps at hand [default: 1024, enough for 2 GiB in 2 MiB extents]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tlb_entries: Option<usize>,

    /// Sessions, and so compute nodes, at a time [default: 256]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<u32>,

    /// A session not heard of for so long is forgotten [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout: Option<Span>,

    /// Writes that may wait for an earlier request, per session [default: 512]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder_max: Option<u32>,

    /// Writes that may wait for an earlier request, in all sessions of a worker together [default: 8192]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder_total_max: Option<u32>,

    /// Serve metrics for Prometheus at this address, as in 0.0.0.0:9741 or unix:/run/cxloe/mn-server-metrics.sock: /metrics,
    /// and /healthz [default: not served]
    #[arg(long, value_name = "ADDRESS", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsAddress>,

    /// What to log: error, warn, info, debug, trace, or per module, as in info,cxloe_mn=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,

    /// Answer Echo frames, by which bare round trips are measured, of compute nodes that have memory here and a session
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,

    /// Answer Echo frames of this station, session or not; give it once for each
    #[arg(long, value_name = "MAC", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo_for: Option<Vec<Mac>>,

    /// Lose and damage frames on purpose, for tests, as in drop=1%,dup=0.1%,corrupt=0.01%,seed=7
    #[arg(long, value_name = "PLAN", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,

    /// Record every frame in FILE, in pcap format (slow)
    #[arg(long, value_name = "FILE", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,

    /// Stop recording at this size [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Diagnostics")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap_max: Option<ByteSize>,
}
