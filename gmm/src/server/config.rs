//! What a manager needs to know to serve, and its defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::authority::NODE_VALID_DEFAULT;
use crate::manager::{Declared, Initialisation, NODE_TIMEOUT_MS_DEFAULT};
use crate::store::StorePlace;
use crate::store::etcd::LEASE_TTL_S_DEFAULT;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_fm::listener::FmConfig;

/// The port a manager listens on unless told otherwise.
pub const PORT_DEFAULT: u16 = 7440;
/// Where the store is unless told otherwise.
pub const STORE_DEFAULT: &str = "/var/lib/cxloe/gmm.redb";
/// Connections served at a time unless told otherwise.
pub const CONNECTIONS_DEFAULT: usize = 8192;
/// The shortest node time-out; below it a node could not speak three times in between.
pub const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(30);

/// How a manager serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// TCP address to listen on, with TLS; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Without TLS and without rights: whoever reaches the TCP address may do everything.
    pub insecure: bool,
    /// The group whose members are administrators on the Unix socket, besides root and the manager's own user.
    pub admin_group: Option<u32>,
    /// Unix socket to listen on besides.
    pub socket: Option<PathBuf>,
    /// Where the store is. In etcd, several managers may share it: one leads, the others send clients to it.
    pub store: StorePlace,
    /// The URL under which clients and other managers reach this one; none: made of the address it listens on. Of use with
    /// etcd only.
    pub advertise: Option<String>,
    /// Seconds that the lease of a leader lasts: how long a leader that died is waited for. Of use with etcd only.
    pub lease_ttl_s: u64,
    /// Silence after which a node counts as unreachable; at least [`NODE_TIMEOUT_MIN`].
    pub node_timeout: Duration,
    /// How the fabric comes up.
    pub initialisation: Initialisation,
    /// What its file declares.
    pub declared: Declared,
    /// Names under which browsers may change something, besides addresses and this machine's own.
    pub allow_hosts: Vec<String>,
    /// Connections served at a time, half of them from one peer; more wait to be accepted.
    pub connections_max: usize,
    /// The FM API, if it is wanted: for FM clients that have joined.
    pub fm: Option<FmConfig>,
    /// The FM API without TLS and without rights: whoever reaches it may do everything. So it is where
    /// [`insecure`](Self::insecure) is set, too.
    pub fm_insecure: bool,
    /// Where metrics are served, if they are.
    pub metrics: Option<MetricsAddress>,
    /// File to write the bound TCP address to once it is served.
    pub port_file: Option<PathBuf>,
    /// How long the certificates of nodes are valid; they are renewed two thirds through it.
    pub certificate_valid: Duration,
    /// Begin a new fabric where the store is empty, though nodes are here that have followed another manager.
    pub new_fabric: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            insecure: false,
            admin_group: None,
            socket: None,
            store: PathBuf::from(STORE_DEFAULT).into(),
            advertise: None,
            lease_ttl_s: LEASE_TTL_S_DEFAULT,
            node_timeout: Duration::from_millis(NODE_TIMEOUT_MS_DEFAULT),
            initialisation: Initialisation::default(),
            declared: Declared::default(),
            allow_hosts: Vec::new(),
            connections_max: CONNECTIONS_DEFAULT,
            fm: None,
            fm_insecure: false,
            metrics: None,
            port_file: None,
            certificate_valid: NODE_VALID_DEFAULT,
            new_fabric: false,
        }
    }
}
