//! What `mn-server` is told: flags over a TOML file over defaults, checked once and complete from then on.
//!
//! [`Cli`] is the command line. [`Cli::resolve`] reads the file it names, lays the flags over it and returns a
//! [`Config`], in which nothing is missing; or an error that names the option and says what would be right.

mod joining;
mod settings;

pub use settings::Settings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::options::{self, Protection, in_range, wrong};
use cxloe_daemon::{ConfigError, CpuList, EtherType, LogFormat, Span, log, places};
use cxloe_fabric::model::DeviceKind;
use cxloe_link::fault::FaultPlan;
use cxloe_link::keys::{KeyFileError, PeerKey, node_key};
use cxloe_link::outer::{Peer, Peers, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap, UdpConfig};
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::session::NodeKey;

use crate::pool::{ByteSize, PoolOptions};
use crate::worker::EchoFor;
use cxloe_mn_core::congestion::{CongestionConfig, THRESHOLD_DEFAULT};
use cxloe_mn_core::translation::TLB_ENTRIES_DEFAULT;

/// Frames a receive ring holds, at most; one more never waits.
const QUEUE_MAX: usize = 1023;
/// How long a session may be silent unless told otherwise, and what may be told.
const SESSION_TIMEOUT_DEFAULT: Span = Span(Duration::from_secs(30));
const SESSION_TIMEOUT_MIN: Span = Span(Duration::from_millis(100));
const SESSION_TIMEOUT_MAX: Span = Span(Duration::from_secs(3600));

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

    /// All others.
    #[command(flatten)]
    pub settings: Settings,
}

/// Command lines to start from.
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

/// Complete and checked options.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name in the fabric.
    pub name: String,
    /// Where the state file lies.
    pub data_dir: PathBuf,
    /// Where `mn-server sessions` asks, if the node is to have this socket or not to start; `None`: the default place,
    /// if it can be had.
    pub socket: Option<PathBuf>,
    /// Who says what to serve.
    pub source: MapSource,
    /// By which file the manager knows this node, if it has joined.
    pub identity: Option<PathBuf>,
    /// Whether its memory is given away in slices or whole.
    pub device: DeviceKind,
    /// The network interface.
    pub interface: String,
    /// How frames are exchanged with the kernel.
    pub backend: Backend,
    /// What frames of a raw link travel in.
    pub encap: Encap,
    /// Where this node listens over UDP.
    pub udp_address: UdpAddress,
    /// Peers over UDP that are known beforehand.
    pub peers: Vec<Peer>,
    /// What an idle worker does.
    pub wait: WaitStyle,
    /// Worker threads, 1 to 64.
    pub workers: u32,
    /// CPU numbers, one per worker; empty: not pinned.
    pub cpus: Vec<usize>,
    /// 802.1Q priority, 0 to 7; `None`: untagged.
    pub priority: Option<u8>,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// File with the pre-shared key; `None`: frames carry a plain checksum.
    pub key_file: Option<PathBuf>,
    /// File with this node's key; `None`: it has none.
    pub node_key: Option<PathBuf>,
    /// Public keys of other nodes that are known beforehand.
    pub peer_keys: Vec<PeerKey>,
    /// Whether it speaks without keys although it has one.
    pub insecure: bool,
    /// The memory to lend.
    pub pool: PoolOptions,
    /// Entries of each worker's TLB.
    pub tlb_entries: usize,
    /// Frames that may wait in a worker's receive queue; 0: any number.
    pub congestion_threshold: usize,
    /// Whether 802.1Qbb frames are sent.
    pub pfc: bool,
    /// How long they ask for, in quanta of 512 bit times.
    pub pfc_quanta: u16,
    /// Sessions at a time.
    pub sessions_max: u32,
    /// Silence after which a session is forgotten.
    pub session_timeout: Duration,
    /// Requests waiting for an earlier one, per session.
    pub reorder_max: u32,
    /// Requests waiting for an earlier one, per worker.
    pub reorder_total_max: u32,
    /// Where metrics are served, if they are.
    pub metrics: Option<MetricsAddress>,
    /// Log filter.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Whose Echo frames are answered.
    pub echo: EchoFor,
    /// Faults made on purpose, as written; see [`Config::fault_plan`].
    pub faults: Option<String>,
    /// Where to record frames.
    pub pcap: Option<PathBuf>,
    /// Bytes after which recording stops.
    pub pcap_bytes_max: u64,
}

