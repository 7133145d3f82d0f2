//! Becoming a compute node of one's own: a program registers with the manager under its interface's address,
//! gets a region, and reaches it by a line port in its own process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use crate::access::{Access, AccessError};
use crate::access::{Opened, check_sealed};
use crate::following::{Follower, KeyNews, KeyWatch};
use crate::manager::Manager;
use crate::port::{Port, PortError};
use crate::rate_control::RateControl;
use crate::renewal::Renewer;
use crate::signals::Signals;
use cxloe_cn_core::attach::{AttachError, STREAMS_DEFAULT, Station, StationKeys};
use cxloe_cn_core::attachments::Attachment;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::Engine;
use cxloe_fabric::ClientError;
use cxloe_fabric::api::{ComputeNodeSync, CreateRegion, DestroyRegion, RegisterComputeNode};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, Leg, MacError, Name, NameError, Region, Watermark};
use cxloe_link::keys::{SYSTEM, epoch_ns};
use cxloe_link::outer::{Peer, Peers};
use cxloe_link::udp::own_address;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Extras, LinkConfig, LinkError, open_with};
use cxloe_wire::frame::{Mac, PublicKey, SHARDS_MAX};
use cxloe_wire::session::Timing;

/// What to connect with.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What the manager is to call this compute node, in front of its address; and a new region, in front of a number.
    pub name: String,
    /// The link.
    pub link: LinkConfig,
    /// Faults and frame record.
    pub extras: Extras,
    /// What the port does while it waits.
    pub wait: WaitStyle,
    /// The manager's URL.
    pub manager: String,
    /// By what this compute node is known, and what its sessions are sealed with.
    pub access: Access,
    /// An existing region of this node to use, or `None` for a new one that is destroyed afterwards.
    pub region: Option<String>,
    /// Size of a new region in bytes.
    pub size: u64,
    /// Over how many memory nodes a new region is spread.
    pub ways: Ways,
    /// In chunks of how many bytes.
    pub granularity: Granularity,
    /// How long to wait for a session.
    pub timeout: Duration,
    /// How requests are paced; `None`: not at all.
    pub rate_control: Option<RateControl>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The manager.
    #[error(transparent)]
    Manager(#[from] ClientError),
    /// The interface's address cannot be a CN id.
    #[error("interface `{interface}`: {source}")]
    CnId {
        /// The interface.
        interface: String,
        /// Why.
        source: MacError,
    },
    /// This process has a port on the interface.
    #[error(
        "this program has a region over interface `{interface}` (CN {own}) already, and an interface has one port at a time: \
         close that one first, use another interface, or map both regions through the agent"
    )]
    Taken {
        /// The interface.
        interface: String,
        /// Its CN.
        own: CnId,
    },
    /// The region's name cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The region belongs to another compute node.
    #[error(
        "region `{region}` belongs to CN {owner}, and this one is {own}; create one with `gmm create-region --owner {own}`"
    )]
    NotOurs {
        /// The region.
        region: Name,
        /// Its owner.
        owner: CnId,
        /// This CN.
        own: CnId,
    },
    /// Attaching it.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Its key, or the file by which it is known.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// No thread for the certificate.
    #[error("no thread for the certificate can be started: {0}")]
    Renewer(std::io::Error),
    /// No thread for news of the manager.
    #[error("no thread for news of the manager can be started: {0}")]
    Follower(std::io::Error),
    /// No thread for handshakes.
    #[error("no thread for handshakes can be started: {0}")]
    Thread(std::io::Error),
    /// The session.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// A line port to a region.
pub struct Connected {
    /// The port, without a line cache.
    pub port: Port,
    /// The region.
    pub region: Region,
    /// HPA of its first byte.
    pub hpa: u64,
    /// Address of its first memory node.
    pub peer: Mac,
    /// What has to be given back.
    pub lease: Lease,
}

/// Line ports to a region, one for each shard of this compute node: each has a queue, an engine and a session of its own,
/// for a thread of its own. Whoever uses them sees to it that no line is read or written by two of them.
pub struct Shards {
    /// The ports, without line caches, by shard.
    pub ports: Vec<Port>,
    /// The region.
    pub region: Region,
    /// HPA of its first byte.
    pub hpa: u64,
    /// Address of its first memory node.
    pub peer: Mac,
    /// What has to be given back.
    pub lease: Lease,
}

