//! Interfaces over which this process maps regions: an interface is opened and registered with its first region, and
//! closed after its last.
//!
//! ```text
//!   open --> the interface's lock --first region--> link, registration, port, keeper
//!                |  the region: manager --> attached to a separate engine --> adopted by the port's engine
//!                v
//!            InlineRegion --end--> routes removed; with the last region: sessions, link and registration end
//! ```
//!
//! The lock is held while a region is added or removed, including the wait for its memory nodes. A faulting thread
//! never takes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_cn_core::attach::AttachError;
use cxloe_cn_core::attachments::Attachment;
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Pacing};
use cxloe_fabric::model::{CnId, Region};
use cxloe_link::{Clock, LinkConfig, open_with, own_mac};
use cxloe_wire::frame::Mac;

use super::InlineError;
use super::shared::SharedPortRef;
use super::space::SPACES_MAX;
use crate::connect::{
    ComputeNode, ConnectError, ConnectOptions, DESTROY_WAIT_MS, HPA, TemporaryRegion, cn_of,
};

/// Maximum number of memory nodes that the regions of one interface use, including former regions.
const PEERS_MAX: usize = 256;
/// Maximum number of decoders that the regions of one interface have at a time.
const ROUTES_MAX: usize = 4096;
/// Smallest distance between the first HPAs of two regions. HPAs are not reused.
const ALIGN: u64 = 1 << 32;

/// An open interface of this process, with its registered compute node.
struct Interface {
    shared: SharedPortRef,
    node: ComputeNode,
    clock: Clock,
    pacing: Option<Pacing>,
    /// Options with which the interface was opened.
    options: ConnectOptions,
    regions: usize,
    /// First HPA of the next region.
    next_hpa: u64,
}

/// State of one interface; `None` while no region is mapped over it.
type Slot = Mutex<Option<Interface>>;

/// Interfaces, by process id and compute node: a forked child does not own the interfaces of its parent.
static INTERFACES: Mutex<BTreeMap<(u32, CnId), Arc<Slot>>> = Mutex::new(BTreeMap::new());

/// A region's use of its interface, which ends when this is dropped.
pub struct InterfaceShare {
    slot: Arc<Slot>,
    hpa: u64,
    bytes: u64,
    routes: usize,
    temporary: Option<TemporaryRegion>,
    has_ended: bool,
}

impl std::fmt::Debug for InterfaceShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("hpa", &self.hpa).finish_non_exhaustive()
    }
}

fn lock(slot: &Slot) -> MutexGuard<'_, Option<Interface>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attaches the region that `connect` names. Opens the interface of `connect` if this is the interface's first region.
/// Returns the port, and the region's share of the interface.
pub fn take(connect: &ConnectOptions) -> Result<(SharedPortRef, InterfaceShare), InlineError> {
    let own = cn_of(own_mac(&connect.link).map_err(ConnectError::from)?, &connect.link.interface)?;
    let slot = {
        let mut interfaces = INTERFACES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(interfaces.entry((std::process::id(), own)).or_default())
    };
    let mut guard = lock(&slot);
    if guard.is_none() {
        *guard = Some(Interface::open(connect)?);
    }
    let Some(interface) = guard.as_mut() else { return Err(InlineError::InUse) };
    if !interface.is_reached_as(connect) {
        let interface = connect.link.interface.clone();
        return Err(ConnectError::OtherWay { interface, own }.into());
    }
    // If a later step fails, dropping the share undoes the steps before. The drop takes the lock, so the guard has to
    // be dropped before the share.
    let mut held = InterfaceShare {
        slot: Arc::clone(&slot),
        hpa: interface.next_hpa,
        bytes: 0,
        routes: 0,
        temporary: None,
        has_ended: false,
    };
    interface.regions += 1;
    let attached = interface.attach(connect, &mut held);
    let shared = interface.shared.clone();
    drop(guard);
    attached?;
    Ok((shared, held))
}

