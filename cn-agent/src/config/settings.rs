//! The options of `cn-agent run`, each of which may be given as a flag, in the TOML file, or not at all.
//!
//! One struct serves for all three: clap fills it from flags, and serde from the file; the flags are overlaid on the
//! file, and the result is checked and completed into a [`Config`](super::Config). `--print-config` prints the complete
//! options, which form a valid file.

use std::path::PathBuf;

use clap::Args;
use cxloe_cn_core::backing::Preference;
use cxloe_daemon::{CpuList, PfcTrust, Span, Switch};
use cxloe_fabric::model::ByteSize;
use cxloe_link::limit::Rate;
use cxloe_node::{DiagnosticsSettings, LinkSettings, NodeSettings};
use serde::{Deserialize, Serialize};

/// All options of `cn-agent run`; `None` for an option that was not given.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Options of the node as a part of the fabric.
    #[command(flatten)]
    #[serde(flatten)]
    pub node: NodeSettings,

    /// Backend that serves a region, decided once, when it is first attached: ethernet (its memory nodes), auto (a CXL
    /// device of this machine that fits, in devdax mode and not in use, else Ethernet; the content of the device is
    /// overwritten), cxl (such a device or nothing). `cn-agent list` shows the backend of each region, `cn-agent cxl
    /// list` the devices [default: ethernet]
    #[arg(long, value_name = "auto|ethernet|cxl", help_heading = "Real CXL memory")]
    pub backend: Option<Preference>,

    /// Directory in which sysfs is mounted [default: /sys]
    #[arg(long, value_name = "DIR", help_heading = "Real CXL memory")]
    pub sysfs_root: Option<PathBuf>,

    /// Directory of device files; elsewhere than in /dev, plain files may stand for devices [default: /dev]
    #[arg(long, value_name = "DIR", help_heading = "Real CXL memory")]
    pub dev_root: Option<PathBuf>,

    /// Options of the link.
    #[command(flatten)]
    #[serde(flatten)]
    pub link: LinkSettings,

    /// Worker threads, each with queues of the interface, sessions and a line cache of its own. Each region
    /// is served by one worker: a new one by the worker with the fewest bytes [default: 1]
    #[arg(long, value_name = "N", help_heading = "Link")]
    pub workers: Option<u8>,

    /// CPUs to pin the workers to, one each, for example 2,3 or 4-7; best on the NUMA node of the interface
    #[arg(long, value_name = "LIST", help_heading = "Link", alias = "cpu")]
    pub cpus: Option<CpuList>,

    /// Queues of the interface for each worker: 1, 2, 4, 8 or 16, and at most 16 for all workers. Each has an address of its
    /// own and a session with every memory node; pages are distributed over them, so that several workers of a memory
    /// node serve one worker of this node [default: 1]
    #[arg(long, value_name = "N", help_heading = "Link")]
    pub queues: Option<u8>,

    /// Lifetime of the keys of a session between nodes with keys [default: 2min]
    #[arg(long, value_name = "TIME", hide = true)]
    pub rekey_every: Option<Span>,

    /// Streams of each session, 1 to 64: a lost frame delays its own stream only [default: 4]
    #[arg(long, value_name = "N", help_heading = "Link")]
    pub streams: Option<u8>,

    /// Silence after which operations on a memory node fail, until it answers again [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "Link")]
    pub session_timeout: Option<Span>,

    /// Pace requests by the queues that memory nodes report, and by trusted PFC frames [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Rate control")]
    pub rate_control: Option<Switch>,

    /// The link's rate, for example 25Gbit/s [default: the interface's, else 10Gbit/s]
    #[arg(long, value_name = "RATE", help_heading = "Rate control")]
    pub link_rate: Option<Rate>,

    /// Time after the last pause until the rate grows [default: 50us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t1: Option<Span>,

    /// Pauses within this time count once [default: 10us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t2: Option<Span>,

    /// Interval of the steps of fast recovery [default: 11us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t3: Option<Span>,

    /// Time of stable running before higher rates are explored [default: 200us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t4: Option<Span>,

    /// Interval of the increments when exploring [default: 40us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t5: Option<Span>,

    /// After a pause while exploring, time to wait for another one [default: 20us]
    #[arg(long, value_name = "TIME", help_heading = "Rate control")]
    pub cc_t6: Option<Span>,

    /// An increment when exploring [default: a hundredth of the link's rate]
    #[arg(long, value_name = "RATE", help_heading = "Rate control")]
    pub cc_increment: Option<Rate>,

    /// Largest burst in bytes after idle time [default: 16K]
    #[arg(long, value_name = "SIZE", help_heading = "Rate control")]
    pub cc_bucket: Option<ByteSize>,

    /// Whether 802.1Qbb (PFC) frames on the cable, and the NIC's count of them, slow requests down: ignore, or trust
    /// (any station on the cable can send them; their effect is bounded) [default: ignore]
    #[arg(long, value_name = "ignore|trust", help_heading = "Rate control")]
    pub pfc: Option<PfcTrust>,

    /// With --pfc trust: the NIC's counter of received PFC frames (`ethtool -S` lists them), with {} for the class
    /// [default: known for common drivers]
    #[arg(long, value_name = "NAME", help_heading = "Rate control")]
    pub pfc_counter: Option<String>,

    /// Size of the line cache, for example 32K; 0 for none [default: 32K]
    #[arg(long, value_name = "SIZE", help_heading = "Cache")]
    pub cache_size: Option<ByteSize>,

    /// Ways of the line cache, 1 to 16 [default: 4]
    #[arg(long, value_name = "N", help_heading = "Cache")]
    pub cache_ways: Option<usize>,

    /// The socket by which programs reach this agent [default: /run/cxloe/cn-agent.sock as root, else below
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", help_heading = "Programs", env = "CXLOE_AGENT")]
    pub socket: Option<PathBuf>,

    /// Maximum number of ports that programs have open at a time [default: 64]
    #[arg(long, value_name = "N", help_heading = "Programs")]
    pub max_clients: Option<usize>,

    /// Maximum number of ports of one user, unless that is root or the agent's own [default: a quarter of
    /// --max-clients]
    #[arg(long, value_name = "N", help_heading = "Users")]
    pub user_ports: Option<usize>,

    /// Maximum number of regions that programs of one user map at a time [default: 64, a quarter of all]
    #[arg(long, value_name = "N", help_heading = "Users")]
    pub user_regions: Option<usize>,

    /// Maximum number of processes of one user that have remote memory [default: a quarter of those for which
    /// this agent may open files]
    #[arg(long, value_name = "N", help_heading = "Users")]
    pub user_processes: Option<usize>,

    /// Maximum size in total of the regions that are created for programs of one user (exec --size, vm
    /// --size) [default: a quarter of all pools]
    #[arg(long, value_name = "SIZE", help_heading = "Users")]
    pub user_memory: Option<ByteSize>,

    /// Let programs of all users handle page faults of system calls (/dev/userfaultfd), which exec and vm need. Such
    /// a user can delay the kernel inside a system call [default: root and the agent's user only]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Programs")]
    pub allow_kernel_faults: Option<bool>,

    /// Options of metrics and logs.
    #[command(flatten)]
    #[serde(flatten)]
    pub diagnostics: DiagnosticsSettings,
}
