//! Options of `mn-server`. Flags override a TOML file, which overrides the environment, which overrides defaults; the
//! result is checked once and complete.
//!
//! [`Cli`] is the command line. [`Cli::resolve`] reads the file named there, merges the sources and returns a complete
//! [`Config`], or an error that names the option and its valid values.

mod joining;
mod settings;

pub use settings::Settings;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use cxloe_daemon::options::{self, in_range, wrong};
use cxloe_daemon::{ConfigError, CpuList, OptionSources, Span};
use cxloe_fabric::model::{DeviceKind, Name};
use cxloe_link::UdpConfig;
use cxloe_link::outer::{Peer, Peers};
use cxloe_mn_core::congestion::{CongestionConfig, THRESHOLD_DEFAULT};
use cxloe_mn_core::translation::TLB_ENTRIES_DEFAULT;
use cxloe_node::NodeConfig;

use crate::keeper::KeeperOptions;
use crate::pool::{ByteSize, PoolOptions};
use crate::worker::EchoFor;

/// Maximum number of frames in a receive ring, which limits the queue.
const QUEUE_MAX: usize = 1023;
/// Default and limits of `session_timeout`.
const SESSION_TIMEOUT_DEFAULT: Span = Span(Duration::from_secs(30));
const SESSION_TIMEOUT_MIN: Span = Span(Duration::from_millis(100));
const SESSION_TIMEOUT_MAX: Span = Span(Duration::from_secs(3600));
/// Default and maximum of `pool_keep`.
const POOL_KEEP_DEFAULT: Span = Span(Duration::from_secs(60));
const POOL_KEEP_MAX: Span = Span(Duration::from_secs(24 * 3600));

/// The command line of `mn-server`.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "mn-server",
    version,
    about = "Memory node of CXL over Ethernet: lends this machine's memory to compute nodes",
    after_help = EXAMPLES,
    max_term_width = 110
)]
pub struct Cli {
    /// Read options from FILE (TOML; the names are those of the flags, as in pool-size = "16GiB"); flags win
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the options in effect as TOML and exit
    #[arg(long)]
    pub print_config: bool,

    /// All other options.
    #[command(flatten)]
    pub settings: OptionSources<Settings>,
}

pub const EXAMPLES: &str = "\
Examples:
  Lend 16 GiB by the interface enp3s0f0, as the manager on 10.0.0.1 sees fit (the token: gmm token create --role mn):
    mn-server join https://10.0.0.1:7440 --token \"$TOKEN\" -i enp3s0f0 --pool-size 16G

  The fastest, once it has joined: huge pages, two spinning workers on CPUs 2 and 3, PFC class 3:
    echo 8200 > /proc/sys/vm/nr_hugepages
    mn-server --config /etc/cxloe/mn-server.toml --pool huge2m --pool-size 16G --workers 2 --cpus 2,3 \\
              --wait busy --priority 3

  A pool in a file, whose content outlives restarts:
    mn-server --config /etc/cxloe/mn-server.toml --pool file:/srv/pool --pool-size 64G

  Turn a file and a command line into a configuration file, and use it:
    mn-server --config /etc/cxloe/mn-server.toml --wait busy --print-config > mn.toml
    mn-server --config mn.toml

  Without a manager, 1 GiB for one compute node, whose key `cn-agent key` prints there:
    printf '[[map]]\\ncn = \"02:00:00:00:00:01\"\\nbase = 0\\nsize = \"1GiB\"\\n' > map.toml
    mn-server -i enp3s0f0 --pool-size 4G --static-map map.toml --node-key mn.key \\
              --peer-key 02:00:00:00:00:01=\"$KEY\"";