/// The registration, and the region if it was made for the occasion: destroyed by [`end`](Self::end), or when
/// this is dropped.
pub struct Lease {
    manager: Manager,
    own: CnId,
    registration: u64,
    /// Its name, and when it was created.
    temporary: Option<(Name, u64)>,
    /// Keeps the certificate valid for as long.
    _renewer: Option<Renewer>,
    /// Hears of keys for as long, where sessions have some.
    follower: Option<Follower>,
    /// Given up last, when the manager knows that this compute node has gone.
    _place: Place,
}

/// Compute nodes that this process is, and the process: what a child inherits is not its own.
static PLACES: Mutex<BTreeSet<(u32, CnId)>> = Mutex::new(BTreeSet::new());

/// The only registration of a compute node in this process: two ports of one address would take each other's sessions.
struct Place((u32, CnId));

impl Place {
    fn take(own: CnId, interface: &str) -> Result<Place, ConnectError> {
        let place = (std::process::id(), own);
        if PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            return Ok(Place(place));
        }
        Err(ConnectError::Taken { interface: interface.into(), own })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// How long the manager is given to hear that this compute node has gone.
const HANG_UP_TIMEOUT: Duration = Duration::from_millis(50);

/// Where the region is attached; not 0, so that a lost base shows.
const HPA: u64 = 1 << 32;

impl Connected {
    /// Opens the link, registers, gets the region and waits for the session.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn open(options: &ConnectOptions) -> Result<Connected, ConnectError> {
        let Shards { mut ports, region, hpa, peer, lease } = Shards::open(options, 1)?;
        Ok(Connected { port: ports.remove(0), region, hpa, peer, lease })
    }
}

impl Shards {
    /// Opens a link for each of `shards` queues (1 to 16), registers, gets the region and waits for the sessions.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn open(options: &ConnectOptions, shards: u8) -> Result<Shards, ConnectError> {
        let queues = u32::from(shards.clamp(1, SHARDS_MAX));
        let links = (0..queues).map(|queue| {
            let link = LinkConfig { queue, queues, sharded: queues > 1, ..options.link.clone() };
            open_with(&link, &options.extras)
        });
        let links = links.collect::<Result<Vec<_>, _>>()?;
        let info = links[0].info().clone();
        let udp = options.link.is_over_udp().then(|| own_address(&options.link)).transpose()?;
        let own = CnId::new(cxloe_fabric::model::Mac(info.mac.0))
            .map_err(|source| ConnectError::CnId { interface: info.interface.clone(), source })?;
        let Opened { credentials, identity, key: own_key, is_new } =
            options.access.open(own, &info.interface, &options.manager)?;
        let manager = Manager::new(&options.manager, &credentials)?;
        let instance = rand::random();
        let name = |prefix: &str| Name::new(format!("{prefix}-{}", info.mac.to_string().replace(':', "")));

