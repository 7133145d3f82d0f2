//! State of this node's regions, in one place: stored in the state file, sent to the workers as orders, and listed for
//! requests. The link to the manager passes the manager's answers here, the monitor of CXL devices its findings; each
//! change is stored before it is carried out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_cn_core::follow::{Follow, ManagerAnswer, ManagerRequest, RestartReason};
use cxloe_daemon::StateError;
use cxloe_fabric::model::{Name, Region, Watermark};

use crate::state_file::StateFile;
use crate::worker::order::ask;
use crate::worker::{DrainedTickets, OrdersGone, Workers};
use cxloe_client::message::{AttachedRegion, NodeView, RefusalReason};
use cxloe_cn_core::attachments::{AttachmentChange, Attachments, BackingQuery};
use cxloe_cn_core::backing::{Backing, DevicePlacement, Preference};
use cxloe_cn_core::leases::{self, Holder, Leases};
use cxloe_cn_core::user_shares::{self, SharedResource};
use cxloe_cxl::uevents::MonitorWaker;
use cxloe_cxl::{AnswerError, Regions};
use cxloe_link::outer::{Peer, Peers};
use cxloe_paging::Spaces;
use cxloe_paging::joining::unseen;
use cxloe_paging::process::has_all_rights;
use cxloe_paging::shared_state;
use cxloe_wire::frame::Mac;