/// Options of a memory node, complete and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Options that memory and compute nodes share.
    pub node: NodeConfig,
    /// Path of the administration socket, without which the node does not start; `None`: the default path, which may
    /// stay unbound.
    pub socket: Option<PathBuf>,
    pub source: MapSource,
    /// Whether the manager assigns the memory in slices or as a whole.
    pub device: DeviceKind,
    pub rack: Option<Name>,
    /// Number of worker threads, 1 to 64.
    pub workers: u32,
    /// CPU number for each worker; empty: workers are not pinned.
    pub cpus: Vec<usize>,
    pub pool: PoolOptions,
    /// Time for which the pool's memory is kept after an unexpected end of the process.
    pub pool_keep: Duration,
    /// Set to take over the memory of a running process of this node.
    pub take_over: bool,
    pub tlb_entries: usize,
    /// Frames in a worker's receive queue above which congestion is signalled; 0: never.
    pub congestion_threshold: usize,
    pub pfc: bool,
    /// Length of the pause in an 802.1Qbb frame, in quanta of 512 bit times.
    pub pfc_quanta: u16,
    /// Maximum number of sessions of each worker.
    pub sessions_max: u32,
    /// Time without any frame after which a session is removed.
    pub session_timeout: Duration,
    /// Maximum number of early writes of one session that wait (R10).
    pub reorder_max: u32,
    /// Maximum number of early writes that wait in all sessions of one worker (R10).
    pub reorder_total_max: u32,
    pub echo: EchoFor,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapSource {
    /// Manager with this URL.
    Manager(String),
    /// Static map file at this path.
    Static(PathBuf),
}

impl Cli {
    /// Merges, checks and completes the options.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let file = self.config.as_deref().map(options::read_options).transpose()?.unwrap_or_default();
        let mut settings = options::over(&self.settings.flags.over(file), &self.settings.environment);
        if settings.static_map.is_none() {
            settings.node.manager = options::manager(settings.node.manager);
        }
        Config::new(settings)
    }
}

impl Settings {
    /// Adds the options of `file` that this command line does not set.
    fn over(&self, mut file: Settings) -> Settings {
        // A manager on the command line replaces a static map in the file, and a static map replaces a manager.
        match (&self.node.manager, &self.static_map) {
            (Some(_), None) => file.static_map = None,
            (None, Some(_)) => file.node.manager = None,
            _ => {}
        }
        options::over(self, &file)
    }
}

