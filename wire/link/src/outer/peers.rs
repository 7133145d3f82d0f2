//! Which outer address speaks for which MAC. The table is shared between those who learn of nodes (options, the link to
//! the manager) and the links; a link keeps a copy of its own, which it takes anew when the table has changed, so that
//! sending and receiving look things up without a lock.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_wire::frame::{Mac, SHARDS_MAX};
use serde::{Deserialize, Serialize};

/// Entries of each list, static and from the manager; what is beyond is left out, and said.
const PEERS_MAX: usize = 65_536;

/// An outer address and the MAC it speaks for, written `MAC=ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Peer {
    /// The node's MAC, as in its frames.
    pub mac: Mac,
    /// Where it listens and sends from.
    pub address: SocketAddr,
}

/// A text that names no peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no peer: write MAC=ADDRESS:PORT, as in 02:00:00:00:00:01=10.0.0.1:63669 or 02:00:00:00:00:01=[fd00::1]:63669"
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

impl TryFrom<String> for Peer {
    type Error = PeerError;
    fn try_from(text: String) -> Result<Self, PeerError> {
        text.parse()
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> String {
        peer.to_string()
    }
}

impl Peer {
    /// The peers that a compute node with several queues is: itself, and its shards, each at a port of its own.
    pub fn shards(self) -> impl Iterator<Item = Peer> {
        (0..SHARDS_MAX).map(move |shard| {
            let mut address = self.address;
            address.set_port(shard_port(address.port(), shard));
            Peer { mac: self.mac.shard(shard), address }
        })
    }

    /// Whether MAC and address are one node's.
    fn is_one(&self) -> bool {
        let ip = self.address.ip();
        !self.mac.is_multicast()
            && self.mac != Mac::default()
            && self.address.port() != 0
            && !ip.is_unspecified()
            && !ip.is_multicast()
    }
}

/// The port of a shard of the node that listens at `port`: counted up, round the end of the numbers past 0.
pub(crate) fn shard_port(port: u16, shard: u8) -> u16 {
    let sum = u32::from(port) + u32::from(shard);
    if sum > u32::from(u16::MAX) { (sum - u32::from(u16::MAX)) as u16 } else { sum as u16 }
}

/// The table; its copies are one.
#[derive(Clone, Default)]
pub struct Peers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Rises with each change.
    version: AtomicU32,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// Named by options: these stand, whatever the manager says.
    named: BTreeMap<Mac, SocketAddr>,
    /// Told by the manager.
    told: BTreeMap<Mac, SocketAddr>,
}

impl PartialEq for Peers {
    /// Whether both are the same table.
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
    /// A table of peers that are named once and for all. Of two with one MAC the later stands.
    pub fn named(peers: &[Peer]) -> Peers {
        let table = Peers::default();
        table.lock().named = collect(peers.iter().copied());
        table.0.version.store(1, Ordering::Release);
        table
    }

    /// Takes over what the manager tells, in place of what it told before. Named peers stay as they are.
    pub fn tell(&self, peers: impl IntoIterator<Item = Peer>) {
        let told = collect(peers.into_iter());
        let mut lists = self.lock();
        if lists.told != told {
            lists.told = told;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds to what the manager told, or changes it.
    pub fn tell_more(&self, peers: impl IntoIterator<Item = Peer>) {
        let mut lists = self.lock();
        let mut told = lists.told.clone();
        told.append(&mut collect(peers.into_iter()));
        if lists.told != told {
            lists.told = told;
            self.0.version.fetch_add(1, Ordering::Release);
        }
    }

    /// A number that rises with each change.
    #[inline]
    pub fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Where the node with this MAC is, if that is known.
    pub fn find(&self, mac: Mac) -> Option<SocketAddr> {
        let lists = self.lock();
        lists.named.get(&mac).or_else(|| lists.told.get(&mac)).copied()
    }

    /// All of them, by MAC.
    pub fn list(&self) -> Vec<Peer> {
        let lists = self.lock();
        let mut all = lists.told.clone();
        all.extend(lists.named.iter().map(|(mac, address)| (*mac, *address)));
        all.into_iter().map(|(mac, address)| Peer { mac, address }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The peers by MAC, as far as they are usable and there is room.
fn collect(peers: impl Iterator<Item = Peer>) -> BTreeMap<Mac, SocketAddr> {
    let mut all = BTreeMap::new();
    for Peer { mac, address } in peers {
        let address = match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
            IpAddr::V6(_) => address,
        };
        let peer = Peer { mac, address };
        if !peer.is_one() {
            tracing::warn!(%peer, "left out of the table of UDP peers: not one node's address");
        } else if all.len() >= PEERS_MAX && !all.contains_key(&mac) {
            tracing::warn!(%peer, limit = PEERS_MAX, "left out of the table of UDP peers: it is full");
        } else {
            all.insert(mac, address);
        }
    }
    all
}