impl Interface {
    fn open(connect: &ConnectOptions) -> Result<Interface, InlineError> {
        let link = open_with(&connect.link, &connect.extras).map_err(ConnectError::from)?;
        let mut node = ComputeNode::register(connect, link.info().clone())?;
        let mut port = node.port(link, 0, connect)?;
        port.engine().reserve(PEERS_MAX, ROUTES_MAX);
        let (clock, pacing) = (port.clock().clone(), port.engine().pacing());
        node.follow()?;
        let shared = SharedPortRef::new(port)?;
        Ok(Interface { shared, node, clock, pacing, options: connect.clone(), regions: 0, next_hpa: HPA })
    }

    /// Whether `connect` names the link, manager, key and rate control with which this interface was opened.
    fn is_reached_as(&self, connect: &ConnectOptions) -> bool {
        let own = &self.options;
        // Peers' UDP addresses are not compared: they are added while the interface is in use.
        let link = |options: &ConnectOptions| {
            let mut link: LinkConfig = options.link.clone();
            link.udp.peers = own.link.udp.peers.clone();
            link
        };
        link(own) == link(connect)
            && own.manager == connect.manager
            && own.access == connect.access
            && own.rate_control == connect.rate_control
    }

    /// Attaches a region, and waits for sessions with its memory nodes.
    fn attach(&mut self, connect: &ConnectOptions, held: &mut InterfaceShare) -> Result<(), InlineError> {
        let connect = ConnectOptions { link: self.options.link.clone(), ..connect.clone() };
        if self.regions > SPACES_MAX {
            return Err(InlineError::Full(SPACES_MAX));
        }
        let region = self.node.region(&connect, &mut held.temporary)?;
        held.bytes = region.size;
        let name = region.name.to_string();
        let macs = macs_of(&region);
        let decoders = region.decoders.len();
        let mut ready = Engine::new(CacheConfig::OFF);
        let now = self.clock.now();
        ready.set_pacing(self.pacing, now);
        let attachment = Attachment::over_ethernet(region, held.hpa, held.bytes);
        self.node.station().attach(&mut ready, &attachment, now).map_err(ConnectError::from)?;
        let adopted = self.shared.adopt(ready);
        adopted.map_err(|source| ConnectError::from(AttachError::Route { region: name, source }))?;
        held.routes = decoders;
        self.next_hpa = (held.hpa + held.bytes).next_multiple_of(ALIGN);
        Ok(self.shared.connect(&macs, connect.timeout)?)
    }
}

/// MAC addresses of a region's memory nodes, each once.
fn macs_of(region: &Region) -> Vec<Mac> {
    let mut macs: Vec<Mac> = region.legs.iter().filter_map(|leg| Some(Mac(leg.mac()?.octets()))).collect();
    macs.sort_unstable();
    macs.dedup();
    macs
}

impl InterfaceShare {
    pub fn hpa(&self) -> u64 {
        self.hpa
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the region back; with the last region the interface is closed.
    ///
    /// # Errors
    /// The manager's error for the end of a temporary region, or a failure to close the interface.
    pub fn end(mut self) -> Result<(), InlineError> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), InlineError> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let mut guard = lock(&self.slot);
        let Some(interface) = guard.as_mut() else { return Ok(()) };
        if self.routes > 0 {
            interface.shared.part(self.hpa, self.bytes, self.routes);
        }
        let temporary = self.temporary.take();
        let destroy = |region: TemporaryRegion| interface.node.destroy(&region, DESTROY_WAIT_MS);
        let destroyed = temporary.map_or(Ok(()), destroy).map_err(InlineError::from);
        interface.regions -= 1;
        if interface.regions > 0 {
            return destroyed;
        }
        // The compute node is dropped last, so that it is deregistered after its sessions have ended.
        let Some(Interface { shared, node: _node, .. }) = guard.take() else { return destroyed };
        destroyed.and(shared.into_port().and_then(|port| Ok(port.close()?)))
    }
}

impl Drop for InterfaceShare {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::error!(%error, "a mapping ends");
        }
    }
}
