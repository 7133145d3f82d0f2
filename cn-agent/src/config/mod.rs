//! Options of `cn-agent run`, from flags, a TOML file, the environment and defaults, in this order of
//! precedence. They are checked once, and are complete afterwards.
//!
//! [`RunArgs`] is the command line. [`RunArgs::resolve`] reads the file it names, overlays the layers and
//! returns a [`Config`] without missing values; or an error that names the option and its valid values.

mod joining;
mod settings;

pub use settings::Settings;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cxloe_daemon::options::{self, in_range, wrong};
use cxloe_daemon::{ConfigError, CpuList, OptionSources, PfcTrust, Span, Switch};
use cxloe_fabric::model::ByteSize;
use cxloe_node::NodeConfig;
use cxloe_wire::frame::SHARDS_MAX;
use cxloe_wire::session::{STREAMS_MAX, Timing};

use cxloe_client::defaults::default_socket;
use cxloe_cn_core::attach::STREAMS_DEFAULT;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::BUCKET_DEFAULT;
use cxloe_cn_core::mapped::SPACES_MAX;
use cxloe_cn_core::user_shares::{SHARE_DEFAULT, UserShares};
use cxloe_cxl::{DEV_ROOT, HandOverOptions, SYSFS_ROOT};
use cxloe_paging::spare_files::processes_max;
use cxloe_port::rate_control::RateControl;
use cxloe_rings::clients::CLIENTS_LIMIT;

/// Default limit of open ports.
const CLIENTS_DEFAULT: usize = 64;
/// Largest size of the line cache in bytes; a flush walks all of it.
const CACHE_MAX: u64 = 64 << 20;
/// Range of the lifetime of a session's keys.
const REKEY_MIN: Span = Span(Duration::from_millis(10));
const REKEY_MAX: Span = Span(Duration::from_secs(120));
/// Range of the silence after which a session ends.
const SESSION_TIMEOUT_MIN: Span = Span(Duration::from_millis(100));
const SESSION_TIMEOUT_MAX: Span = Span(Duration::from_secs(60));

/// Command line of `cn-agent run`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Read options from FILE (TOML; the names are those of the flags, as in cache-size = "64K"); flags win
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the options in effect as TOML and exit
    #[arg(long)]
    pub print_config: bool,

    /// All other options.
    #[command(flatten)]
    pub settings: OptionSources<Settings>,
}

const EXAMPLES: &str = "\
Examples:
  Reach memory nodes by the interface enp3s0f0, as the manager on 10.0.0.1 sees fit (the token: gmm token create --role cn):
    cn-agent join https://10.0.0.1:7440 --token \"$TOKEN\" -i enp3s0f0

  The fastest, once it has joined: a spinning worker on CPU 2, PFC class 3, a larger line cache:
    cn-agent run --config /etc/cxloe/cn-agent.toml --wait busy --cpus 2 --priority 3 --cache-size 256K

  For many programs at once: four workers, each with a queue of the interface and a CPU:
    cn-agent run --config /etc/cxloe/cn-agent.toml --workers 4 --cpus 2-5

  Serve regions from a CXL device of this machine where one fits:
    cn-agent run --config /etc/cxloe/cn-agent.toml --backend auto

  Turn a file and a command line into a configuration file, and use it:
    cn-agent run --config /etc/cxloe/cn-agent.toml --wait busy --print-config > cn.toml
    cn-agent run --config cn.toml";

/// Complete and checked options.
#[derive(Clone, Debug)]
pub struct Config {
    /// Options that compute nodes and memory nodes share.
    pub node: NodeConfig,
    /// URL of the manager.
    pub manager: String,
    /// Preference for serving new regions, and paths under which CXL devices are sought.
    pub cxl: HandOverOptions,
    /// Number of worker threads, 1 to 16.
    pub workers: u8,
    /// CPU number for each worker; empty: workers are not pinned.
    pub cpus: Vec<usize>,
    /// Number of queues of the interface for each worker: 1, 2, 4, 8 or 16.
    pub queues: u8,
    /// Lifetime of a session's keys.
    pub rekey_every: Duration,
    /// Number of streams of each session, 1 to [`STREAMS_MAX`].
    pub streams: u8,
    /// Silence after which a memory node counts as gone.
    pub session_timeout: Duration,
    /// Parameters of the rate control of requests; `None` without rate control.
    pub rate_control: Option<RateControl>,
    /// Size and ways of the line cache.
    pub cache: CacheConfig,
    /// Path of this agent's socket.
    pub socket: PathBuf,
    /// Maximum number of ports that programs have open at a time.
    pub clients_max: usize,
    /// Maximum use of each resource by one user.
    pub shares: UserShares,
    /// Whether programs of all users may handle page faults that the kernel raises in system calls.
    pub allow_kernel_faults: bool,
}

impl RunArgs {
    /// Reads the file, overlays the flags, and checks the result.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let file = self.config.as_deref().map(options::read_options).transpose()?.unwrap_or_default();
        let mut settings = self.settings.over(&file);
        settings.node.manager = options::manager(settings.node.manager);
        Config::new(settings)
    }
}

/// Checks the number of queues of each worker: a power of two, because bits of a page's address select its queue.
fn queues(asked: Option<u8>, workers: u8) -> Result<u8, ConfigError> {
    let queues = asked.unwrap_or(1);
    if !queues.is_power_of_two() || queues > SHARDS_MAX {
        return Err(wrong("queues", format!("{queues} is not one of 1, 2, 4, 8 and {SHARDS_MAX}")));
    }
    if u32::from(queues) * u32::from(workers) > u32::from(SHARDS_MAX) {
        let reason = format!("{workers} workers with {queues} queues each are more than {SHARDS_MAX} queues");
        return Err(wrong("queues", reason));
    }
    Ok(queues)
}

