//! Configuration of a manager, and its defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::authority::NODE_VALID_DEFAULT;
use crate::store::StorePlace;
use crate::store::etcd::LEASE_TTL_S_DEFAULT;
use cxloe_daemon::metrics::MetricsAddress;
use cxloe_fm::listener::FmConfig;
use cxloe_gmm_core::manager::{Declared, Initialisation, NODE_TIMEOUT_MS_DEFAULT, REBUILD_AFTER_MS_DEFAULT};

/// TCP port of a manager whose address gives none.
pub const PORT_DEFAULT: u16 = 7440;
/// Path of the store, unless the manager is configured otherwise.
pub const STORE_DEFAULT: &str = "/var/lib/cxloe/gmm.redb";
/// Limit of simultaneous connections unless another one is configured.
pub const CONNECTIONS_DEFAULT: usize = 8192;
/// Minimum node time-out: a node sends three messages within the time-out.
pub const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// TCP address to listen on, with TLS; port 0 stands for any free port.
    pub listen: SocketAddr,
    /// True to serve without TLS and without access control: every client of the TCP address has all rights.
    pub insecure: bool,
    /// Number of the group whose members are administrators on the Unix socket, besides root and the manager's own
    /// user.
    pub admin_group: Option<u32>,
    /// Path of a Unix socket to listen on in addition.
    pub socket: Option<PathBuf>,
    /// Location of the store. Several managers may share a store in etcd: one leads, and the others redirect clients to
    /// it.
    pub store: StorePlace,
    /// URL at which clients and other managers reach this one; none: derived from the listen address. Used with etcd
    /// only.
    pub advertise: Option<String>,
    /// Duration of a leader's lease in seconds: the time after which a leader that has stopped is replaced. Used with
    /// etcd only.
    pub lease_ttl_s: u64,
    /// Silence after which a node counts as unreachable; at least [`NODE_TIMEOUT_MIN`].
    pub node_timeout: Duration,
    /// Time that a copy of a region may be on an unreachable memory node before it is replaced; zero: no replacement.
    pub rebuild_after: Duration,
    pub initialisation: Initialisation,
    /// Content of the fabric file; empty without one.
    pub declared: Declared,
    /// Host names under which browsers may send changes, besides addresses and this machine's own names.
    pub allow_hosts: Vec<String>,
    /// Maximum number of connections at a time, half of them from one peer; further ones wait to be accepted.
    pub connections_max: usize,
    /// Configuration of the FM API; none: it is not served.
    pub fm: Option<FmConfig>,
    /// True to serve the FM API without TLS and access control: every client has all rights. Also the case if
    /// [`insecure`](Self::insecure) is set.
    pub fm_insecure: bool,
    /// Address to serve metrics on; none: they are not served.
    pub metrics: Option<MetricsAddress>,
    /// Path of the file into which the bound TCP address is written once it is served.
    pub port_file: Option<PathBuf>,
    /// Validity of nodes' certificates, which are renewed after two thirds of it.
    pub certificate_valid: Duration,
    /// True to begin a new fabric with an empty store although nodes that have followed another manager are running.
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
            rebuild_after: Duration::from_millis(REBUILD_AFTER_MS_DEFAULT),
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
