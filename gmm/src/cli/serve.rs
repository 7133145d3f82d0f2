//! `gmm serve`: runs the manager until SIGTERM or SIGINT. A value comes from a flag, else from the configuration file,
//! else from the environment, else from the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use cxloe_daemon::Span;
use cxloe_daemon::command_line::Failure;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_daemon::{LogFormat, OptionSources, Supervisor, log, options, raise_limit};
use cxloe_fabric::Client;
use cxloe_fm::header::Dialect;
use cxloe_fm::listener::{FmConfig, SWITCHES_MAX};
use cxloe_gmm::server::{Config, FmAddress, Server};
use cxloe_gmm::store::etcd::{LEASE_TTL_S_MAX, LEASE_TTL_S_MIN};
use cxloe_gmm::store::{EtcdAccess, StorePlace};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::fabric_file;
use super::initialisation_mode::InitialisationMode;

/// File name of the store in the data folder.
const STORE_FILE: &str = "gmm.redb";
/// Environment variable with the password for etcd. The password has no flag and no key in the configuration file,
/// because other users could read it there.
const ETCD_PASSWORD_VARIABLE: &str = "CXLOE_GMM_ETCD_PASSWORD";
/// File name of the socket in the store's folder.
const SOCKET_FILE: &str = "gmm.sock";
/// Minimum of the hidden option `--certificate-s`, with which tests make certificates expire soon.
const CERTIFICATE_VALID_MIN: Duration = Duration::from_secs(2);
/// Length in bytes that a default socket path must not reach. The system's limit is 108; the rest is for the suffix of
/// a temporary name.
const SOCKET_PATH_MAX: usize = 90;

#[derive(Debug, Args)]
#[command(after_help = "\
The configuration file is TOML; its keys are the long flags with '_' for '-':
  listen = \"127.0.0.1:7440\"
  socket = \"/run/cxloe/gmm.sock\"
  data_dir = \"/var/lib/cxloe\"
  node_timeout_ms = 5000
  init = \"manager-first\"
  fabric = \"/etc/cxloe/fabric.toml\"
An option on the command line wins over the file, and the file over a variable of the environment.

The fabric file declares regions and quotas:
  [[region]]
  name = \"heap\"
  size = \"64G\"
  owner = \"cn1\"
  ways = 4

  [[quota]]
  compute_node = \"cn1\"
  bytes = \"256G\"

With --init static only declared regions exist: others, and bindings, are refused, and memory nodes are
bound whole. With --init manager-first a compute node is suspended until its declared regions exist.

Several managers may share a store in etcd: one leads, the others redirect clients to it. When its lease has
run out, another one leads. Give clients and nodes the URLs of all managers, separated by commas. Let etcd
delete old revisions, which are not used: etcd --auto-compaction-mode periodic --auto-compaction-retention
1h.

The web view is at the address listened on: https://127.0.0.1:7440/

People and nodes authenticate with tokens and certificates over TLS (`gmm token create --help`). By the Unix
socket, root and the manager's own user have all rights, and others read access. The key that signs
certificates is stored beside the store.

Examples:
  gmm serve --data-dir /var/lib/cxloe
  gmm serve --listen 10.0.0.1:7440 --log json
  gmm serve --listen 10.0.0.1:7440 --store etcd://10.0.0.8:2379,10.0.0.9:2379/cxloe
  gmm serve --init static --fabric /etc/cxloe/fabric.toml
  gmm serve --config /etc/cxloe/gmm.toml")]
pub struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, env = "CXLOE_GMM_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Begin a new fabric with an empty store even if nodes that have followed another manager are running
    #[arg(long)]
    new_fabric: bool,
    #[command(flatten)]
    settings: OptionSources<ServeSettings>,
}