/// Checks that there is one CPU for each worker, or none at all.
fn cpus(asked: Option<CpuList>, workers: u8) -> Result<Vec<usize>, ConfigError> {
    let cpus = asked.unwrap_or_default().0;
    match cpus.len() {
        0 => Ok(cpus),
        count if count == usize::from(workers) => Ok(cpus),
        count => Err(wrong("cpus", format!("{count} CPUs for {workers} workers; name one for each"))),
    }
}

impl Config {
    /// Checks `settings` and fills in the defaults of options that were not given.
    ///
    /// # Errors
    /// [`ConfigError::Field`].
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = settings;
        let manager = s.node.manager.clone();
        let node = NodeConfig::new("compute-node", s.node, s.link, s.diagnostics)?;
        let manager = manager.ok_or_else(|| {
            wrong(
                "manager",
                "name the manager, as in --manager https://10.0.0.1:7440, or by the variable CXLOE_MANAGER",
            )
        })?;
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
        let clients_max =
            in_range("max-clients", s.max_clients.unwrap_or(CLIENTS_DEFAULT), 1, CLIENTS_LIMIT)?;
        let share = |field, set: Option<usize>, all: usize| {
            in_range(field, set.unwrap_or((all / SHARE_DEFAULT).max(1)), 1, usize::MAX)
        };
        let shares = UserShares {
            ports: share("user-ports", s.user_ports, clients_max)?,
            regions: share("user-regions", s.user_regions, SPACES_MAX)?,
            processes: share("user-processes", s.user_processes, processes_max())?,
            memory: s.user_memory.map(|size| size.0),
        };
        let workers = in_range("workers", s.workers.unwrap_or(1), 1, SHARDS_MAX)?;
        Ok(Config {
            node,
            manager,
            cxl: HandOverOptions {
                preference: s.backend.unwrap_or_default(),
                sysfs_root: s.sysfs_root.unwrap_or_else(|| SYSFS_ROOT.into()),
                dev_root: s.dev_root.unwrap_or_else(|| DEV_ROOT.into()),
            },
            workers,
            cpus: cpus(s.cpus, workers)?,
            queues: queues(s.queues, workers)?,
            rekey_every,
            streams: in_range("streams", s.streams.unwrap_or(STREAMS_DEFAULT), 1, STREAMS_MAX as u8)?,
            session_timeout,
            rate_control: (s.rate_control != Some(Switch::Off)).then_some(rate_control),
            cache,
            socket: s.socket.unwrap_or_else(default_socket),
            clients_max,
            shares,
            allow_kernel_faults: s.allow_kernel_faults.unwrap_or(false),
        })
    }

    /// Time-outs of sessions. A session ends after the configured `session_timeout` without an answer; the other
    /// time-outs are at most a quarter of that.
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

    /// Returns the options as a TOML file, from which the same options are read back.
    pub fn to_toml(&self) -> String {
        let rates = self.rate_control.clone().unwrap_or_default();
        let [t1, t2, t3, t4, t5, t6] = rates.times.map(|time| time.map(Span));
        let (node, link, diagnostics) = self.node.settings(Some(self.manager.clone()));
        let settings = Settings {
            node,
            link,
            diagnostics,
            backend: Some(self.cxl.preference),
            sysfs_root: Some(self.cxl.sysfs_root.clone()),
            dev_root: Some(self.cxl.dev_root.clone()),
            workers: Some(self.workers),
            cpus: (!self.cpus.is_empty()).then(|| CpuList(self.cpus.clone())),
            queues: Some(self.queues),
            rekey_every: (self.rekey_every != Timing::default().rekey_every)
                .then_some(Span(self.rekey_every)),
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
            user_ports: Some(self.shares.ports),
            user_regions: Some(self.shares.regions),
            user_processes: Some(self.shares.processes),
            user_memory: self.shares.memory.map(ByteSize),
            allow_kernel_faults: self.allow_kernel_faults.then_some(true),
        };
        options::to_toml(&settings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use cxloe_cn_core::backing::Preference;
    use cxloe_link::wait::WaitStyle;

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
        // Serving from a device overwrites the device's content, so the default is Ethernet.
        assert_eq!((config.cxl.preference, &*config.cxl.dev_root), (Preference::Ethernet, "/dev".as_ref()));
    }

    #[test]
    fn flags_win_over_the_file_and_what_is_printed_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cn.toml");
        let first = resolve(&format!("{LEAST} --cache-size 64K --wait sleep --workers 2 --queues 4 --backend auto --sysfs-root /x/sys --streams 2 --cpus 1,2 --cc-t4 1ms --link-rate 25Gbit/s --pfc trust --pfc-counter rx_prio{{}}_pause")).unwrap();
        std::fs::write(&path, first.to_toml()).unwrap();
        let second = resolve(&format!("--config {} --streams 3", path.display())).unwrap();
        assert_eq!((second.streams, second.cache, second.node.wait), (3, first.cache, WaitStyle::Sleep));
        assert_eq!((second.workers, second.queues, &second.cpus[..]), (2, 4, &[1, 2][..]));
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
            ("-i cn0 --manager http://h:1 --queues 3", "not one of 1, 2, 4, 8 and 16"),
            ("-i cn0 --manager http://h:1 --queues 0", "not one of 1, 2"),
            ("-i cn0 --manager http://h:1 --queues 32", "not one of 1, 2"),
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