/// Reason why a change of regions was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The change could not be stored, so nothing has changed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A worker has ended and takes no orders.
    #[error(transparent)]
    Worker(#[from] OrdersGone),
    /// The manager's answer is refused, and this node has to register again.
    #[error(transparent)]
    Halt(#[from] RestartReason),
}

/// Copy of the attached regions that other threads read; clones share it.
#[derive(Clone, Debug, Default)]
pub struct RegionListing(Arc<Mutex<(Vec<AttachedRegion>, NodeView)>>);

impl RegionListing {
    pub fn regions(&self) -> Vec<AttachedRegion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// This node's names and logical devices, and whether the manager has suspended the node.
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

/// Controller of this node's regions; clones share one state.
#[derive(Clone, Debug)]
pub struct RegionController {
    inner: Arc<Mutex<ControllerState>>,
    listing: RegionListing,
}

#[derive(Debug)]
struct ControllerState {
    attachments: Attachments,
    leases: Leases,
    /// Boot id of the kernel. It distinguishes the process that holds a lease from a process of an earlier boot with
    /// the same process id.
    boot: String,
    state: StateFile,
    workers: Workers,
    /// Changes that are stored and that the workers have not taken yet, in their order.
    unsent: VecDeque<AttachmentChange>,
    drained: DrainedTickets,
    /// The link's table of memory nodes' UDP addresses.
    peers: Peers,
    /// Wakes the monitor of CXL devices when a new region may be served by a device.
    looker: Option<MonitorWaker>,
}

impl RegionController {
    /// Opens the controller of `node` with the stored regions, and has the workers attach them. New regions are served
    /// as `preference` says; `looker` is woken if a CXL device may serve one. `peers` receives the UDP addresses of
    /// memory nodes.
    ///
    /// # Errors
    /// Any [`ControllerError`]; an unreadable state file is an error, not an empty state, since regions would otherwise
    /// return at other addresses.
    pub fn open(
        node: NodeView,
        state: StateFile,
        preference: Preference,
        looker: Option<MonitorWaker>,
        workers: Workers,
        drained: DrainedTickets,
        peers: Peers,
    ) -> Result<RegionController, ControllerError> {
        let mut attachments = state.load()?;
        let leases = state.load_leases()?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        attachments.prefer(preference);
        attachments.set_workers(workers.count());
        let unsent = attachments.begin().into();
        let mut inner =
            ControllerState { attachments, leases, boot, state, workers, unsent, drained, peers, looker };
        inner.publish_peers();
        let listing = RegionListing(Arc::new(Mutex::new((Vec::new(), node))));
        inner.send_changes()?;
        listing.show(&inner.attachments);
        Ok(RegionController { inner: Arc::new(Mutex::new(inner)), listing })
    }

    /// Sets the manager's watermark (the progress of its store) at the time when this node joined; `None` if the node
    /// has not joined. To be called before the first request to the manager.
    pub fn join(&self, joined: Option<Watermark>) -> Result<(), ControllerError> {
        self.change(|attachments| {
            attachments.join(joined);
            Ok(Vec::new())
        })
    }

    fn lock(&self) -> MutexGuard<'_, ControllerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn listing(&self) -> RegionListing {
        self.listing.clone()
    }

    /// Returns the next request to the manager, as the state of `follow` requires.
    pub fn next_request(&self, follow: &mut Follow) -> ManagerRequest {
        let inner = self.lock();
        follow.next(&inner.attachments, inner.workers.quiet())
    }

    /// Applies an answer of the manager. The change is stored before it takes effect, so that a region keeps its
    /// address.
    pub fn on_answer(&self, follow: &mut Follow, answer: ManagerAnswer) -> Result<(), ControllerError> {
        self.change(|attachments| Ok(follow.on_answer(answer, attachments)?))
    }

    /// Name of the region that contains `hpa`.
    pub fn region_at(&self, hpa: u64) -> Option<Name> {
        self.lock().attachments.region_at(hpa).map(|region| region.name.clone())
    }

    /// Applies the manager's description of a mirrored region, which answers a report about the region's legs (its
    /// copies on memory nodes). Stores the description before a write that has reached only one leg counts as complete.
    pub fn follow_region(&self, region: &Region) -> Result<(), ControllerError> {
        self.change(|attachments| Ok(attachments.follow_region(region)))
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Attachments) -> Result<Vec<AttachmentChange>, ControllerError>,
    ) -> Result<(), ControllerError> {
        let mut inner = self.lock();
        let mut next = inner.attachments.clone();
        let changes = change(&mut next)?;
        if next != inner.attachments {
            inner.state.store(&next)?;
            inner.attachments = next;
        }
        // The addresses must be known before the worker opens sessions with the memory nodes.
        inner.publish_peers();
        inner.unsent.extend(changes);
        let sent = inner.send_changes();
        self.listing.show(&inner.attachments);
        if let Some(looker) = inner.looker.as_ref().filter(|_| !inner.attachments.questions().is_empty()) {
            looker.wake();
        }
        sent?;
        Ok(())
    }

    /// Records the regions for which the workers have reported the end of the drain: all modified lines are written
    /// back. Changes that a worker has not taken are sent again, also while the manager is absent.
    pub fn take_detached_regions(&self) {
        let mut inner = self.lock();
        if let Err(error) = inner.send_changes() {
            tracing::warn!(%error, changes = inner.unsent.len(), "changes of regions wait for a worker");
        }
        let mut news = false;
        while let Some(ticket) = inner.drained.next() {
            if let Some(region) = inner.attachments.drained(ticket) {
                tracing::info!(%region, "releasing a region: modified lines are written back");
                news = true;
            }
        }
        if news {
            self.listing.show(&inner.attachments);
        }
    }

    /// Records a lease of a region of `bytes` bytes that is about to be created for process `pid` of user `uid`. All
    /// leased regions of that user together may have `share` bytes.
    ///
    /// # Errors
    /// The reason why the region cannot be leased to this process.
    pub fn lease(
        &self,
        region: Name,
        pid: u32,
        uid: u32,
        bytes: u64,
        share: u64,
    ) -> Result<(), RefusalReason> {
        let mut inner = self.lock();
        let listed = self.listing.regions();
        let known = inner.leases.holder(&region).is_some();
        if known || listed.iter().any(|attached| attached.region == region.as_str()) {
            return Err(RefusalReason::NotTemporary(region.to_string()));
        }
        let limited = Some(uid).filter(|uid| !has_all_rights(*uid));
        let had = inner.leases.bytes_of(uid, None);
        user_shares::check(SharedResource::Memory, limited, share, had, bytes)?;
        let started = shared_state::started(pid).ok_or_else(|| RefusalReason::Unseen(unseen(pid)))?;
        let mut next = inner.leases.clone();
        let boot = inner.boot.clone();
        let holder = Holder { pid, started, boot, uid: Some(uid), created_ms: None, bytes };
        let limit = if has_all_rights(uid) { leases::LEASES_MAX } else { leases::LEASES_OF_ONE_MAX };
        next.keep(region, holder, limit)
            .map_err(|leases::LeaseLimitReached| RefusalReason::Leases { limit })?;
        inner.keep(next).map_err(|error| RefusalReason::System(error.to_string()))
    }

    /// Records the size that a leased region is about to grow to, if its user's share of `share` bytes permits it.
    /// Returns the size before.
    ///
    /// # Errors
    /// [`RefusalReason::Share`]; or the size could not be stored.
    pub fn lease_grows(&self, region: &Name, bytes: u64, share: u64) -> Result<u64, RefusalReason> {
        let mut inner = self.lock();
        let holder = inner.leases.holder(region);
        let before = holder.map_or(0, |holder| holder.bytes);
        let limited = holder.and_then(|holder| holder.uid).filter(|uid| !has_all_rights(*uid));
        let had = limited.map_or(0, |uid| inner.leases.bytes_of(uid, Some(region)));
        user_shares::check(SharedResource::Memory, limited, share, had, bytes)?;
        inner.set_lease_size(region, before.max(bytes))?;
        Ok(before)
    }

    /// Sets the size of a leased region, also to a smaller one if the manager has refused to grow the region.
    ///
    /// # Errors
    /// The size could not be stored.
    pub fn set_lease_size(&self, region: &Name, bytes: u64) -> Result<(), RefusalReason> {
        self.lock().set_lease_size(region, bytes)
    }

    /// Records the time of creation of a leased region, by which the region differs from a later one of the same
    /// name.
    ///
    /// # Errors
    /// The time could not be stored.
    pub fn lease_created(&self, region: &Name, created_ms: u64) -> Result<(), StateError> {
        let mut inner = self.lock();
        let mut next = inner.leases.clone();
        next.created(region, created_ms);
        inner.keep(next)
    }

    /// Time of creation of a leased region in milliseconds since the Unix epoch, if the manager has returned it.
    pub fn created_ms(&self, region: &Name) -> Option<u64> {
        self.lock().leases.holder(region)?.created_ms
    }

    /// User for whose program a region was created; `None` if it is not leased.
    pub fn lessee(&self, region: &Name) -> Option<u32> {
        self.lock().leases.holder(region)?.uid
    }

    /// Leased regions that still exist although their processes have ended.
    pub fn abandoned(&self) -> Vec<Name> {
        let inner = self.lock();
        let there = |holder: &Holder| {
            holder.boot == inner.boot && shared_state::started(holder.pid) == Some(holder.started)
        };
        inner.leases.abandoned(there)
    }

    /// Removes the lease of a region that no longer exists.
    ///
    /// # Errors
    /// The removal could not be stored; the lease is checked again later.
    pub fn lease_over(&self, region: &Name) -> Result<(), StateError> {
        let mut inner = self.lock();
        let mut next = inner.leases.clone();
        next.forget(region);
        inner.keep(next)
    }

    /// Whether processes map the region, or may do so: `true` if the worker has ended and cannot say, so that nobody
    /// destroys the region meanwhile.
    pub async fn is_mapped(&self, region: &Name) -> bool {
        let (workers, hinted) = {
            let inner = self.lock();
            (inner.workers.clone(), inner.attachments.worker_of_region(region.as_str()))
        };
        let name = region.clone();
        let mapped = move |spaces: &mut Spaces| spaces.is_mapped(name.as_str());
        ask(workers.of_region(region.as_str(), hinted).await, mapped).await.unwrap_or(true)
    }

    /// Number of the worker that serves the region `name`; `None` if the region is neither attached to this node nor
    /// expected to move here.
    pub fn worker_of_region(&self, name: &str) -> Option<usize> {
        self.lock().attachments.worker_of_region(name)
    }

    /// Decides which worker will serve a region that is expected to move to this node, and returns that
    /// worker's number.
    pub fn expect(&self, name: Name) -> usize {
        self.lock().attachments.expect(name)
    }

    /// Orders a report from the workers when all operations have ended that began before the changes up to the
    /// manager's `event`. The changes themselves were ordered before.
    pub fn followed(&self, event: u64) {
        self.lock().workers.await_quiet(event);
    }
}

