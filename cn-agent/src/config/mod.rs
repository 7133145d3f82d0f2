//! What `cn-agent run` is told: flags over a TOML file over defaults, checked once and complete from then on.
//!
//! [`RunArgs`] is the command line. [`RunArgs::resolve`] reads the file it names, lays the flags over it and
//! returns a [`Config`], in which nothing is missing; or an error that names the option and says what would
//! be right.

mod joining;
mod settings;

pub use settings::Settings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::options::{self, Protection, in_range, wrong};
use cxloe_daemon::{ConfigError, EtherType, LogFormat, PfcTrust, Span, Switch, log, places};
use cxloe_fabric::model::{ByteSize, Name};
use cxloe_link::fault::FaultPlan;
use cxloe_link::keys::{KeyFileError, PeerKey, node_key};
use cxloe_link::outer::{Peer, Peers, UdpAddress};
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, Encap, UdpConfig};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, SHARDS_MAX};
use cxloe_wire::session::{NodeKey, STREAMS_MAX, Timing};

use cxloe_client::places::default_socket;
use cxloe_cn_core::attach::STREAMS_DEFAULT;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::BUCKET_DEFAULT;
use cxloe_cxl::{DEV_ROOT, HandOverOptions, SYSFS_ROOT};
use cxloe_port::rate_control::RateControl;
use cxloe_rings::clients::CLIENTS_LIMIT;

/// Clients at a time unless told otherwise.
const CLIENTS_DEFAULT: usize = 64;
/// The largest line cache: a flush walks all of it.
const CACHE_MAX: u64 = 64 << 20;
/// The shortest and the longest time that a session's keys are used.
const REKEY_MIN: Span = Span(Duration::from_millis(10));
const REKEY_MAX: Span = Span(Duration::from_secs(120));
/// The shortest and the longest silence that may end a session.
const SESSION_TIMEOUT_MIN: Span = Span(Duration::from_millis(100));
const SESSION_TIMEOUT_MAX: Span = Span(Duration::from_secs(60));

/// The command line of `cn-agent run`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Read options from FILE (TOML; the names are those of the flags, as in cache-size = "64K"); flags win
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the options in effect as TOML and exit
    #[arg(long)]
    pub print_config: bool,

    /// All others.
    #[command(flatten)]
    pub settings: Settings,
}

const EXAMPLES: &str = "\
Examples:
  Reach memory nodes by the interface enp3s0f0, as the manager on 10.0.0.1 sees fit (the token: gmm token create --role cn):
    cn-agent join https://10.0.0.1:7440 --token \"$TOKEN\" -i enp3s0f0

  The fastest, once it has joined: a spinning worker on CPU 2, PFC class 3, a larger line cache:
    cn-agent run --config /etc/cxloe/cn-agent.toml --wait busy --cpu 2 --priority 3 --cache-size 256K

  Serve regions from a CXL device of this machine where one fits:
    cn-agent run --config /etc/cxloe/cn-agent.toml --backend auto

  Turn a file and a command line into a configuration file, and use it:
    cn-agent run --config /etc/cxloe/cn-agent.toml --wait busy --print-config > cn.toml
    cn-agent run --config cn.toml";

/// Complete and checked options.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name in the fabric.
    pub name: Name,
    /// Where the state file lies.
    pub data_dir: PathBuf,
    /// The manager's URL.
    pub manager: String,
    /// By which file the manager knows this node, if it has joined.
    pub identity: Option<PathBuf>,
    /// What new regions are served by, and where CXL devices are looked for.
    pub cxl: HandOverOptions,
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
    /// Queues of the interface: 1, 2, 4, 8 or 16.
    pub queues: u8,
    /// What the idle worker does.
    pub wait: WaitStyle,
    /// The CPU of the worker; `None`: not pinned.
    pub cpu: Option<usize>,
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
    /// How often a session between keys gets new ones.
    pub rekey_every: Duration,
    /// Whether it speaks without keys although it has one.
    pub insecure: bool,
    /// Streams of each session, 1 to [`STREAMS_MAX`].
    pub streams: u8,
    /// Silence after which a memory node is gone.
    pub session_timeout: Duration,
    /// How requests are paced; `None`: not at all.
    pub rate_control: Option<RateControl>,
    /// The line cache.
    pub cache: CacheConfig,
    /// Where programs reach this agent.
    pub socket: PathBuf,
    /// Ports at a time.
    pub clients_max: usize,
    /// Whether programs of all users may handle page faults that the kernel takes on their behalf.
    pub allow_kernel_faults: bool,
    /// Where metrics are served, if they are.
    pub metrics: Option<MetricsAddress>,
    /// Log filter.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Faults made on purpose, as written; see [`Config::fault_plan`].
    pub faults: Option<String>,
    /// Where to record frames.
    pub pcap: Option<PathBuf>,
    /// Bytes after which recording stops.
    pub pcap_bytes_max: u64,
}