/// Who says what this node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapSource {
    /// The manager at this URL.
    Manager(String),
    /// This static map file.
    Static(PathBuf),
}

impl Cli {
    /// The options in effect.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let mut settings = match &self.config {
            Some(path) => self.settings.over(options::read(path)?),
            None => self.settings.clone(),
        };
        if settings.static_map.is_none() {
            settings.manager = options::manager(settings.manager);
        }
        Config::new(settings)
    }
}

impl Settings {
    /// These options, and those of `file` where they have none.
    fn over(&self, mut file: Settings) -> Settings {
        // Who is asked on the command line is asked instead of whom the file names.
        match (&self.manager, &self.static_map) {
            (Some(_), None) => file.static_map = None,
            (None, Some(_)) => file.manager = None,
            _ => {}
        }
        options::over(self, &file)
    }
}

impl Config {
    /// Checks `settings` and fills in what is missing.
    ///
    /// # Errors
    /// [`ConfigError::Field`].
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = settings;
        let name = options::node_name(s.name, "memory-node")?;
        let interface = options::interface(s.interface)?;
        let source = match (s.manager, s.static_map) {
            (Some(url), None) => {
                cxloe_fabric::Client::new(&url).map_err(|error| wrong("manager", error))?;
                MapSource::Manager(url)
            }
            (None, Some(path)) => MapSource::Static(path),
            (None, None) => {
                return Err(wrong(
                    "manager",
                    "say who gives the memory away: --manager URL (or the variable CXLOE_MANAGER), or --static-map FILE",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "static-map",
                    "a node obeys a manager or a static map, not both; drop one",
                ));
            }
        };
        let ethertype = options::ethertype(s.ethertype, ETHERTYPE_DEFAULT)?;
        let priority = options::priority(s.priority)?;
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
        if let Some(plan) = &s.faults {
            plan.parse::<FaultPlan>().map_err(|error| wrong("faults", error))?;
        }
        let reorder_max = in_range("reorder-max", s.reorder_max.unwrap_or(512), 1, 65_536)?;
        Ok(Config {
            data_dir: s.data_dir.unwrap_or_else(places::data_dir),
            socket: s.socket,
            source,
            identity: s.identity,
            device: s.device.unwrap_or_default(),
            interface,
            backend: s.link.unwrap_or_default(),
            encap: s.encap.unwrap_or_default(),
            udp_address: s.udp_address.unwrap_or_default(),
            peers: s.udp_peer.unwrap_or_default(),
            wait: s.wait.unwrap_or_default(),
            workers,
            cpus,
            priority,
            ethertype,
            key_file: s.key_file,
            node_key: s.node_key,
            peer_keys: s.peer_key.unwrap_or_default(),
            insecure: s.insecure.unwrap_or(false),
            pool: PoolOptions {
                spec: s.pool.unwrap_or_default(),
                bytes: s.pool_size.map(|size| size.0),
                extent_bytes: s.extent_size.map(|size| size.0),
                prefault: s.prefault,
                mlock: s.mlock.unwrap_or(false),
                numa_node: s.numa_node,
            },
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
                reorder_max,
                1 << 24,
            )?,
            metrics: s.metrics,
            log: s.log.unwrap_or_else(|| log::FILTER_DEFAULT.into()),
            log_format: s.log_format.unwrap_or_default(),
            echo: EchoFor {
                sessions: s.echo.unwrap_or(false),
                named: s.echo_for.unwrap_or_default().into_iter().collect(),
            },
            faults: s.faults,
            pcap: s.pcap,
            pcap_bytes_max: s.pcap_max.map_or(1 << 30, |size| size.0),
            name: name.to_string(),
        })
    }

    /// Where the highest term and revision of a manager are kept.
    pub fn state_path(&self) -> PathBuf {
        self.data_dir.join(format!("mn-{}.state", self.name))
    }

    /// Where it is kept for how long no manager has been heard.
    pub fn heard_path(&self) -> PathBuf {
        self.data_dir.join(format!("mn-{}.heard", self.name))
    }

    /// Where the keys of compute nodes are kept.
    pub fn keys_path(&self) -> PathBuf {
        self.data_dir.join(format!("mn-{}.keys", self.name))
    }

    /// When compute nodes are told to slow down.
    pub fn congestion(&self) -> CongestionConfig {
        CongestionConfig {
            threshold: self.congestion_threshold,
            quanta: self.pfc_quanta,
            class: self.priority.unwrap_or(0),
            ..CongestionConfig::default()
        }
    }

    /// What protects the frames of this node's sessions.
    ///
    /// # Errors
    /// [`ConfigError::Unprotected`]: nothing does, and nobody has asked for that.
    pub fn protection(&self) -> Result<Protection, ConfigError> {
        options::protection("mn-server", self.node_key.is_some(), self.key_file.is_some(), self.insecure)
    }

    /// This node's key; `None` if it has none, or is to speak without.
    ///
    /// # Errors
    /// Any [`KeyFileError`].
    pub fn own_key(&self) -> Result<Option<Arc<NodeKey>>, KeyFileError> {
        let path = self.node_key.as_deref().filter(|_| !self.insecure);
        path.map(|path| node_key(path).map(Arc::new)).transpose()
    }

    /// Whether frames travel inside UDP, by whatever link.
    pub fn is_over_udp(&self) -> bool {
        self.backend == Backend::Udp || self.encap == Encap::Udp
    }

    /// What a `udp` link needs to know besides; each call makes a table of peers of its own.
    pub fn udp(&self) -> UdpConfig {
        // Whoever is named also has its shards, unless those are named as well.
        let shards = self.peers.iter().flat_map(|peer| peer.shards());
        let peers: Vec<Peer> = shards.chain(self.peers.iter().copied()).collect();
        UdpConfig { address: self.udp_address, peers: Peers::named(&peers) }
    }

    /// The faults to be made on purpose.
    pub fn fault_plan(&self) -> Option<FaultPlan> {
        self.faults.as_ref().map(|plan| plan.parse().expect("checked when the options were"))
    }

    /// These options as a TOML file that yields them again. Sizes that a file or device decides are left out
    /// unless given.
    pub fn to_toml(&self) -> String {
        let (manager, static_map) = match self.source.clone() {
            MapSource::Manager(url) => (Some(url), None),
            MapSource::Static(path) => (None, Some(path)),
        };
        let settings = Settings {
            name: Some(self.name.clone()),
            data_dir: Some(self.data_dir.clone()),
            socket: self.socket.clone(),
            manager,
            identity: self.identity.clone(),
            static_map,
            device: Some(self.device),
            interface: Some(self.interface.clone()),
            link: Some(self.backend),
            encap: Some(self.encap),
            udp_address: (self.udp_address != UdpAddress::default()).then_some(self.udp_address),
            udp_peer: (!self.peers.is_empty()).then(|| self.peers.clone()),
            wait: Some(self.wait),
            workers: Some(self.workers),
            cpus: (!self.cpus.is_empty()).then(|| CpuList(self.cpus.clone())),
            priority: self.priority,
            ethertype: Some(EtherType(self.ethertype)),
            key_file: self.key_file.clone(),
            node_key: self.node_key.clone(),
            peer_key: (!self.peer_keys.is_empty()).then(|| self.peer_keys.clone()),
            insecure: self.insecure.then_some(true),
            pool: Some(self.pool.spec.clone()),
            pool_size: self.pool.bytes.map(ByteSize),
            extent_size: self.pool.extent_bytes.map(ByteSize),
            prefault: Some(self.pool.prefault.unwrap_or(self.pool.spec.prefaults_by_default())),
            mlock: Some(self.pool.mlock),
            numa_node: self.pool.numa_node,
            congestion_threshold: Some(self.congestion_threshold),
            pfc: Some(self.pfc),
            pfc_quanta: Some(self.pfc_quanta),
            tlb_entries: Some(self.tlb_entries),
            max_sessions: Some(self.sessions_max),
            session_timeout: Some(Span(self.session_timeout)),
            reorder_max: Some(self.reorder_max),
            reorder_total_max: Some(self.reorder_total_max),
            metrics: self.metrics.clone(),
            log: Some(self.log.clone()),
            log_format: Some(self.log_format),
            echo: Some(self.echo.sessions),
            echo_for: (!self.echo.named.is_empty()).then(|| self.echo.named.clone()),
            faults: self.faults.clone(),
            pcap: self.pcap.clone(),
            pcap_max: Some(ByteSize(self.pcap_bytes_max)),
        };
        options::to_toml(&settings)
    }
}