/// Settings possible in flags, configuration file and environment.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServeSettings {
    /// TCP address to listen on; port 0 takes a free one [default: 127.0.0.1:7440]
    #[arg(long, env = "CXLOE_GMM_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Serve without TLS and without access control: every client of the address has all rights
    #[arg(
        long, env = "CXLOE_GMM_INSECURE", num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL"
    )]
    insecure: Option<bool>,
    /// Group whose members have all rights by the Unix socket, besides root and the manager's own user;
    /// others may only read
    #[arg(long, env = "CXLOE_GMM_ADMIN_GROUP", value_name = "GROUP")]
    admin_group: Option<String>,
    /// Unix socket to listen on in addition [default: gmm.sock beside the store, unless --insecure]
    #[arg(long, env = "CXLOE_GMM_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Folder of the store, which is its file gmm.redb [default: /var/lib/cxloe]
    #[arg(long, env = "CXLOE_GMM_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The store, instead of --data-dir: a file, or etcd://HOST:PORT[,HOST:PORT...]/PREFIX
    #[arg(long, env = "CXLOE_GMM_STORE", value_name = "PLACE")]
    store: Option<StorePlace>,
    /// File (PEM) of the authority that signed the certificates of etcd: if given, TLS is used there
    #[arg(long, env = "CXLOE_GMM_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// File (PEM) of this manager's certificate for etcd
    #[arg(long, env = "CXLOE_GMM_ETCD_CERT", value_name = "FILE")]
    etcd_cert: Option<PathBuf>,
    /// File (PEM) of the key to that certificate
    #[arg(long, env = "CXLOE_GMM_ETCD_KEY", value_name = "FILE")]
    etcd_key: Option<PathBuf>,
    /// User at etcd; the password is in the variable CXLOE_GMM_ETCD_PASSWORD
    #[arg(long, env = "CXLOE_GMM_ETCD_USER", value_name = "NAME")]
    etcd_user: Option<String>,
    /// URL under which clients and other managers reach this one, with etcd [default: the address it listens on]
    #[arg(long, env = "CXLOE_GMM_ADVERTISE", value_name = "URL")]
    advertise: Option<String>,
    /// Seconds after which a dead leader is replaced, with etcd [default: 3]
    #[arg(long, env = "CXLOE_GMM_LEASE_TTL_S", value_name = "S", visible_alias = "lease-ttl")]
    lease_ttl_s: Option<u64>,
    /// Silence after which a node counts as unreachable, in milliseconds [default: 5000]
    #[arg(long, env = "CXLOE_GMM_NODE_TIMEOUT_MS", value_name = "MS", visible_alias = "node-timeout")]
    node_timeout_ms: Option<u64>,
    /// Time a copy of a mirrored region may be on an unreachable memory node before another node gets a replacement, as
    /// in 10m; 0: no replacement [default: 10m]
    #[arg(long, env = "CXLOE_GMM_REBUILD_AFTER", value_name = "TIME")]
    rebuild_after: Option<Span>,
    /// Mode of the fabric's initialisation [default: concurrent]
    #[arg(long, env = "CXLOE_GMM_INIT", value_name = "MODE")]
    init: Option<InitialisationMode>,
    /// File (TOML) that declares regions and quotas
    #[arg(long, env = "CXLOE_GMM_FABRIC", value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Name under which a browser may send changes, besides addresses and this machine's own; several, separated by
    /// commas
    #[arg(long, env = "CXLOE_GMM_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    allow_host: Option<Vec<String>>,
    /// Maximum number of connections at a time, half of them from one peer [default: 8192]
    #[arg(long, env = "CXLOE_GMM_CONNECTIONS_MAX", value_name = "N")]
    connections_max: Option<usize>,
    /// Validity of the certificates of nodes in seconds; they are renewed after two thirds of it [default: 2592000, 30
    /// days]
    #[arg(long, env = "CXLOE_GMM_CERTIFICATE_S", value_name = "S", hide = true)]
    certificate_s: Option<u64>,
    /// Serve the FM API on this address, over TLS for clients that have joined with a token of role fm (`gmm fm join`);
    /// without a port: 2508 [default: not served]
    #[arg(long, env = "CXLOE_GMM_FM_LISTEN", value_name = "ADDR")]
    fm_listen: Option<FmAddress>,
    /// Serve the FM API without TLS and without access control: every client has all rights. On an address of the
    /// loopback interface only, unless --insecure
    #[arg(
        long, env = "CXLOE_GMM_FM_INSECURE", num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL"
    )]
    fm_insecure: Option<bool>,
    /// Switches of the FM API, at consecutive ports: one for each 127 memory nodes or compute nodes [default: 1]
    #[arg(long, env = "CXLOE_GMM_FM_SWITCHES", value_name = "N")]
    fm_switches: Option<u16>,
    /// Layout of FM API headers: that of the TCP client tools or that of the specification [default: tools]
    #[arg(long, env = "CXLOE_GMM_FM_DIALECT", value_name = "DIALECT")]
    fm_dialect: Option<Dialect>,
    /// Maximum number of FM API connections at a time; beyond that, silent ones are closed, or else the new
    /// ones [default: 1024]
    #[arg(long, env = "CXLOE_GMM_FM_CONNECTIONS_MAX", value_name = "N")]
    fm_connections_max: Option<usize>,
    /// Milliseconds an FM API answer may take before the client is asked to try again [default: 40]
    #[arg(long, env = "CXLOE_GMM_FM_ANSWER_WITHIN_MS", value_name = "MS")]
    fm_answer_within_ms: Option<u64>,
    /// Seconds without a request after which an FM API client's connection is closed [default: 300]
    #[arg(long, env = "CXLOE_GMM_FM_IDLE_WITHIN_S", value_name = "S")]
    fm_idle_within_s: Option<u64>,
    /// Serve metrics for Prometheus at this address, as in 0.0.0.0:9740 or unix:/run/cxloe/gmm-metrics.sock: /metrics, and
    /// /healthz [default: not served]
    #[arg(long, env = "CXLOE_GMM_METRICS", value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// File to write the bound address to once it is served
    #[arg(long, env = "CXLOE_GMM_PORT_FILE", value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Form of the log on standard error [default: text]
    #[arg(long, env = "CXLOE_GMM_LOG_FORMAT", value_name = "FORM", visible_alias = "log-format")]
    log: Option<LogFormat>,
}

