//! Outer address registered for each MAC. The writers (options, the connection to the manager) and the links
//! share the table. Each link has a copy that it renews when the table has changed, so that no frame needs a
//! lock.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_wire::frame::{Mac, SHARDS_MAX};
use serde::{Deserialize, Serialize};

/// Maximum number of entries in each list, of options and of the manager; further ones are left out, with a
/// log message.
const PEERS_MAX: usize = 65_536;

/// MAC of a node and its outer address, written `MAC=ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Peer {
    /// MAC address of the node, as in its frames.
    pub mac: Mac,
    /// Outer address at which the node listens, and from which it sends.
    pub address: SocketAddr,
}

/// Error: the text does not name a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a peer: write MAC=ADDRESS:PORT, as in 02:00:00:00:00:01=10.0.0.1:63669 or 02:00:00:00:00:01=[fd00::1]:63669"
)]
pub struct PeerError(pub String);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.mac, self.address)
    }
}

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let error = || PeerError(text.to_owned());
        let (mac, address) = text.split_once('=').ok_or_else(error)?;
        let mac: Mac = mac.trim().parse().map_err(|_| error())?;
        let address: SocketAddr = address.trim().parse().map_err(|_| error())?;
        let peer = Peer { mac, address };
        if peer.is_one() { Ok(peer) } else { Err(error()) }
    }
}

cxloe_wire::spelled!(Peer);

impl Peer {
    /// Returns the peers for a CN with several queues: the CN and its shards, each with its own port.
    pub fn shards(self) -> impl Iterator<Item = Peer> {
        (0..SHARDS_MAX).map(move |shard| {
            let mut address = self.address;
            address.set_port(shard_port(address.port(), shard));
            Peer { mac: self.mac.shard(shard), address }
        })
    }

    /// Whether MAC and address can belong to one node: neither is zero or a group address.
    fn is_one(&self) -> bool {
        let ip = self.address.ip();
        !self.mac.is_multicast()
            && self.mac != Mac::default()
            && self.address.port() != 0
            && !ip.is_unspecified()
            && !ip.is_multicast()
    }
}

/// Port of a shard of the node that listens at `port`: `port` plus the shard's number; after 65535 comes 1.
pub(crate) fn shard_port(port: u16, shard: u8) -> u16 {
    let sum = u32::from(port) + u32::from(shard);
    if sum > u32::from(u16::MAX) { (sum - u32::from(u16::MAX)) as u16 } else { sum as u16 }
}

/// Table of outer addresses; clones are handles to the same table.
#[derive(Clone, Default)]
pub struct Peers(Arc<PeerTable>);

#[derive(Default)]
struct PeerTable {
    /// Number of changes of the table. Links compare it to detect that their copy is outdated.
    version: AtomicU32,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// Entries from options, which override the manager's.
    named: BTreeMap<Mac, SocketAddr>,
    /// Entries from the manager, which may change at any time.
    manager_entries: BTreeMap<Mac, SocketAddr>,
}

impl PartialEq for Peers {
    /// Whether both are handles to one table.
    fn eq(&self, other: &Peers) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Peers {}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().iter().map(Peer::to_string)).finish()
    }
}

impl Peers {
    /// Makes a table of constant entries. If two have the same MAC, the later one counts.
    pub fn named(peers: &[Peer]) -> Peers {
        let table = Peers::default();
        table.lock().named = collect(peers.iter().copied());
        table.0.version.store(1, Ordering::Release);
        table
    }

    /// Replaces the manager's entries; entries from options remain.
    pub fn set_from_manager(&self, peers: impl IntoIterator<Item = Peer>) {
        let manager_entries = collect(peers.into_iter());
        let mut lists = self.lock();
        // Links copy the table only after a real change.
        if lists.manager_entries != manager_entries {
            lists.manager_entries = manager_entries;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds entries to the manager's entries, or changes those with the same MAC.
    pub fn add_from_manager(&self, peers: impl IntoIterator<Item = Peer>) {
        let mut lists = self.lock();
        let mut manager_entries = lists.manager_entries.clone();
        manager_entries.append(&mut collect(peers.into_iter()));
        if lists.manager_entries != manager_entries {
            lists.manager_entries = manager_entries;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Number of changes; a link compares it to renew its copy.
    #[inline]
    pub fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Outer address of the node with this MAC, if registered.
    pub fn find(&self, mac: Mac) -> Option<SocketAddr> {
        let lists = self.lock();
        lists.named.get(&mac).or_else(|| lists.manager_entries.get(&mac)).copied()
    }

    /// All entries in effect, ordered by MAC.
    pub fn list(&self) -> Vec<Peer> {
        let lists = self.lock();
        let mut all = lists.manager_entries.clone();
        all.extend(lists.named.iter().map(|(mac, address)| (*mac, *address)));
        all.into_iter().map(|(mac, address)| Peer { mac, address }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects usable peers by MAC, at most [`PEERS_MAX`].
fn collect(peers: impl Iterator<Item = Peer>) -> BTreeMap<Mac, SocketAddr> {
    let mut all = BTreeMap::new();
    for Peer { mac, address } in peers {
        let address = match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
            IpAddr::V6(_) => address,
        };
        let peer = Peer { mac, address };
        if !peer.is_one() {
            tracing::warn!(%peer, "not added to the table of UDP peers: not one node's address");
        } else if all.len() >= PEERS_MAX && !all.contains_key(&mac) {
            tracing::warn!(%peer, limit = PEERS_MAX, "not added to the table of UDP peers: it is full");
        } else {
            all.insert(mac, address);
        }
    }
    all
}
