//! This program as a compute node: registered with the manager, able to attach regions of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::Engine;
use cxloe_fabric::api::{CreateRegion, DestroyRegion, RegisterComputeNode};
use cxloe_fabric::model::{CnId, Leg, LegState, Name, Region, Watermark};
use cxloe_link::keys::{SYSTEM, epoch_ns};
use cxloe_link::outer::{Peer, Peers};
use cxloe_link::udp::own_address;
use cxloe_link::{Link, LinkError, LinkInfo};
use cxloe_wire::frame::{Mac, PublicKey};
use cxloe_wire::session::Timing;

use super::{ConnectError, ConnectOptions};
use crate::access::{Opened, check_sealed};
use crate::following::{Follower, KeyWatch, PeerKeys, Registration};
use crate::manager::Manager;
use crate::port::Port;
use crate::renewal::Renewer;
use crate::signals::Signals;

/// Maximum time for the notice to the manager that this compute node has ended.
const HANG_UP_TIMEOUT: Duration = Duration::from_millis(50);
/// Longest time for the destruction of a temporary region after an error, in milliseconds.
const ABANDON_WAIT_MS: u64 = 2_000;

#[derive(Debug)]
pub(crate) struct TemporaryRegion {
    name: Name,
    created_ms: u64,
}

/// Number of temporary regions that this process has created: part of their names.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A registered compute node of this process; dropping it ends its registration.
pub(crate) struct ComputeNode {
    manager: Manager,
    own: CnId,
    is_over_udp: bool,
    info: LinkInfo,
    station: SessionSettings,
    keys: Arc<PeerKeys>,
    /// Renews the certificate while the node is registered.
    _renewer: Option<Renewer>,
    /// Registration with the manager; `None` when the follower thread has taken it over.
    registration: Option<Registration>,
    /// Thread that receives changes from the manager; started only if sessions use keys.
    follower: Option<Follower>,
    /// Dropped last, so that this process does not use the compute node again before the manager has recorded the end
    /// of the registration.
    _place: ComputeNodeLock,
}

/// Compute nodes of this process, each with the process's id: a forked child inherits the set, but does not own the
/// nodes.
static PLACES: Mutex<BTreeSet<(u32, CnId)>> = Mutex::new(BTreeSet::new());

/// Exclusive use of a compute node in this process: two ports with one address would end each other's sessions.
struct ComputeNodeLock((u32, CnId));

impl ComputeNodeLock {
    fn take(own: CnId, interface: &str) -> Result<ComputeNodeLock, ConnectError> {
        let place = (std::process::id(), own);
        if PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            return Ok(ComputeNodeLock(place));
        }
        Err(ConnectError::Taken { interface: interface.into(), own })
    }
}

impl Drop for ComputeNodeLock {
    fn drop(&mut self) {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// CN id of the station with address `mac` on an interface.
pub(crate) fn cn_of(mac: Mac, interface: &str) -> Result<CnId, ConnectError> {
    let own = CnId::new(cxloe_fabric::model::Mac(mac.0));
    own.map_err(|source| ConnectError::CnId { interface: interface.into(), source })
}

impl ComputeNode {
    /// Registers the station of a link with the manager.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn register(options: &ConnectOptions, info: LinkInfo) -> Result<ComputeNode, ConnectError> {
        let udp = options.link.is_over_udp().then(|| own_address(&options.link)).transpose()?;
        let own = cn_of(info.mac, &info.interface)?;
        let Opened { credentials, identity, key, pre_shared, is_new } =
            options.access.open(own, &info.interface, &options.manager)?;
        let manager = Manager::new(&options.manager, &credentials)?;
        let joined = identity.as_ref().map(|(_, file)| file.joined);
        let instance = rand::random();
        // The node keeps a name that it already has at the manager, for example from the agent of this machine.
        let known = manager.compute_nodes()?.into_iter().find(|node| node.cn_id == own);
        let name = match known.and_then(|node| node.name) {
            Some(name) => name,
            None => Name::new(format!("{}-{}", options.name, info.mac.to_string().replace(':', "")))?,
        };
        let node = RegisterComputeNode {
            cn_id: own,
            name,
            udp,
            key: key.as_ref().map(|key| key.public()),
            new_key: is_new,
            instance_id: instance,
            seen: Watermark::default(),
        };
        let station = SessionSettings {
            own: info.mac,
            ethertype: options.link.ethertype,
            max_frame: info.max_frame,
            streams: STREAMS_DEFAULT,
            instance,
            key: pre_shared,
            keys: SessionKeys { own: key, ..SessionKeys::none(SYSTEM) },
            timing: Timing::default(),
        };
        let place = ComputeNodeLock::take(own, &info.interface)?;
        // The registration has its own connection to the manager, because the follower thread will use it.
        let registration = Registration::new(Manager::new(&options.manager, &credentials)?, node, joined)?;
        // If a later step fails, dropping the compute node ends the registration.
        let mut registered = ComputeNode {
            manager,
            own,
            is_over_udp: udp.is_some(),
            info,
            station,
            keys: Arc::default(),
            _renewer: None,
            registration: Some(registration),
            follower: None,
            _place: place,
        };
        let renewer = identity.map(|(path, file)| Renewer::start(path, file, options.manager.clone()));
        registered._renewer = renewer.transpose().map_err(ConnectError::Renewer)?;
        Ok(registered)
    }

    /// Common parameters of the node's sessions.
    pub fn station(&self) -> &SessionSettings {
        &self.station
    }

    /// Whether the node's sessions use keys.
    fn has_key(&self) -> bool {
        self.station.keys.own.is_some()
    }

    /// Returns the region that `options` name, which must belong to this node. If they name none, creates a region and
    /// records it in `temporary`. Also registers the UDP addresses of the region's memory nodes with the link.
    ///
    /// # Errors
    /// Any [`ConnectError`].
    pub fn region(
        &mut self,
        options: &ConnectOptions,
        temporary: &mut Option<TemporaryRegion>,
    ) -> Result<Region, ConnectError> {
        let own = self.own;
        let region = match &options.region {
            Some(existing) => self.manager.region(&Name::new(existing.as_str())?)?,
            None => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let more = if number == 0 { String::new() } else { format!("-{number}") };
                let name = Name::new(format!("{}-{}{more}", options.name, std::process::id()))?;
                let create = CreateRegion {
                    ways: options.ways,
                    granularity: options.granularity,
                    ..CreateRegion::new(name.clone(), options.size, own)
                };
                let made = self.manager.create_region(&create)?;
                *temporary = Some(TemporaryRegion { name, created_ms: made.created_ms });
                made
            }
        };
        if region.owner != own {
            return Err(ConnectError::NotOurs { region: region.name, owner: region.owner, own });
        }
        if region.legs.iter().any(|leg| leg.copy > 0 || leg.state == LegState::Stale) {
            return Err(ConnectError::Mirrored(region.name));
        }
        if region.sealed {
            return Err(ConnectError::Sealed(region.name));
        }
        if self.has_key() && self.station.key.is_none() {
            check_sealed(&region)?;
        }
        if self.is_over_udp {
            find_peers(&region, &options.link.udp.peers)?;
        }
        self.station.keys.announced.extend(keys_of(&region));
        self.keys.update_from(std::slice::from_ref(&region));
        Ok(region)
    }