impl ServeSettings {
    /// Returns these settings, completed with values of `lower`.
    fn over(&self, lower: Self) -> Self {
        // A store given at a higher level replaces both `store` and `data_dir` of the lower levels.
        let place_given = self.store.is_some() || self.data_dir.is_some();
        let lower = if place_given { Self { store: None, data_dir: None, ..lower } } else { lower };
        options::over(self, &lower)
    }

    /// Configuration of the FM API, or `None` if it is not served.
    fn fm(&self) -> Result<Option<FmConfig>, Failure> {
        let Some(FmAddress(listen)) = self.fm_listen else { return Ok(None) };
        // With --insecure the whole manager is open already, so the FM API is not restricted to this machine.
        let open = self.fm_insecure.unwrap_or(false) && !self.insecure.unwrap_or(false);
        if open && !listen.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "fm-listen: {listen} is reached from other machines, and with fm-insecure whoever reaches it may do \
                 everything; give an address of the loopback interface, as 127.0.0.1, or leave fm-insecure out"
            )));
        }
        let usual = FmConfig::new(listen);
        let config = FmConfig {
            switches: self.fm_switches.unwrap_or(usual.switches),
            dialect: self.fm_dialect.unwrap_or(usual.dialect),
            connections_max: self.fm_connections_max.unwrap_or(usual.connections_max),
            answer_within: self.fm_answer_within_ms.map_or(usual.answer_within, Duration::from_millis),
            idle_within: self.fm_idle_within_s.map_or(usual.idle_within, Duration::from_secs),
            ..usual
        };
        if !(1..=SWITCHES_MAX).contains(&config.switches) {
            return Err(Failure::usage(format!("fm-switches must be 1 to {SWITCHES_MAX}")));
        }
        if config.connections_max == 0 || config.answer_within.is_zero() || config.idle_within.is_zero() {
            return Err(Failure::usage(
                "fm-connections-max, fm-answer-within-ms and fm-idle-within-s must be at least 1",
            ));
        }
        Ok(Some(config))
    }

    /// Files for TLS and the user with which the manager authenticates at etcd.
    fn etcd(&self) -> Result<EtcdAccess, Failure> {
        let identity = match (self.etcd_cert.clone(), self.etcd_key.clone()) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(Failure::usage("etcd-cert and etcd-key go together")),
        };
        if identity.is_some() && self.etcd_ca.is_none() {
            return Err(Failure::usage("etcd-cert is for TLS: give etcd-ca as well"));
        }
        let user = match &self.etcd_user {
            Some(name) => {
                let password = std::env::var(ETCD_PASSWORD_VARIABLE);
                let missing =
                    || Failure::usage(format!("etcd-user: the variable {ETCD_PASSWORD_VARIABLE} is not set"));
                Some((name.clone(), password.map_err(|_| missing())?))
            }
            None => None,
        };
        Ok(EtcdAccess { ca: self.etcd_ca.clone(), identity, user })
    }

    fn into_config(self) -> Result<Config, Failure> {
        let default = Config::default();
        let fm = self.fm()?;
        let access = self.etcd()?;
        let mut store = match (self.store, self.data_dir) {
            (Some(_), Some(_)) => return Err(Failure::usage("give the store or the data_dir, not both")),
            (Some(store), None) => store,
            (None, Some(folder)) => folder.join(STORE_FILE).into(),
            (None, None) => default.store,
        };
        match &mut store {
            StorePlace::Etcd(place) => place.access = access,
            StorePlace::File(_) if access != EtcdAccess::default() => {
                return Err(Failure::usage("the etcd options are for a store in etcd: --store etcd://…"));
            }
            StorePlace::File(_) => {}
        }
        let connections_max = self.connections_max.unwrap_or(default.connections_max);
        if connections_max == 0 {
            return Err(Failure::usage("connections-max must be at least 1"));
        }
        let lease_ttl_s = self.lease_ttl_s.unwrap_or(default.lease_ttl_s);
        if !(LEASE_TTL_S_MIN..=LEASE_TTL_S_MAX).contains(&lease_ttl_s) {
            return Err(Failure::usage(format!(
                "lease-ttl-s must be {LEASE_TTL_S_MIN} to {LEASE_TTL_S_MAX}"
            )));
        }
        if let Some(url) = self.advertise.as_deref().filter(|url| !is_url(url)) {
            return Err(Failure::usage(format!("advertise: {url:?} is no URL; write https://HOST:PORT")));
        }
        let insecure = self.insecure.unwrap_or(false);
        if let Some(url) = self.advertise.as_deref().filter(|url| url.starts_with("http:") != insecure) {
            let scheme = if insecure { "http" } else { "https" };
            return Err(Failure::usage(format!("advertise: {url:?} has to begin with {scheme}://")));
        }
        let certificate_valid = self.certificate_s.map_or(default.certificate_valid, Duration::from_secs);
        if !(CERTIFICATE_VALID_MIN..=default.certificate_valid).contains(&certificate_valid) {
            return Err(Failure::usage("certificate-s must be 2 to 2592000 (30 days)"));
        }
        let initialisation = self.init.unwrap_or_default().into();
        let declared = fabric_file::declared(self.fabric.as_deref(), initialisation)?;
        Ok(Config {
            listen: self.listen.unwrap_or(default.listen),
            insecure,
            admin_group: self.admin_group.as_deref().map(group).transpose()?,
            socket: self.socket.or_else(|| socket_beside(&store).filter(|_| !insecure)),
            store,
            advertise: self.advertise,
            lease_ttl_s,
            node_timeout: self.node_timeout_ms.map_or(default.node_timeout, Duration::from_millis),
            rebuild_after: self.rebuild_after.map_or(default.rebuild_after, |Span(time)| time),
            initialisation,
            declared,
            allow_hosts: self.allow_host.unwrap_or_default(),
            connections_max,
            fm,
            fm_insecure: self.fm_insecure.unwrap_or(false),
            metrics: self.metrics,
            port_file: self.port_file,
            certificate_valid,
            new_fabric: false,
        })
    }
}