impl RunArgs {
    /// The options in effect.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let mut settings = match &self.config {
            Some(path) => options::over(&self.settings, &options::read(path)?),
            None => self.settings.clone(),
        };
        settings.manager = options::manager(settings.manager);
        Config::new(settings)
    }
}

/// The number of queues: a power of two, for a page's is told by some bits of its address.
fn queues(asked: Option<u8>) -> Result<u8, ConfigError> {
    let queues = asked.unwrap_or(1);
    match queues.is_power_of_two() && queues <= SHARDS_MAX {
        true => Ok(queues),
        false => Err(wrong("queues", format!("{queues} is none of 1, 2, 4, 8 and {SHARDS_MAX}"))),
    }
}

impl Config {
    /// Checks `settings` and fills in what is missing.
    ///
    /// # Errors
    /// [`ConfigError::Field`].
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = settings;
        let name = options::node_name(s.name, "compute-node")?;
        let interface = options::interface(s.interface)?;
        let manager = s.manager.ok_or_else(|| {
            wrong("manager", "say who gives memory away, as in --manager https://10.0.0.1:7440, or by the variable CXLOE_MANAGER")
        })?;
        cxloe_fabric::Client::new(&manager).map_err(|error| wrong("manager", error))?;
        let ethertype = options::ethertype(s.ethertype, ETHERTYPE_DEFAULT)?;
        let priority = options::priority(s.priority)?;
        let session_timeout = s.session_timeout.unwrap_or(Span(Timing::default().dead_after));
        let Span(session_timeout) =
            in_range("session-timeout", session_timeout, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX)?;
        let rekey_every = s.rekey_every.unwrap_or(Span(Timing::default().rekey_every));
        let Span(rekey_every) = in_range("rekey-every", rekey_every, REKEY_MIN, REKEY_MAX)?;
        let rate_control = RateControl {
            link: s.link_rate,
            times: [s.cc_t1, s.cc_t2, s.cc_t3, s.cc_t4, s.cc_t5, s.cc_t6].map(|time| time.map(|span| span.0)),
            increment: s.cc_increment,
            bucket: s.cc_bucket.map_or(BUCKET_DEFAULT, |size| size.0),
            trust_pfc: s.pfc == Some(PfcTrust::Trust),
            nic_counter: s.pfc_counter,
        };
        rate_control.check().map_err(|(field, reason)| wrong(field, reason))?;
        let bytes = s.cache_size.map_or(CacheConfig::default().bytes as u64, |size| size.0);
        if bytes > CACHE_MAX {
            return Err(wrong("cache-size", format!("{} is too much; choose up to 64M", ByteSize(bytes))));
        }
        let cache =
            CacheConfig { bytes: bytes as usize, ways: s.cache_ways.unwrap_or(CacheConfig::default().ways) };
        cache.check().map_err(|reason| wrong("cache-size", reason))?;
        if let Some(plan) = &s.faults {
            plan.parse::<FaultPlan>().map_err(|error| wrong("faults", error))?;
        }
        Ok(Config {
            name,
            data_dir: s.data_dir.unwrap_or_else(places::data_dir),
            manager,
            identity: s.identity,
            cxl: HandOverOptions {
                preference: s.backend.unwrap_or_default(),
                sysfs_root: s.sysfs_root.unwrap_or_else(|| SYSFS_ROOT.into()),
                dev_root: s.dev_root.unwrap_or_else(|| DEV_ROOT.into()),
            },
            interface,
            backend: s.link.unwrap_or_default(),
            encap: s.encap.unwrap_or_default(),
            udp_address: s.udp_address.unwrap_or_default(),
            peers: s.udp_peer.unwrap_or_default(),
            queues: queues(s.queues)?,
            wait: s.wait.unwrap_or_default(),
            cpu: s.cpu,
            priority,
            ethertype,
            key_file: s.key_file,
            node_key: s.node_key,
            peer_keys: s.peer_key.unwrap_or_default(),
            rekey_every,
            insecure: s.insecure.unwrap_or(false),
            streams: in_range("streams", s.streams.unwrap_or(STREAMS_DEFAULT), 1, STREAMS_MAX as u8)?,
            session_timeout,
            rate_control: (s.rate_control != Some(Switch::Off)).then_some(rate_control),
            cache,
            socket: s.socket.unwrap_or_else(default_socket),
            clients_max: in_range("max-clients", s.max_clients.unwrap_or(CLIENTS_DEFAULT), 1, CLIENTS_LIMIT)?,
            allow_kernel_faults: s.allow_kernel_faults.unwrap_or(false),
            metrics: s.metrics,
            log: s.log.unwrap_or_else(|| log::FILTER_DEFAULT.into()),
            log_format: s.log_format.unwrap_or_default(),
            faults: s.faults,
            pcap: s.pcap,
            pcap_bytes_max: s.pcap_max.map_or(1 << 30, |size| size.0),
        })
    }

    /// How long sessions wait for what: the silence that ends one as told, the rest in proportion.
    pub fn timing(&self) -> Timing {
        let usual = Timing::default();
        let dead_after = self.session_timeout;
        Timing {
            dead_after,
            suspect_after: usual.suspect_after.min(dead_after / 4),
            ping_every: usual.ping_every.min(dead_after / 4),
            timeout_max: usual.timeout_max.min(dead_after / 4),
            rekey_every: self.rekey_every,
            ..usual
        }
    }

    /// What protects the frames of this node's sessions.
    ///
    /// # Errors
    /// [`ConfigError::Unprotected`]: nothing does, and nobody has asked for that.
    pub fn protection(&self) -> Result<Protection, ConfigError> {
        options::protection("cn-agent", self.node_key.is_some(), self.key_file.is_some(), self.insecure)
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
        UdpConfig { address: self.udp_address, peers: Peers::named(&self.peers) }
    }

    /// The faults to be made on purpose.
    pub fn fault_plan(&self) -> Option<FaultPlan> {
        self.faults.as_ref().map(|plan| plan.parse().expect("checked when the options were"))
    }

    /// These options as a TOML file that yields them again.
    pub fn to_toml(&self) -> String {
        let rates = self.rate_control.clone().unwrap_or_default();
        let [t1, t2, t3, t4, t5, t6] = rates.times.map(|time| time.map(Span));
        let settings = Settings {
            name: Some(self.name.to_string()),
            data_dir: Some(self.data_dir.clone()),
            manager: Some(self.manager.clone()),
            identity: self.identity.clone(),
            backend: Some(self.cxl.preference),
            sysfs_root: Some(self.cxl.sysfs_root.clone()),
            dev_root: Some(self.cxl.dev_root.clone()),
            interface: Some(self.interface.clone()),
            link: Some(self.backend),
            encap: Some(self.encap),
            udp_address: (self.udp_address != UdpAddress::default()).then_some(self.udp_address),
            udp_peer: (!self.peers.is_empty()).then(|| self.peers.clone()),
            queues: Some(self.queues),
            wait: Some(self.wait),
            cpu: self.cpu,
            priority: self.priority,
            ethertype: Some(EtherType(self.ethertype)),
            key_file: self.key_file.clone(),
            node_key: self.node_key.clone(),
            peer_key: (!self.peer_keys.is_empty()).then(|| self.peer_keys.clone()),
            rekey_every: (self.rekey_every != Timing::default().rekey_every)
                .then_some(Span(self.rekey_every)),
            insecure: self.insecure.then_some(true),
            streams: Some(self.streams),
            session_timeout: Some(Span(self.session_timeout)),
            rate_control: Some(if self.rate_control.is_some() { Switch::On } else { Switch::Off }),
            link_rate: rates.link,
            cc_t1: t1,
            cc_t2: t2,
            cc_t3: t3,
            cc_t4: t4,
            cc_t5: t5,
            cc_t6: t6,
            cc_increment: rates.increment,
            cc_bucket: Some(ByteSize(rates.bucket)),
            pfc: Some(if rates.trust_pfc { PfcTrust::Trust } else { PfcTrust::Ignore }),
            pfc_counter: rates.nic_counter,
            cache_size: Some(ByteSize(self.cache.bytes as u64)),
            cache_ways: Some(self.cache.ways),
            socket: Some(self.socket.clone()),
            max_clients: Some(self.clients_max),
            allow_kernel_faults: self.allow_kernel_faults.then_some(true),
            metrics: self.metrics.clone(),
            log: Some(self.log.clone()),
            log_format: Some(self.log_format),
            faults: self.faults.clone(),
            pcap: self.pcap.clone(),
            pcap_max: Some(ByteSize(self.pcap_bytes_max)),
        };
        options::to_toml(&settings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use cxloe_cn_core::backing::Preference;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn resolve(flags: &str) -> Result<Config, ConfigError> {
        Line::try_parse_from(["run"].into_iter().chain(flags.split_whitespace())).unwrap().run.resolve()
    }

    const LEAST: &str = "-i cn0 --manager http://127.0.0.1:7440";

    #[test]
    fn the_least_is_enough_and_the_paper_is_the_default() {
        let config = resolve(LEAST).unwrap();
        assert_eq!((config.cache.bytes, config.cache.ways), (32 << 10, 4));
        assert_eq!(config.timing(), Timing::default());
        // What is on a device would be overwritten: nobody's is without being asked for.
        assert_eq!((config.cxl.preference, &*config.cxl.dev_root), (Preference::Ethernet, "/dev".as_ref()));
    }

    #[test]
    fn flags_win_over_the_file_and_what_is_printed_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cn.toml");
        let first = resolve(&format!("{LEAST} --cache-size 64K --wait sleep --queues 4 --backend auto --sysfs-root /x/sys --streams 2 --cpu 1 --cc-t4 1ms --link-rate 25Gbit/s --pfc trust --pfc-counter rx_prio{{}}_pause")).unwrap();
        std::fs::write(&path, first.to_toml()).unwrap();
        let second = resolve(&format!("--config {} --streams 3", path.display())).unwrap();
        assert_eq!((second.streams, second.cache, second.wait), (3, first.cache, WaitStyle::Sleep));
        assert_eq!(second.queues, 4);
        assert_eq!((second.cxl.preference, &*second.cxl.sysfs_root), (Preference::Auto, "/x/sys".as_ref()));
        let third = Config { streams: 2, ..second };
        assert_eq!(third.to_toml(), first.to_toml());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (flags, said) in [
            ("--manager http://127.0.0.1:1", "-i enp3s0f0"),
            ("-i cn0", "--manager http"),
            ("-i cn0 --manager ftp://x", "https://HOST"),
            ("-i a-name-that-is-too-long --manager http://h:1", "1 to 15"),
            ("-i cn0 --manager http://h:1 --ethertype 0x8100", "0x88B5"),
            ("-i cn0 --manager http://h:1 --priority 8", "0 to 7"),
            ("-i cn0 --manager http://h:1 --streams 65", "1 to 64"),
            ("-i cn0 --manager http://h:1 --queues 3", "none of 1, 2, 4, 8 and 16"),
            ("-i cn0 --manager http://h:1 --queues 0", "none of 1, 2"),
            ("-i cn0 --manager http://h:1 --queues 32", "none of 1, 2"),
            ("-i cn0 --manager http://h:1 --session-timeout 10ms", "100ms"),
            ("-i cn0 --manager http://h:1 --cache-size 33000", "32768"),
            ("-i cn0 --manager http://h:1 --cache-size 1G", "64M"),
            ("-i cn0 --manager http://h:1 --max-clients 0", "1 to 4096"),
            ("-i cn0 --manager http://h:1 --cc-t4 1m", "1us to 10s"),
            ("-i cn0 --manager http://h:1 --cc-bucket 1K", "1500 to 16M"),
            ("-i cn0 --manager http://h:1 --faults banana", "faults"),
            ("--config /nonexistent.toml", "/nonexistent.toml"),
        ] {
            let error = resolve(flags).unwrap_err().to_string();
            assert!(error.contains(said), "{flags}: {error}");
        }
    }

    #[test]
    fn short_limits_keep_their_proportions() {
        let timing = resolve(&format!("{LEAST} --session-timeout 1s")).unwrap().timing();
        assert!(timing.suspect_after < timing.dead_after && timing.timeout_max < timing.dead_after);
    }
}
