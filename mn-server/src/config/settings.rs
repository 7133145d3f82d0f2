//! The options of `mn-server`, each of which may be given as a flag, in the TOML file, or not at all.
//!
//! One struct serves for all three: clap fills it from flags, serde from the file; flags override the file; the
//! result is checked and completed into a [`Config`](super::Config). `--print-config` prints a complete one, which is
//! a valid file.

use std::path::PathBuf;

use clap::Args;
use cxloe_daemon::{CpuList, Span};
use cxloe_fabric::model::{DeviceKind, Mac, Name};
use cxloe_node::{DiagnosticsSettings, LinkSettings, NodeSettings};
use serde::{Deserialize, Serialize};

use crate::pool::{ByteSize, PoolSpec};

/// Every option; `None` if not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Options of the node as a part of the fabric.
    #[command(flatten)]
    #[serde(flatten)]
    pub node: NodeSettings,

    /// The node's socket, which `mn-server sessions` and `mn-server counters` use [default: /run/cxloe/mn-server.sock
    /// as root, else below $XDG_RUNTIME_DIR; if that default cannot be bound, the node serves without]
    #[arg(long, value_name = "PATH", help_heading = "Node", env = "CXLOE_MN")]
    pub socket: Option<PathBuf>,

    /// Serve without a manager: FILE lists the memory of each compute node (see the last example below)
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub static_map: Option<PathBuf>,

    /// Allocation of this node's memory: mld (in slices, to many compute nodes) or sld (whole, to one)
    /// [default: mld]
    #[arg(long, value_name = "mld|sld", help_heading = "Node")]
    pub device: Option<DeviceKind>,

    /// Label of this node's rack: copies of a region are placed in different racks
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub rack: Option<Name>,

    /// Options of the link.
    #[command(flatten)]
    #[serde(flatten)]
    pub link: LinkSettings,

    /// Worker threads, one per receive queue of the interface [default: 1]
    #[arg(long, value_name = "N", help_heading = "Link")]
    pub workers: Option<u32>,

    /// CPUs to pin the workers to, one each, for example 2,3 or 4-7; best on the NUMA node of the interface
    #[arg(long, value_name = "LIST", help_heading = "Link")]
    pub cpus: Option<CpuList>,

    /// Kind of memory to lend: anon, huge2m, huge1g, file:/path or dax:/dev/daxX.Y
    /// [default: anon]
    #[arg(long, value_name = "KIND", help_heading = "Pool")]
    pub pool: Option<PoolSpec>,

    /// Memory to lend, for example 16G or 512MiB [default: what the file or device has, else 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Pool")]
    pub pool_size: Option<ByteSize>,

    /// The unit of allocation, a power of two from 64KiB to 1GiB [default: what the file has, else 2MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Pool")]
    pub extent_size: Option<ByteSize>,

    /// Touch all pages before serving, so that no request waits for one [default: true, for files false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    pub prefault: Option<bool>,

    /// Lock the pool into memory, so that it is never swapped out
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    pub mlock: Option<bool>,

    /// Take the pool's memory from this NUMA node
    #[arg(long, value_name = "NODE", help_heading = "Pool")]
    pub numa_node: Option<u32>,

    /// Time for which the pool's memory is kept for the next process after an unexpected end of this one; 0s: not kept.
    /// Under systemd the unit's FileDescriptorStoreMax= decides instead [default: 1m]
    #[arg(long, value_name = "TIME", help_heading = "Pool")]
    pub pool_keep: Option<Span>,

    /// If this node is running, for example an earlier version, end that process and continue with its memory
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    pub take_over: Option<bool>,

    /// Begin with empty memory: memory kept from an earlier process is freed, regions in another pool that this node
    /// served before are given up
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Pool")]
    pub pool_discard: Option<bool>,

    /// Signal congestion to compute nodes when more frames than this wait in a worker's receive queue; 0: never
    /// [default: 512]
    #[arg(long, value_name = "FRAMES", help_heading = "Rate control")]
    pub congestion_threshold: Option<usize>,

    /// Also send 802.1Qbb (PFC) pause frames on congestion, for the switch at the other end of the cable
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Rate control")]
    pub pfc: Option<bool>,

    /// Length of the pause that a PFC frame requests, in quanta of 512 bit times [default: 1000, which is
    /// 50us at 10 Gbit/s]
    #[arg(long, value_name = "QUANTA", help_heading = "Rate control")]
    pub pfc_quanta: Option<u16>,

    /// Entries of each worker's TLB [default: 1024, enough for 2 GiB in 2 MiB extents]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub tlb_entries: Option<usize>,

    /// Maximum number of sessions, and so of compute nodes, at a time [default: 256]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_sessions: Option<u32>,

    /// Silence after which a session is removed [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub session_timeout: Option<Span>,

    /// Maximum number of writes that wait for an earlier request, per session [default: 512]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub reorder_max: Option<u32>,

    /// Maximum number of writes that wait for an earlier request, in all sessions of a worker together
    /// [default: 8192]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub reorder_total_max: Option<u32>,

    /// Options of metrics and logs.
    #[command(flatten)]
    #[serde(flatten)]
    pub diagnostics: DiagnosticsSettings,

    /// Answer Echo frames, which measure bare round trips, from compute nodes that have memory here and a
    /// session
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Diagnostics")]
    pub echo: Option<bool>,

    /// Answer Echo frames from the station with this MAC, with or without a session; can be repeated
    #[arg(long, value_name = "MAC", help_heading = "Diagnostics")]
    pub echo_for: Option<Vec<Mac>>,
}