/// Default path of the socket, in the store's folder; `None` if the path is too long, or if the store is in etcd.
fn socket_beside(store: &StorePlace) -> Option<PathBuf> {
    let StorePlace::File(path) = store else { return None };
    let socket = path.parent()?.join(SOCKET_FILE);
    (socket.as_os_str().len() <= SOCKET_PATH_MAX).then_some(socket)
}

/// Number of the group `name`, which may itself be a number.
fn group(name: &str) -> Result<u32, Failure> {
    let known = || nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    let number = name.parse().ok();
    number.or_else(known).ok_or_else(|| Failure::usage(format!("admin-group: there is no group {name:?}")))
}

/// True if clients can be redirected to `url`: an HTTP URL with a TCP port.
fn is_url(url: &str) -> bool {
    (url.starts_with("http://") || url.starts_with("https://"))
        && !url.contains(',')
        && Client::new(url).is_ok()
}

impl ServeArgs {
    /// True if a configuration file or a listen address is given.
    pub fn is_given(&self) -> bool {
        self.config.is_some() || self.settings.flags.listen.is_some()
    }

    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    pub fn set_file(&mut self, file: PathBuf) {
        self.config = Some(file);
    }

    /// The settings in effect: flags, completed by file and environment.
    fn settings(self) -> Result<ServeSettings, Failure> {
        let OptionSources { flags, environment } = self.settings;
        let file = self.config.as_deref().map(options::read).transpose().map_err(Failure::usage)?;
        Ok(flags.over(file.unwrap_or_default()).over(environment))
    }

