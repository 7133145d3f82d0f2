//! The manager as a process: opens the store and the sockets, runs the core's thread and the HTTP server, and ends them
//! in order. Decisions are made in [`cxloe_gmm_core::manager`].
//!
//! ```text
//!   cxloe_daemon::http --> election (who leads?) --> routes (requests) --> core (one thread: manager + store)
//!                                |                   `------------ a term: while this process leads ------------'
//!                                `-> web (the page that shows the fabric, in every role)
//! ```

mod authority;
mod authority_store;
mod body;
mod candidacy;
mod clock;
mod config;
mod core;
mod error;
mod event_log;
mod fm;
mod identify;
mod leader_election;
mod leader_term;
pub mod metrics;
mod origin;
mod routes;
mod topics;
mod user_namespace;
mod web;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Uri;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower_service::Service;

pub use body::{BODY_BYTES_MAX, REQUEST_BYTES_MAX};
pub use config::{CONNECTIONS_DEFAULT, Config, NODE_TIMEOUT_MIN, PORT_DEFAULT, STORE_DEFAULT};
pub use fm::FmAddress;
pub use routes::WAIT_MS_MAX;

use authority::AuthorityError;
use authority_store::AuthorityStore;
use cxloe_daemon::http::Listeners;
use cxloe_daemon::http::TlsAuthenticator;
use identify::Authenticator;
use leader_election::LeaderElection;
use leader_term::LeaderTerm;
use origin::HostNames;

use crate::store::{EtcdPlace, Lease, RedbStore, StoreError, StorePlace};
use cxloe_daemon::metrics::{MetricsError, MetricsListener, MetricsServer};
use cxloe_daemon::{Bound, SocketError};
use cxloe_fm::listener::FmListenError;

/// Reason for which a manager cannot serve, or stopped serving.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot listen on {address}: {source}; {}", listen_hint(source))]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Fm(#[from] FmListenError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error("cannot write the bound address to {path}: {source}; give a writable place with --port-file")]
    PortFile { path: PathBuf, source: std::io::Error },
    #[error("a node time-out of {0:?} is too short; use at least {NODE_TIMEOUT_MIN:?}")]
    NodeTimeout(std::time::Duration),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The manager has no URL that clients of other managers can be redirected to.
    #[error(
        "several managers share the store {store}, and clients of the others cannot be sent to {address}; say with --advertise https://HOST:PORT how this one is reached"
    )]
    Advertise {
        /// Location of the store: the path of its file, or its URL.
        store: String,
        /// Listen address: the unspecified address, which stands for every address of the machine and names no host.
        address: SocketAddr,
    },
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

/// Store at the start of the process: a file is opened before anything is served; a store in etcd is opened
/// at the beginning of each term.
enum Opened<'a> {
    File(RedbStore),
    Etcd(&'a EtcdPlace),
}

