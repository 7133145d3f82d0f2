//! What control knows of this node's regions, in one place: remembered in the state file, given to the worker, shown to
//! whoever asks. The link to the manager comes here with the manager's news, the thread that looks for CXL devices with
//! its answers; each change is remembered before it is carried out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_daemon::StateError;
use cxloe_fabric::api::{Held, ReleasedRegion, VppbError};
use cxloe_fabric::model::{LogicalDevice, Name, Region, Watermark};

use crate::state_file::StateFile;
use crate::worker::order::ask;
use crate::worker::{DrainedTickets, Order, Orders, OrdersGone};
use cxloe_client::message::{AttachedRegion, NodeView, Refused};
use cxloe_cn_core::attachments::{Attachments, Change, Question};
use cxloe_cn_core::backing::{Backing, Preference, Served};
use cxloe_cn_core::leases::{self, Holder, Leases};
use cxloe_cxl::uevents::MonitorWaker;
use cxloe_cxl::{AnswerError, Regions};
use cxloe_link::outer::{Peer, Peers};
use cxloe_paging::joining::unseen;
use cxloe_paging::process::has_all_rights;
use cxloe_paging::shared_state;
use cxloe_wire::frame::Mac;

/// Why something told could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// It could not be remembered; nothing has changed.
    #[error(transparent)]
    State(#[from] StateError),
    /// No worker.
    #[error(transparent)]
    Worker(#[from] OrdersGone),
}

/// What is attached, as others may look at it.
#[derive(Clone, Debug, Default)]
pub struct Listing(Arc<Mutex<(Vec<AttachedRegion>, NodeView)>>);

impl Listing {
    /// The regions.
    pub fn regions(&self) -> Vec<AttachedRegion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// How this node stands.
    pub fn node(&self) -> NodeView {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn show(&self, attachments: &Attachments) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (regions, node) = &mut *shown;
        *regions = attachments.list();
        (node.held, node.devices) = (attachments.held(), attachments.devices());
    }
}

/// The controller; its copies are one.
#[derive(Clone, Debug)]
pub struct RegionController {
    inner: Arc<Mutex<Inner>>,
    listing: Listing,
}

#[derive(Debug)]
struct Inner {
    attachments: Attachments,
    leases: Leases,
    /// Which start of this machine it is.
    boot: String,
    state: StateFile,
    orders: Orders,
    drained: DrainedTickets,
    /// What the link knows of memory nodes over UDP.
    peers: Peers,
    /// Whom to ask about regions that CXL devices may serve.
    looker: Option<MonitorWaker>,
}

impl RegionController {
    /// The controller of `node`, with what `state` remembers, which the worker attaches. New regions are served by `preference`;
    /// `looker` is asked where that takes looking. `peers` hears where memory nodes are over UDP.
    ///
    /// # Errors
    /// [`ControllerError`]; a state file that cannot be read is not taken for an empty one, since regions would come back at
    /// other addresses.
    pub fn open(
        node: NodeView,
        state: StateFile,
        preference: Preference,
        looker: Option<MonitorWaker>,
        orders: Orders,
        drained: DrainedTickets,
        peers: Peers,
    ) -> Result<RegionController, ControllerError> {
        let mut attachments = state.load()?;
        let leases = state.load_leases()?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        attachments.prefer(preference);
        let changes = attachments.begin();
        let inner = Inner { attachments, leases, boot, state, orders, drained, peers, looker };
        inner.tell_peers();
        let listing = Listing(Arc::new(Mutex::new((Vec::new(), node))));
        inner.give(changes)?;
        listing.show(&inner.attachments);
        Ok(RegionController { inner: Arc::new(Mutex::new(inner)), listing })
    }

    /// This node has joined with a manager that had come so far; none: it has not joined. To be told before the manager is
    /// asked anything.
    ///
    /// # Errors
    /// Any [`ControllerError`].
    pub fn join(&self, joined: Option<Watermark>) -> Result<(), ControllerError> {
        self.change(|attachments| {
            attachments.join(joined);
            Vec::new()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is attached.
    pub fn listing(&self) -> Listing {
        self.listing.clone()
    }

    /// How far the manager had come that told last of the regions there are.
    pub fn seen(&self) -> Watermark {
        self.lock().attachments.seen()
    }

    /// What this node holds.
    pub fn holds(&self) -> Vec<Held> {
        self.lock().attachments.holds()
    }

    /// Takes over what a manager tells that has come as far as `manager`: remembered first, so that an address once shown
    /// stays.
    ///
    /// # Errors
    /// Any [`ControllerError`].
    pub fn follow(
        &self,
        regions: &[Region],
        devices: &[LogicalDevice],
        held: bool,
        manager: Watermark,
    ) -> Result<(), ControllerError> {
        self.change(|attachments| {
            attachments.hear(manager);
            let changes = attachments.follow(regions, held);
            attachments.follow_devices(devices);
            changes
        })
    }

    /// An error was generated at a vPPB of this node.
    pub fn hear_error(&self, error: &VppbError) {
        self.lock().attachments.hear_error(error);
    }

    fn change(&self, change: impl FnOnce(&mut Attachments) -> Vec<Change>) -> Result<(), ControllerError> {
        let mut inner = self.lock();
        let mut next = inner.attachments.clone();
        let changes = change(&mut next);
        if next != inner.attachments {
            inner.state.store(&next)?;
            inner.attachments = next;
        }
        // Before the worker greets them.
        inner.tell_peers();
        inner.give(changes)?;
        self.listing.show(&inner.attachments);
        if let Some(looker) = inner.looker.as_ref().filter(|_| !inner.attachments.questions().is_empty()) {
            looker.wake();
        }
        Ok(())
    }

    /// Takes note of what the worker has let go of.
    pub fn hear_worker(&self) {
        let mut inner = self.lock();
        let mut news = false;
        while let Some(ticket) = inner.drained.next() {
            if let Some(region) = inner.attachments.drained(ticket) {
                tracing::info!(%region, "let go of a region: what was modified is written back");
                news = true;
            }
        }
        if news {
            self.listing.show(&inner.attachments);
        }
    }

    /// Whether the worker is letting go of something.
    pub fn is_draining(&self) -> bool {
        self.lock().attachments.is_draining()
    }

    /// Keeps the name of a region that is about to be created for process `pid` of user `uid`.
    ///
    /// # Errors
    /// Why not.
    pub fn lease(&self, region: Name, pid: u32, uid: u32) -> Result<(), Refused> {
        let mut inner = self.lock();
        let listed = self.listing.regions();
        let known = inner.leases.holder(&region).is_some();
        if known || listed.iter().any(|attached| attached.region == region.as_str()) {
            return Err(Refused::NotTemporary(region.to_string()));
        }
        let started = shared_state::started(pid).ok_or_else(|| Refused::Unseen(unseen(pid)))?;
        let mut next = inner.leases.clone();
        let boot = inner.boot.clone();
        let holder = Holder { pid, started, boot, uid: Some(uid), created_ms: None };
        let limit = if has_all_rights(uid) { leases::LEASES_MAX } else { leases::LEASES_OF_ONE_MAX };
        next.keep(region, holder, limit).map_err(|leases::Full| Refused::Leases { limit })?;
        inner.keep(next).map_err(|error| Refused::System(error.to_string()))
    }

    /// The manager has created a temporary region, at this time.
    ///
    /// # Errors
    /// It could not be kept.
    pub fn lease_created(&self, region: &Name, created_ms: u64) -> Result<(), StateError> {
        let mut inner = self.lock();
        let mut next = inner.leases.clone();
        next.created(region, created_ms);
        inner.keep(next)
    }

    /// When a temporary region was created: milliseconds since the Unix epoch, if the manager has said so.
    pub fn created_ms(&self, region: &Name) -> Option<u64> {
        self.lock().leases.holder(region)?.created_ms
    }

    /// The user for whose program a region was created; `None`: it was not.
    pub fn lessee(&self, region: &Name) -> Option<u32> {
        self.lock().leases.holder(region)?.uid
    }

    /// Temporary regions whose processes have ended without destroying them.
    pub fn abandoned(&self) -> Vec<Name> {
        let inner = self.lock();
        let there = |holder: &Holder| {
            holder.boot == inner.boot && shared_state::started(holder.pid) == Some(holder.started)
        };
        inner.leases.abandoned(there)
    }

    /// There is no such temporary region any more.
    ///
    /// # Errors
    /// It could not be kept; it will be looked for again.
    pub fn lease_over(&self, region: &Name) -> Result<(), StateError> {
        let mut inner = self.lock();
        let mut next = inner.leases.clone();
        next.forget(region);
        inner.keep(next)
    }

    /// Whether processes have a region mapped; none is known to when the worker has ended.
    pub async fn is_mapped(&self, region: &Name) -> bool {
        let (orders, name) = (self.lock().orders.clone(), region.clone());
        let mapped = ask(&orders, move |spaces| spaces.is_mapped(name.as_str()));
        mapped.await.unwrap_or(false)
    }

    /// All that the manager has told up to this event is followed. Nobody waits for what comes of it: where there is no room
    /// for the order, a later event's is as good.
    pub fn followed(&self, event: u64) {
        let _ = self.lock().orders.try_give(Order::Quiet(event));
    }

    /// The event up to which no operation is on its way that was begun before it was heard of.
    pub fn quiet(&self) -> u64 {
        self.lock().orders.quiet().get()
    }

    /// What the manager wants back and nothing is left of here.
    pub fn released(&self) -> Vec<ReleasedRegion> {
        self.lock().attachments.released()
    }
}

impl Regions for RegionController {
    fn questions(&self) -> Vec<Question> {
        self.lock().attachments.questions()
    }

    fn answer(&self, question: &Question, backing: Backing) -> Result<(), AnswerError> {
        self.change(|attachments| attachments.answer(question, backing)).map_err(|error| match error {
            ControllerError::State(error) => AnswerError::NotKept(error.to_string()),
            ControllerError::Worker(_) => AnswerError::Ending,
        })
    }

    fn served(&self) -> Vec<(Name, Served)> {
        let inner = self.lock();
        let served = |(name, _, backing): (&Name, u64, &Backing)| match backing {
            Backing::Device(served) => Some((name.clone(), served.clone())),
            Backing::Ethernet | Backing::Undecided => None,
        };
        inner.attachments.backings().filter_map(served).collect()
    }

    fn on_ethernet(&self) -> Vec<(Name, u64)> {
        let inner = self.lock();
        let own = inner.attachments.backings().filter(|(_, _, backing)| **backing == Backing::Ethernet);
        own.map(|(name, bytes, _)| (name.clone(), bytes)).collect()
    }

    fn explain(&self, region: &Name, note: Option<String>) -> bool {
        let mut inner = self.lock();
        let new = inner.attachments.explain(region, note);
        if new {
            self.listing.show(&inner.attachments);
        }
        new
    }
}

impl Inner {
    fn keep(&mut self, leases: Leases) -> Result<(), StateError> {
        self.state.store_leases(&leases)?;
        self.leases = leases;
        Ok(())
    }

    fn tell_peers(&self) {
        let peer = |(mac, address): (cxloe_fabric::model::Mac, _)| Peer { mac: Mac(mac.octets()), address };
        self.peers.tell(self.attachments.udp_peers().into_iter().map(peer));
    }

    fn give(&self, changes: Vec<Change>) -> Result<(), OrdersGone> {
        changes.into_iter().try_for_each(|change| self.orders.give(Order::Follow(Box::new(change))))
    }
}