impl Config {
    /// Checks `settings` and adds defaults.
    ///
    /// # Errors
    /// [`ConfigError::Field`], which names the option.
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = settings;
        let manager = s.node.manager.clone();
        let node = NodeConfig::new("memory-node", s.node, s.link, s.diagnostics)?;
        let source = match (manager, s.static_map) {
            (Some(url), None) => MapSource::Manager(url),
            (None, Some(path)) => MapSource::Static(path),
            (None, None) => {
                return Err(wrong(
                    "manager",
                    "name the source of mappings: --manager URL (or the variable CXLOE_MANAGER), or --static-map FILE",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "static-map",
                    "a node follows a manager or a static map, not both; drop one",
                ));
            }
        };
        let workers = in_range("workers", s.workers.unwrap_or(1), 1, 64)?;
        let cpus = s.cpus.unwrap_or_default().0;
        if !cpus.is_empty() && cpus.len() != workers as usize {
            return Err(wrong(
                "cpus",
                format!("{} CPUs for {workers} workers; name one for each", cpus.len()),
            ));
        }
        let session_timeout = s.session_timeout.unwrap_or(SESSION_TIMEOUT_DEFAULT);
        let Span(session_timeout) =
            in_range("session-timeout", session_timeout, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX)?;
        let reorder_max = in_range("reorder-max", s.reorder_max.unwrap_or(512), 1, 65_536)?;
        Ok(Config {
            node,
            socket: s.socket,
            source,
            device: s.device.unwrap_or_default(),
            rack: s.rack,
            workers,
            cpus,
            pool: PoolOptions {
                spec: s.pool.unwrap_or_default(),
                bytes: s.pool_size.map(|size| size.0),
                extent_bytes: s.extent_size.map(|size| size.0),
                prefault: s.prefault,
                mlock: s.mlock.unwrap_or(false),
                numa_node: s.numa_node,
                discard: s.pool_discard.unwrap_or(false),
            },
            pool_keep: in_range(
                "pool-keep",
                s.pool_keep.unwrap_or(POOL_KEEP_DEFAULT),
                Span(Duration::ZERO),
                POOL_KEEP_MAX,
            )?
            .0,
            take_over: s.take_over.unwrap_or(false),
            congestion_threshold: in_range(
                "congestion-threshold",
                s.congestion_threshold.unwrap_or(THRESHOLD_DEFAULT),
                0,
                QUEUE_MAX,
            )?,
            pfc: s.pfc.unwrap_or(true),
            pfc_quanta: in_range(
                "pfc-quanta",
                s.pfc_quanta.unwrap_or(CongestionConfig::default().quanta),
                1,
                u16::MAX,
            )?,
            tlb_entries: in_range("tlb-entries", s.tlb_entries.unwrap_or(TLB_ENTRIES_DEFAULT), 2, 1 << 20)?,
            sessions_max: in_range("max-sessions", s.max_sessions.unwrap_or(256), 1, 65_536)?,
            session_timeout,
            reorder_max,
            reorder_total_max: in_range(
                "reorder-total-max",
                s.reorder_total_max.unwrap_or(8192.max(reorder_max)),
                // The total must not be lower than the limit of one session, which would then have no effect.
                reorder_max,
                1 << 24,
            )?,
            echo: EchoFor {
                sessions: s.echo.unwrap_or(false),
                named: s.echo_for.unwrap_or_default().into_iter().collect(),
            },
        })
    }

    /// Path of the state file with the highest watermark seen.
    pub fn state_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.state", self.node.name))
    }

    /// Path of the state file with the time since a manager's last answer.
    pub fn heard_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.heard", self.node.name))
    }

    /// Path of the state file with the shares of sealed memory.
    pub fn shares_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.shares", self.node.name))
    }

    /// Path of the state file with memory that is kept and not served.
    pub fn kept_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.kept", self.node.name))
    }

    /// Path of the state file with the pool served last.
    pub fn former_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.pool", self.node.name))
    }

    /// Path of the state file with the compute nodes' keys.
    pub fn keys_path(&self) -> PathBuf {
        self.node.data_dir.join(format!("mn-{}.keys", self.node.name))
    }

    pub fn keeper(&self) -> KeeperOptions {
        KeeperOptions {
            name: self.node.name.to_string(),
            socket: self.node.data_dir.join(format!("mn-{}.keeper", self.node.name)),
            keep: self.pool_keep,
            // Only the process that has locked the file of a pool uses that pool, so only memory without a file can be
            // taken over from a running process.
            take_over: self.take_over && self.pool.spec.is_memory(),
        }
    }

    pub fn congestion(&self) -> CongestionConfig {
        CongestionConfig {
            threshold: self.congestion_threshold,
            quanta: self.pfc_quanta,
            class: self.node.priority.unwrap_or(0),
            ..CongestionConfig::default()
        }
    }

    /// Configuration of a `udp` link; each call makes a separate table of peers.
    pub fn udp(&self) -> UdpConfig {
        // The address of a peer is also used for the peer's shards (one per queue), unless options name addresses for
        // them.
        let shards = self.node.peers.iter().flat_map(|peer| peer.shards());
        let peers: Vec<Peer> = shards.chain(self.node.peers.iter().copied()).collect();
        UdpConfig { address: self.node.udp_address, peers: Peers::named(&peers) }
    }

    /// Writes these options as a TOML file that gives the same options when read. Sizes that a file or device decides
    /// are left out unless given.
    pub fn to_toml(&self) -> String {
        let (manager, static_map) = match self.source.clone() {
            MapSource::Manager(url) => (Some(url), None),
            MapSource::Static(path) => (None, Some(path)),
        };
        let (node, link, diagnostics) = self.node.settings(manager);
        let settings = Settings {
            node,
            link,
            diagnostics,
            socket: self.socket.clone(),
            static_map,
            device: Some(self.device),
            rack: self.rack.clone(),
            workers: Some(self.workers),
            cpus: (!self.cpus.is_empty()).then(|| CpuList(self.cpus.clone())),
            pool: Some(self.pool.spec.clone()),
            pool_size: self.pool.bytes.map(ByteSize),
            extent_size: self.pool.extent_bytes.map(ByteSize),
            prefault: Some(self.pool.prefault.unwrap_or(self.pool.spec.prefaults_by_default())),
            mlock: Some(self.pool.mlock),
            numa_node: self.pool.numa_node,
            pool_keep: Some(Span(self.pool_keep)),
            take_over: self.take_over.then_some(true),
            pool_discard: self.pool.discard.then_some(true),
            congestion_threshold: Some(self.congestion_threshold),
            pfc: Some(self.pfc),
            pfc_quanta: Some(self.pfc_quanta),
            tlb_entries: Some(self.tlb_entries),
            max_sessions: Some(self.sessions_max),
            session_timeout: Some(Span(self.session_timeout)),
            reorder_max: Some(self.reorder_max),
            reorder_total_max: Some(self.reorder_total_max),
            echo: Some(self.echo.sessions),
            echo_for: (!self.echo.named.is_empty()).then(|| self.echo.named.clone()),
        };
        options::to_toml(&settings)
    }
}
