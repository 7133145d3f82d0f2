//! `gmm serve`: runs the manager until SIGTERM or SIGINT. A value comes from a flag, else from the environment, else from
//! the configuration file, else it is the default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use cxloe_gmm::server::{Config, Server};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::failure::Failure;

/// Name of the store in a data folder.
const STORE_FILE: &str = "gmm.redb";

/// Arguments of `gmm serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
The configuration file is TOML; its keys are the long flags with '_' for '-':
  listen = \"127.0.0.1:7440\"
  socket = \"/run/cxloe/gmm.sock\"
  data_dir = \"/var/lib/cxloe\"
  node_timeout_ms = 5000

There is no authentication: listen on the loopback interface or a network whose users may manage all memory.

Examples:
  gmm serve --data-dir /var/lib/cxloe
  gmm serve --listen 10.0.0.1:7440 --log json
  gmm serve --config /etc/cxloe/gmm.toml")]
pub struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, env = "CXLOE_GMM_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// What flags, environment and configuration file can all say.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// TCP address to listen on; port 0 takes a free one [default: 127.0.0.1:7440]
    #[arg(long, env = "CXLOE_GMM_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Unix socket to listen on besides
    #[arg(long, env = "CXLOE_GMM_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Folder of the store, which is its file gmm.redb [default: /var/lib/cxloe]
    #[arg(long, env = "CXLOE_GMM_DATA_DIR", value_name = "DIR", conflicts_with = "store")]
    data_dir: Option<PathBuf>,
    /// The store's file, instead of --data-dir
    #[arg(long, env = "CXLOE_GMM_STORE", value_name = "FILE")]
    store: Option<PathBuf>,
    /// Silence after which a node counts as unreachable, in milliseconds [default: 5000]
    #[arg(long, env = "CXLOE_GMM_NODE_TIMEOUT_MS", value_name = "MS", visible_alias = "node-timeout")]
    node_timeout_ms: Option<u64>,
    /// Connections served at a time [default: 8192]
    #[arg(long, env = "CXLOE_GMM_CONNECTIONS_MAX", value_name = "N")]
    connections_max: Option<usize>,
    /// File to write the bound address to once it is served
    #[arg(long, env = "CXLOE_GMM_PORT_FILE", value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Form of the log on standard error [default: text]
    #[arg(long, env = "CXLOE_GMM_LOG_FORMAT", value_name = "FORM")]
    log: Option<LogForm>,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LogForm {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Settings {
    /// These settings, completed by those of `file`.
    fn over(self, file: Self) -> Self {
        // A place given by a flag outweighs both ways of giving it in the file.
        let place_given = self.store.is_some() || self.data_dir.is_some();
        Self {
            listen: self.listen.or(file.listen),
            socket: self.socket.or(file.socket),
            data_dir: if place_given { self.data_dir } else { file.data_dir },
            store: if place_given { self.store } else { file.store },
            node_timeout_ms: self.node_timeout_ms.or(file.node_timeout_ms),
            connections_max: self.connections_max.or(file.connections_max),
            port_file: self.port_file.or(file.port_file),
            log: self.log.or(file.log),
        }
    }

    fn into_config(self) -> Result<Config, Failure> {
        let default = Config::default();
        let store = match (self.store, self.data_dir) {
            (Some(_), Some(_)) => return Err(Failure::usage("give the store or the data_dir, not both")),
            (Some(store), None) => store,
            (None, Some(folder)) => folder.join(STORE_FILE),
            (None, None) => default.store,
        };
        let connections_max = self.connections_max.unwrap_or(default.connections_max);
        if connections_max == 0 {
            return Err(Failure::usage("connections-max must be at least 1"));
        }
        Ok(Config {
            listen: self.listen.unwrap_or(default.listen),
            socket: self.socket,
            store,
            node_timeout: self.node_timeout_ms.map_or(default.node_timeout, Duration::from_millis),
            connections_max,
            port_file: self.port_file,
        })
    }
}

/// Runs the manager.
///
/// # Errors
/// When the configuration does not work or the manager cannot serve.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let file = match &args.config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("cannot read the configuration file {}: {error}", path.display()))
            })?;
            toml::from_str(&text).map_err(|error| {
                Failure::usage(format!("the configuration file {}: {error}", path.display()))
            })?
        }
    };
    let settings = args.settings.over(file);
    start_log(settings.log.unwrap_or(LogForm::Text));
    let config = settings.into_config()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Failure> {
    let no_signals = |error| Failure::failed(format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let port_file = config.port_file.clone();
    let server = Server::start(config).await.map_err(|error| Failure::failed(error.to_string()))?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        () = server.failed() => tracing::error!("the store failed: ending"),
    }
    if let Some(path) = port_file
        && let Err(error) = std::fs::remove_file(&path)
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the port file");
    }
    server.stop().await.map_err(|error| Failure::failed(error.to_string()))
}

fn start_log(form: LogForm) {
    let filter = EnvFilter::try_from_env("CXLOE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match form {
        LogForm::Text => builder.init(),
        LogForm::Json => builder.json().init(),
    }
}