/// A running manager. Dropping it without [`Server::stop`] aborts everything.
pub struct Server {
    address: SocketAddr,
    /// The Unix socket; dropping it removes its file.
    socket: Option<Bound>,
    metrics: Option<MetricsServer>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    router: Router,
    abdicate: watch::Sender<bool>,
    reigning: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Opens the store, takes over its state, and serves on the sockets of `config`; clients can connect when this
    /// returns. With a store in etcd, the election runs in the background, and errors of etcd are not returned.
    ///
    /// # Errors
    /// [`ServerError`]; everything opened is then closed again.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        if config.node_timeout < NODE_TIMEOUT_MIN {
            return Err(ServerError::NodeTimeout(config.node_timeout));
        }
        let address = config.listen;
        let listen = |source| ServerError::Listen { address, source };
        let tcp = TcpListener::bind(address).await.map_err(listen)?;
        let address = tcp.local_addr().map_err(listen)?;
        // The store is opened before the socket, since it creates the folder in which both are by default.
        let place = match &config.store {
            StorePlace::File(path) => Opened::File(RedbStore::open(path)?),
            StorePlace::Etcd(place) => Opened::Etcd(place),
        };
        // Every user of this machine may connect, since rights are checked per request.
        let socket_mode = if config.insecure { 0o600 } else { 0o666 };
        let socket =
            config.socket.as_deref().map(|path| Bound::bind(path, socket_mode, "manager")).transpose()?;
        let unix = socket.as_ref().map(Bound::async_listener).transpose()?;
        if socket.is_some() {
            user_namespace::report(config.admin_group);
        }
        let metrics = config.metrics.as_ref().map(MetricsListener::bind).transpose()?;

        let scheme = if config.insecure { "http" } else { "https" };
        let url = config.advertise.clone().unwrap_or_else(|| format!("{scheme}://{}", reached(address)));
        let authenticator = Authenticator::new(config.insecure, config.admin_group, &url);
        let kept = AuthorityStore::beside(&config.store);
        let authenticator = authenticator.certifying_for(config.certificate_valid).kept_in(kept.clone());
        let names = authority::names(address, host_names(&config));
        if let AuthorityStore::Folder(folder) = &kept {
            authenticator.set_authority(authority_store::in_folder(folder)?.into());
        }
        let tls = match config.insecure {
            true => {
                tracing::warn!(%address, "--insecure: whoever reaches {address} may do everything, and reads what others do");
                None
            }
            false => Some(tls_authenticator(kept, &authenticator, names)?),
        };
        tls.iter().for_each(|tls| authenticator.set_tls(tls.clone()));
        let election = LeaderElection::new(HostNames::new(&config.allow_hosts, config.advertise.as_deref()));
        let (abdicate, told) = watch::channel(false);
        let reigning = match place {
            Opened::File(store) => {
                let mut term = LeaderTerm::begin(Box::new(store), &config)?;
                if let Err(error) = term.serve(&config, &authenticator).await {
                    drop(term.end().await);
                    return Err(error);
                }
                election.lead(term.router(&url, authenticator.clone()), Lease::for_ever());
                election.show(term.core());
                tokio::spawn(leader_term::lead_alone(term, election.clone(), told))
            }
            Opened::Etcd(place) if config.advertise.is_none() && address.ip().is_unspecified() => {
                return Err(ServerError::Advertise { store: place.to_string(), address });
            }
            Opened::Etcd(place) => tokio::spawn(leader_term::lead_among(
                config.clone(),
                place.clone(),
                election.clone(),
                url,
                told,
                authenticator.clone(),
            )),
        };
        let metrics = metrics.map(|listener| serve_metrics(listener, &election)).transpose()?;
        let (stop, stopped) = watch::channel(false);
        let router = election.router();
        let serving = tokio::spawn(cxloe_daemon::http::serve(
            Listeners { tcp: Some(tcp), unix, tls },
            router.clone(),
            config.connections_max,
            stopped,
        ));
        let server = Self { address, socket, metrics, stop, serving, router, abdicate, reigning };
        tracing::info!(%address, "listening on {address}");
        if let Some(path) = config.port_file {
            let written = write_port_file(&path, address);
            if let Err(source) = written {
                server.stop().await?;
                return Err(ServerError::PortFile { path, source });
            }
        }
        Ok(server)
    }

    /// The bound TCP address, whose port is never 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when the manager cannot continue because the store failed.
    pub async fn failed(&self) {
        let mut pause = tokio::time::interval(std::time::Duration::from_millis(100));
        while !self.reigning.is_finished() {
            pause.tick().await;
        }
    }

    /// True if a request is answered within `wait_limit`. While this process leads, the core's thread has to answer it.
    pub async fn answers(&self, wait_limit: std::time::Duration) -> bool {
        let request = Request::get("/v1/health").body(Body::empty()).unwrap_or_default();
        let mut router = self.router.clone();
        tokio::time::timeout(wait_limit, router.call(request)).await.is_ok()
    }

    /// Gives up the lead, closes the store, answers pending requests, and stops accepting.
    ///
    /// # Errors
    /// [`ServerError::Store`] if the store had failed.
    pub async fn stop(self) -> Result<(), ServerError> {
        // Dropping the metrics server joins its thread, so it is dropped where blocking does not stop the
        // tasks of this runtime.
        let metrics = self.metrics;
        drop(tokio::task::spawn_blocking(move || drop(metrics)).await);
        self.abdicate.send_replace(true);
        let ended = self.reigning.await;
        self.stop.send_replace(true);
        if let Err(error) = self.serving.await {
            tracing::warn!(%error, "the server did not end in order");
        }
        drop(self.socket);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn serve_metrics(
    listener: MetricsListener,
    election: &LeaderElection,
) -> Result<MetricsServer, MetricsError> {
    let election = election.clone();
    listener.serve(move || metrics::sample(election.clone()))
}

/// Host and port in the URL of a manager that listens on `address`. The machine's name stands for the
/// unspecified address.
fn reached(address: SocketAddr) -> String {
    let name = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    match address.ip().is_unspecified().then(name).flatten() {
        Some(name) => format!("{name}:{}", address.port()),
        None => address.to_string(),
    }
}

/// Host names that the configuration gives, for the manager's certificate: allowed ones, and that of the
/// advertised URL.
fn host_names(config: &Config) -> Vec<String> {
    let advertised = config.advertise.as_deref().and_then(|url| url.parse::<Uri>().ok());
    let advertised = advertised.and_then(|url| url.host().map(str::to_owned));
    config.allow_hosts.iter().cloned().chain(advertised).collect()
}

/// Makes the listener's TLS configuration when the authority is available. Renews it periodically, and when the
/// authority is replaced.
fn tls_authenticator(
    kept: AuthorityStore,
    authenticator: &Authenticator,
    names: Vec<String>,
) -> Result<TlsAuthenticator, ServerError> {
    let first = authenticator.authority().map(|authority| authority.server_config(&names)).transpose()?;
    let (tell, configured) = watch::channel(first);
    let authenticator = authenticator.clone();
    tokio::spawn(async move {
        let in_use = authenticator.authority_in_use();
        let follow = async {
            match &kept {
                AuthorityStore::Etcd(place) => authority_store::follow(place, in_use).await,
                AuthorityStore::Folder(_) => std::future::pending().await,
            }
        };
        tokio::pin!(follow);
        let mut changes = in_use.subscribe();
        loop {
            let authority = changes.borrow_and_update().clone();
            match authority.map(|authority| authority.server_config(&names)).transpose() {
                Ok(config) => drop(tell.send_replace(config)),
                Err(error) => tracing::error!(%error, "no new certificate for this manager"),
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(authority::MANAGER_RENEW) => {}
                () = &mut follow => {}
                () = tell.closed() => return,
            }
        }
    });
    Ok(TlsAuthenticator::new(configured))
}

/// Writes the address into a new file and renames the file, so that a program that waits for it never reads a
/// part of the address.
fn write_port_file(path: &Path, address: SocketAddr) -> std::io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    std::fs::write(&draft, format!("{address}\n"))?;
    std::fs::rename(&draft, path)
}
