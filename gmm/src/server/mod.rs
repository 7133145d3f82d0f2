//! The shell around the manager: opens the store and the sockets, runs the core thread and the HTTP server, and ends them
//! in order. Everything that decides is in [`crate::manager`].
//!
//! ```text
//!   listener (connections) --> routes (requests) --> core (one thread: manager + store)
//! ```

mod clock;
mod config;
mod core;
mod error;
mod listener;
mod routes;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use config::{CONNECTIONS_DEFAULT, Config, NODE_TIMEOUT_MIN, PORT_DEFAULT, STORE_DEFAULT};
pub use routes::{BODY_BYTES_MAX, WAIT_MS_MAX};

use self::core::{Core, CoreThread};
use clock::Clock;
use listener::Listeners;

use crate::daemon::{Bound, SocketError};
use crate::manager::Manager;
use crate::store::{RedbStore, Store, StoreError};

/// Why a manager cannot serve, or stopped serving.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The TCP address.
    #[error("cannot listen on {address}: {source}; {}", listen_hint(source))]
    Listen {
        /// Where to.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Unix socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The file for the bound address.
    #[error("cannot write the bound address to {path}: {source}; give a writable place with --port-file")]
    PortFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The node time-out.
    #[error("a node time-out of {0:?} is too short; use at least {NODE_TIMEOUT_MIN:?}")]
    NodeTimeout(std::time::Duration),
    /// A thread.
    #[error("cannot start a thread for the manager: {0}; raise the limit of processes (ulimit -u)")]
    Thread(std::io::Error),
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process listens there: stop it, or give another address with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: give one that it has"
        }
        std::io::ErrorKind::PermissionDenied => {
            "this user may not: give another address, or start it as another user"
        }
        _ => "give another address with --listen",
    }
}

/// A manager that serves. Dropping it without [`Server::stop`] breaks everything off.
pub struct Server {
    address: SocketAddr,
    /// Removed when dropped.
    socket: Option<Bound>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    core: CoreThread,
}

impl Server {
    /// Opens the store, takes over its state, and serves on the sockets of `config`. When this returns, clients can
    /// connect.
    ///
    /// # Errors
    /// [`ServerError`], with nothing left behind.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        if config.node_timeout < NODE_TIMEOUT_MIN {
            return Err(ServerError::NodeTimeout(config.node_timeout));
        }
        let mut store = RedbStore::open(&config.store)?;
        let address = config.listen;
        let listen = |source| ServerError::Listen { address, source };
        let tcp = TcpListener::bind(address).await.map_err(listen)?;
        let address = tcp.local_addr().map_err(listen)?;
        let socket = config.socket.as_deref().map(|path| Bound::bind(path, 0o600, "manager")).transpose()?;
        let unix = socket.as_ref().map(Bound::async_listener).transpose()?;

        let clock = Clock::start();
        let node_timeout_ms = u64::try_from(config.node_timeout.as_millis()).unwrap_or(u64::MAX);
        let state = store.load()?;
        // The monotonic clock of another run says nothing about the wall clock of this one: go on after its last event.
        let clock = clock.not_before(state.events.back().map_or(0, |event| event.time_ms));
        let (manager, outcome) = Manager::take_over(state, node_timeout_ms, clock.now_ms())
            .map_err(|source| StoreError::Contradiction { path: config.store.clone(), source })?;
        store.commit(&outcome.changes)?;
        tracing::info!(
            store = %config.store.display(), term = manager.watermark().term, regions = manager.state().regions.len(),
            "took over the store"
        );
        let (core, thread) = Core::start(manager, Box::new(store), clock).map_err(ServerError::Thread)?;

        let (stop, stopped) = watch::channel(false);
        let router = routes::router(core);
        let serving =
            tokio::spawn(listener::serve(Listeners { tcp, unix }, router, config.connections_max, stopped));
        let server = Self { address, socket, stop, serving, core: thread };
        tracing::info!("listening on {address}");
        if let Some(path) = config.port_file {
            let written = write_port_file(&path, address);
            if let Err(source) = written {
                server.stop().await?;
                return Err(ServerError::PortFile { path, source });
            }
        }
        Ok(server)
    }

    /// The TCP address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when the core has ended by itself, which it does when the store fails.
    pub async fn failed(&self) {
        let mut pause = tokio::time::interval(std::time::Duration::from_millis(100));
        while !self.core.is_finished() {
            pause.tick().await;
        }
    }

    /// Stops accepting, lets requests under way end for a moment, and closes the store.
    ///
    /// # Errors
    /// [`ServerError::Store`] when the store had failed.
    pub async fn stop(self) -> Result<(), ServerError> {
        self.stop.send_replace(true);
        if let Err(error) = self.serving.await {
            tracing::warn!(%error, "the server did not end in order");
        }
        drop(self.socket);
        let core = self.core;
        match tokio::task::spawn_blocking(|| core.join()).await {
            Ok(result) => Ok(result?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

/// Writes the address under another name first, so that who waits for the file never reads half of it.
fn write_port_file(path: &Path, address: SocketAddr) -> std::io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    std::fs::write(&draft, format!("{address}\n"))?;
    std::fs::rename(&draft, path)
}
