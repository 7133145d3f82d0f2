//! `gmm serve`: runs the manager until SIGTERM or SIGINT. A value comes from a flag, else from the environment, else from
//! the configuration file, else it is the default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cxloe_gmm::command_line::Failure;
use cxloe_gmm::daemon::{LogFormat, log, options};
use cxloe_gmm::server::{Config, Server};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

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
#[derive(Debug, Default, Args, Serialize, Deserialize)]
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
    log: Option<LogFormat>,
}

impl Settings {
    /// These settings, completed by those of `file`.
    fn over(&self, file: Self) -> Self {
        // A place given by a flag outweighs both ways of giving it in the file.
        let place_given = self.store.is_some() || self.data_dir.is_some();
        let file = if place_given { Self { store: None, data_dir: None, ..file } } else { file };
        options::over(self, &file)
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
    let settings = match &args.config {
        Some(path) => args.settings.over(options::read(path).map_err(Failure::usage)?),
        None => args.settings,
    };
    let filter = std::env::var("CXLOE_LOG").unwrap_or_else(|_| log::FILTER_DEFAULT.into());
    log::start(&filter, settings.log.unwrap_or_default());
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
    let server = Server::start(config).await.map_err(Failure::failed)?;
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
    server.stop().await.map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_and_a_place_given_by_a_flag_outweighs_both_ways_of_the_file() {
        let file = || -> Settings {
            toml::from_str(
                "listen = '10.0.0.1:1'\nstore = '/srv/gmm.redb'\nnode_timeout_ms = 900\nlog = 'json'",
            )
            .unwrap()
        };
        let flags =
            Settings { data_dir: Some("/tmp/gmm".into()), node_timeout_ms: Some(70), ..Settings::default() };
        let merged = flags.over(file());
        assert_eq!(merged.log, Some(LogFormat::Json));
        let config = merged.into_config().unwrap();
        assert_eq!(config.store, PathBuf::from("/tmp/gmm").join(STORE_FILE));
        assert_eq!((config.node_timeout, config.listen.port()), (Duration::from_millis(70), 1));
        let config = Settings::default().over(file()).into_config().unwrap();
        assert_eq!(config.store, PathBuf::from("/srv/gmm.redb"));
    }
}