impl Regions for RegionController {
    fn questions(&self) -> Vec<BackingQuery> {
        self.lock().attachments.questions()
    }

    fn answer(&self, question: &BackingQuery, backing: Backing) -> Result<(), AnswerError> {
        self.change(|attachments| Ok(attachments.answer(question, backing))).map_err(|error| match error {
            ControllerError::State(error) => AnswerError::NotKept(error.to_string()),
            ControllerError::Worker(_) | ControllerError::Halt(_) => AnswerError::Ending,
        })
    }

    fn served(&self) -> Vec<(Name, DevicePlacement)> {
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

impl ControllerState {
    fn keep(&mut self, leases: Leases) -> Result<(), StateError> {
        self.state.store_leases(&leases)?;
        self.leases = leases;
        Ok(())
    }

    /// Sends the changes that are stored to the workers. What a worker does not take stays, because the stored state has
    /// it, so that no later change would repeat it.
    fn send_changes(&mut self) -> Result<(), OrdersGone> {
        self.workers.follow(&mut self.unsent)
    }

    fn set_lease_size(&mut self, region: &Name, bytes: u64) -> Result<(), RefusalReason> {
        let mut next = self.leases.clone();
        next.set_size(region, bytes);
        self.keep(next).map_err(|error| RefusalReason::System(error.to_string()))
    }

    fn publish_peers(&self) {
        let peer = |(mac, address): (cxloe_fabric::model::Mac, _)| Peer { mac: Mac(mac.octets()), address };
        self.peers.set_from_manager(self.attachments.udp_peers().into_iter().map(peer));
    }
}