        let node = RegisterComputeNode {
            cn_id: own,
            name: name(&options.name)?,
            udp,
            key: own_key.as_ref().map(|key| key.public()),
            new_key: is_new,
            instance_id: instance,
            seen: Watermark::default(),
        };
        let place = Place::take(own, &info.interface)?;
        let registration = manager.register(&node)?.registration;
        // From here on whatever fails gives the registration back.
        let mut lease = Lease {
            manager,
            own,
            registration,
            temporary: None,
            _renewer: None,
            follower: None,
            _place: place,
        };
        let renewer = identity.map(|(path, file)| Renewer::start(path, file, options.manager.clone()));
        lease._renewer = renewer.transpose().map_err(ConnectError::Renewer)?;
        let region = match &options.region {
            Some(existing) => lease.manager.region(&Name::new(existing.as_str())?)?,
            None => {
                let wanted = Name::new(format!("{}-{}", options.name, std::process::id()))?;
                let create = CreateRegion {
                    ways: options.ways.count(),
                    granularity: options.granularity.bytes(),
                    ..CreateRegion::new(wanted.clone(), options.size, own)
                };
                let made = lease.manager.create_region(&create)?;
                lease.temporary = Some((wanted, made.created_ms));
                made
            }
        };
        if region.owner != own {
            return Err(ConnectError::NotOurs { region: region.name, owner: region.owner, own });
        }
        if own_key.is_some() {
            check_sealed(&region)?;
        }
        if udp.is_some() {
            find_peers(&region, &options.link.udp.peers)?;
        }
        let mut station = Station {
            own: info.mac,
            ethertype: options.link.ethertype,
            max_frame: info.max_frame,
            streams: STREAMS_DEFAULT,
            instance,
            key: None,
            keys: StationKeys { own: own_key, told: keys_of(&region), ..StationKeys::none(SYSTEM) },
            timing: Timing::default(),
        };
        let news = Arc::new(KeyNews::default());
        news.hear(std::slice::from_ref(&region));
        let attachment = Attachment::over_ethernet(region.clone(), HPA, region.size);
        let mut ports = Vec::with_capacity(links.len());
        for (shard, link) in (0..).zip(links) {
            let mut engine = Engine::new(CacheConfig::OFF);
            engine.set_shard(shard);
            let mut port = Port::new(link, engine, options.wait);
            if station.keys.own.is_some() {
                port.shake_hands().map_err(ConnectError::Thread)?;
            }
            station.keys.epoch_ns = epoch_ns(port.clock());
            let now = port.clock().now();
            let mut signals = match &options.rate_control {
                Some(rates) => rates.apply(port.engine(), &info, options.link.priority.unwrap_or(0), now)?,
                None => Signals::default(),
            };
            if station.keys.own.is_some() {
                signals = signals.with_keys(KeyWatch::new(Arc::clone(&news), station.clone()));
            }
            port.listen(signals);
            station.attach(port.engine(), &attachment, now)?;
            port.connect(options.timeout)?;
            ports.push(port);
        }
        if station.keys.own.is_some() {
            let manager = Manager::new(&options.manager, &credentials)?;
            // The key that was made for this run is known by now.
            let node = RegisterComputeNode { new_key: false, ..node };
            let follower = Follower::start(manager, node, registration, news);
            lease.follower = Some(follower.map_err(ConnectError::Follower)?);
        }
        let peer = region.legs.first().and_then(|leg| leg.mac()).map_or(Mac::default(), |mac| Mac(mac.0));
        Ok(Shards { ports, region, hpa: HPA, peer, lease })
    }
}

/// The keys of the memory nodes of `region`.
fn keys_of(region: &Region) -> BTreeMap<Mac, PublicKey> {
    let keys = region.legs.iter().filter_map(|leg| Some((leg.mac()?, leg.mn_key?)));
    keys.collect()
}

/// Has the link know where the memory nodes of `region` are.
fn find_peers(region: &Region, peers: &Peers) -> Result<(), LinkError> {
    let of_leg = |leg: &Leg| Some(Peer { mac: Mac(leg.mac()?.octets()), address: leg.udp? });
    peers.tell_more(region.legs.iter().filter_map(of_leg));
    let mut macs = region.legs.iter().filter_map(|leg| Some(Mac(leg.mac()?.octets())));
    macs.find(|mac| peers.find(*mac).is_none()).map_or(Ok(()), |mac| Err(LinkError::NoPeerAddress(mac)))
}

impl Lease {
    /// Destroys the temporary region, if there is one.
    pub fn end(mut self) -> Result<(), ConnectError> {
        let Some((name, created_ms)) = self.temporary.take() else { return Ok(()) };
        let now = DestroyRegion { force: true, wait_ms: 10_000, created_ms: Some(created_ms) };
        Ok(self.manager.destroy_region(&name, now)?)
    }

    /// Lets the next run have this compute node's place at once: a node that hangs up while it waits for news of its
    /// regions has gone, while one that merely falls silent is given time.
    fn hang_up(&self) {
        let until = Instant::now() + HANG_UP_TIMEOUT;
        let mut after_event = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let sync = ComputeNodeSync {
                registration: self.registration,
                after_event,
                released: Vec::new(),
                quiet: 0,
                wait_ms: 60_000,
            };
            match self.manager.sync(self.own, &sync, left) {
                Ok(synced) if !left.is_zero() => after_event = synced.after_event,
                _ => return,
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((name, created_ms)) = self.temporary.take() {
            // On the way out after an error: say it, but the error that led here matters more.
            let now = DestroyRegion { force: true, wait_ms: 2_000, created_ms: Some(created_ms) };
            if let Err(e) = self.manager.destroy_region(&name, now) {
                tracing::warn!(region = %name, %e, "the temporary region is left over");
            }
        }
        // By hanging up in the midst of its wait; again, lest it was between two.
        drop(self.follower.take());
        self.hang_up();
    }
}