    /// The settings in effect, as a checked configuration of the manager.
    ///
    /// # Errors
    /// If the settings cannot be read, or contradict each other.
    pub fn resolve(self) -> Result<Config, Failure> {
        let new_fabric = self.new_fabric;
        Ok(Config { new_fabric, ..self.settings()?.into_config()? })
    }
}

/// Runs the manager until a signal ends it.
///
/// # Errors
/// If the configuration is wrong or the manager cannot serve.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let new_fabric = args.new_fabric;
    let settings = args.settings()?;
    let filter = std::env::var("CXLOE_LOG").unwrap_or_else(|_| log::FILTER_DEFAULT.into());
    let _log = log::start(&filter, settings.log.unwrap_or_default());
    let config = Config { new_fabric, ..settings.into_config()? };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Failure> {
    // The limit of open files is raised, because each connection is an open file.
    raise_limit();
    let no_signals = |error| Failure::failed(format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let port_file = config.port_file.clone();
    let server = Server::start(config).await.map_err(Failure::failed)?;
    let supervisor = Supervisor::of_this_process();
    supervisor.ready(&format!("serving on {}", server.address()));
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        () = server.failed() => tracing::error!("cannot go on: ending"),
        () = watch(&server, supervisor) => {}
    }
    supervisor.stopping("closing the store");
    // The port file is removed, because its address is no longer served.
    if let Some(path) = port_file
        && let Err(error) = std::fs::remove_file(&path)
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the port file");
    }
    server.stop().await.map_err(Failure::failed)
}

/// Notifies the service manager periodically while requests are answered. Never returns.
async fn watch(server: &Server, supervisor: Supervisor) {
    let Some((every, wait_limit)) = supervisor.looks() else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        supervisor.notify(match server.answers(wait_limit).await {
            true => Ok(format!("serving on {}", server.address())),
            false => Err(format!("requests have not been answered for {wait_limit:?}")),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_and_a_place_given_by_a_flag_outweighs_both_ways_of_the_file() {
        let file = || -> ServeSettings {
            toml::from_str(
                "listen = '10.0.0.1:1'\nstore = '/srv/gmm.redb'\nnode_timeout_ms = 900\nlog = 'json'",
            )
            .unwrap()
        };
        let flags = ServeSettings {
            data_dir: Some("/tmp/gmm".into()),
            node_timeout_ms: Some(70),
            ..ServeSettings::default()
        };
        let merged = flags.over(file());
        assert_eq!(merged.log, Some(LogFormat::Json));
        let config = merged.into_config().unwrap();
        assert_eq!(config.store, PathBuf::from("/tmp/gmm").join(STORE_FILE).into());
        assert_eq!((config.node_timeout, config.listen.port()), (Duration::from_millis(70), 1));
        let config = ServeSettings::default().over(file()).into_config().unwrap();
        assert_eq!(config.store, PathBuf::from("/srv/gmm.redb").into());
    }

    #[test]
    fn without_rights_the_fm_api_is_for_this_machine() {
        let read = |text: &str| toml::from_str::<ServeSettings>(text).unwrap().into_config();
        assert!(!read("fm_listen = '10.0.0.1'").unwrap().fm_insecure);
        assert!(read("fm_listen = '127.0.0.1'\nfm_insecure = true").unwrap().fm.is_some());
        assert!(read("fm_listen = '10.0.0.1'\ninsecure = true").unwrap().fm.is_some());
    }

    #[test]
    fn what_several_managers_need_is_checked() {
        let read = |text: &str| toml::from_str::<ServeSettings>(text).map(ServeSettings::into_config);
        let config =
            read("store = 'etcd://h:1/lab'\nadvertise = 'https://a:1'\nlease_ttl_s = 9").unwrap().unwrap();
        assert_eq!((config.store.to_string().as_str(), config.lease_ttl_s), ("etcd://h:1/lab", 9));
        assert!(read("store = 'etcd://h:1'").is_err(), "the prefix is missing");
        for wrong in [
            "lease_ttl_s = 1",
            "lease_ttl_s = 1000",
            "etcd_ca = '/ca.pem'",
            "store = 'etcd://h:1/lab'\netcd_cert = '/cert.pem'",
            "store = 'etcd://h:1/lab'\netcd_cert = '/cert.pem'\netcd_key = '/key.pem'",
            "store = 'etcd://h:1/lab'\netcd_user = 'nobody'",
            "fm_listen = '10.0.0.1'\nfm_insecure = true",
            "advertise = 'unix:/x'",
            "advertise = 'https://a,https://b'",
            "advertise = 'http://a:1'",
        ] {
            assert!(read(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