    /// A port over `link`, the link of one shard of the node, with no region attached.
    ///
    /// # Errors
    /// Failure to start the thread for handshakes, or to open the link's signals.
    pub fn port(
        &mut self,
        link: Box<dyn Link>,
        shard: u8,
        options: &ConnectOptions,
    ) -> Result<Port, ConnectError> {
        let mut engine = Engine::new(CacheConfig::OFF);
        engine.set_shard(shard);
        let mut port = Port::new(link, engine, options.wait);
        if self.has_key() {
            port.start_handshaker().map_err(ConnectError::Thread)?;
        }
        self.station.keys.epoch_ns = epoch_ns(port.clock());
        let now = port.clock().now();
        let mut signals = match &options.rate_control {
            Some(rates) => rates.apply(port.engine(), &self.info, options.link.priority.unwrap_or(0), now)?,
            None => Signals::default(),
        };
        if self.has_key() {
            signals = signals.with_keys(KeyWatch::new(Arc::clone(&self.keys), self.station.keys.clone()));
        }
        port.set_signals(signals);
        Ok(port)
    }

    /// Starts the thread that receives changes from the manager, if sessions use keys.
    ///
    /// # Errors
    /// Failure to start the thread.
    pub fn follow(&mut self) -> Result<(), ConnectError> {
        if let Some(registration) = self.registration.take_if(|_| self.station.keys.own.is_some()) {
            let follower = Follower::start(registration, Arc::clone(&self.keys));
            self.follower = Some(follower.map_err(ConnectError::Follower)?);
        }
        Ok(())
    }

    /// Destroys a temporary region; the manager may take up to `wait_ms` milliseconds.
    ///
    /// # Errors
    /// The manager's error.
    pub fn destroy(&self, region: &TemporaryRegion, wait_ms: u64) -> Result<(), ConnectError> {
        let now = DestroyRegion { force: true, wait_ms, created_ms: Some(region.created_ms) };
        Ok(self.manager.destroy_region(&region.name, now)?)
    }

    /// Destroys a temporary region after an error: a failure is only logged, because the first error matters more.
    pub fn abandon(&self, region: &TemporaryRegion) {
        if let Err(e) = self.destroy(region, ABANDON_WAIT_MS) {
            tracing::warn!(region = %region.name, %e, "the temporary region is left over");
        }
    }
}

impl Drop for ComputeNode {
    fn drop(&mut self) {
        // Stopping the follower ends the registration only if a request to the manager was pending, so the registration
        // is ended here in all cases.
        let registration = self.follower.take().and_then(Follower::stop).or(self.registration.take());
        if let Some(registration) = registration {
            registration.hang_up(&self.manager, HANG_UP_TIMEOUT);
        }
    }
}

fn keys_of(region: &Region) -> BTreeMap<Mac, PublicKey> {
    let keys = region.legs.iter().filter_map(|leg| Some((leg.mac()?, leg.mn_key?)));
    keys.collect()
}

/// Registers the UDP addresses of the memory nodes of `region` with the link.
fn find_peers(region: &Region, peers: &Peers) -> Result<(), LinkError> {
    let of_leg = |leg: &Leg| Some(Peer { mac: Mac(leg.mac()?.octets()), address: leg.udp? });
    peers.add_from_manager(region.legs.iter().filter_map(of_leg));
    let mut macs = region.legs.iter().filter_map(|leg| Some(Mac(leg.mac()?.octets())));
    macs.find(|mac| peers.find(*mac).is_none()).map_or(Ok(()), |mac| Err(LinkError::NoPeerAddress(mac)))
}
