//! What a manager needs to know to serve, and its defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::manager::NODE_TIMEOUT_MS_DEFAULT;

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
    /// TCP address to listen on; port 0 takes a free one. There is no authentication: whoever reaches it may do anything.
    pub listen: SocketAddr,
    /// Unix socket to listen on besides.
    pub socket: Option<PathBuf>,
    /// The store's file.
    pub store: PathBuf,
    /// Silence after which a node counts as unreachable; at least [`NODE_TIMEOUT_MIN`].
    pub node_timeout: Duration,
    /// Connections served at a time; more wait to be accepted.
    pub connections_max: usize,
    /// File to write the bound TCP address to once it is served.
    pub port_file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            socket: None,
            store: PathBuf::from(STORE_DEFAULT),
            node_timeout: Duration::from_millis(NODE_TIMEOUT_MS_DEFAULT),
            connections_max: CONNECTIONS_DEFAULT,
            port_file: None,
        }
    }
}
