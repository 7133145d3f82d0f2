//! Transport for [`Follow`]: sends its requests to the manager by HTTP, and passes the changes of regions in the
//! answers to the worker. [`cxloe_daemon::ManagerLink`] retries while the manager is absent; attached regions are
//! served during that time. A manager whose store lacks changes that this node has seen (it is older than the node's
//! watermark) is treated as absent.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::follow::{Follow, ManagerAnswer, ManagerRequest};
use cxloe_daemon::{Backoff, Connection, Contact, NodeIdentity, RegistrationEnd};
use cxloe_fabric::Client;
use cxloe_fabric::api::{
    ComputeNodeSync, DestroyRegion, ErrorCode, LegsFilled, LegsStale, RegisterComputeNode,
};
use cxloe_fabric::client::ClientError;
use cxloe_fabric::model::{CnId, Mac, Name, PublicKey, Watermark};

use cxloe_link::LinkHealth;

use crate::worker::{LegReport, LegReports};
use tokio::time::timeout;

use crate::region_controller::{ControllerError, RegionController};

/// Address of the manager, and this node's registration.
#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// `https://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// This node's certificate for the manager, if it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    /// Name of this node in the fabric.
    pub name: Name,
    /// CN id of this node: the address of its link.
    pub cn: CnId,
    /// State of the node's link, from which the node's UDP address is read if frames are carried in UDP.
    pub link: LinkHealth,
    /// Public key of this node, if it has one.
    pub key: Option<PublicKey>,
    /// Instance id of this process, the same as in its sessions.
    pub instance: u64,
    /// Pauses between attempts to reach the manager.
    pub backoff: Backoff,
}

impl ManagerLinkOptions {
    /// Returns options without identity and key, and with the default pauses.
    pub fn new(url: impl Into<String>, name: Name, cn: CnId, instance: u64) -> Self {
        let backoff = Backoff::default();
        ManagerLinkOptions {
            url: url.into(),
            identity: None,
            name,
            cn,
            link: LinkHealth::default(),
            key: None,
            instance,
            backoff,
        }
    }
}

/// A running link to the manager, which ends when dropped.
#[derive(Debug)]
pub struct ManagerLink {
    link: cxloe_daemon::ManagerLink<Shell>,
}

impl ManagerLink {
    /// Starts the link, which passes the manager's answers to `controller`. Returns at once, even without a manager.
    ///
    /// # Errors
    /// [`cxloe_daemon::ManagerLinkError`]: the URL is invalid, or the thread cannot be started.
    pub fn start(
        options: ManagerLinkOptions,
        controller: RegionController,
        reports: Option<LegReports>,
    ) -> Result<Self, cxloe_daemon::ManagerLinkError> {
        let ManagerLinkOptions { url, identity, name, cn, link: health, key, instance, backoff } = options;
        let node = RegisterComputeNode {
            cn_id: cn,
            name,
            udp: health.outer_address(),
            key,
            new_key: false,
            instance_id: instance,
            seen: Watermark::default(),
        };
        let warned_legs = BTreeSet::new();
        let shell = Shell {
            controller,
            health,
            follow: Follow::new(node),
            warned: BTreeSet::new(),
            reports,
            warned_legs,
        };
        let link = cxloe_daemon::ManagerLink::start(&url, identity, backoff, shell, Shell::registration)?;
        Ok(ManagerLink { link })
    }

    pub fn connection(&self) -> Connection {
        self.link.connection()
    }
}

struct Shell {
    controller: RegionController,
    /// State of the node's link. If frames are carried in UDP, the link's address may change.
    health: LinkHealth,
    follow: Follow,
    /// Regions for which a failure to destroy them has been logged, so that it is not logged again.
    warned: BTreeSet<Name>,
    /// Workers' reports about legs (copies of a mirrored region on one memory node each).
    reports: Option<LegReports>,
    /// Regions for which the log has a warning that the manager refused a report about a leg.
    warned_legs: BTreeSet<Name>,
}

/// Longest wait for the manager's answer to a report about a leg (a region's part on one memory node).
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

impl Shell {
    /// Registers this node, and applies the manager's changes of regions until an error ends the registration.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, RegistrationEnd> {
        self.follow.restart();
        let mut told_event = None;
        loop {
            let udp = self.health.outer_address();
            if udp != self.follow.node().udp {
                // The manager passes the node's address on to memory nodes, so a changed address needs a new
                // registration.
                self.follow.node_mut().udp = udp;
                self.follow.restart();
            }
            self.controller.take_detached_regions();
            let request = self.controller.next_request(&mut self.follow);
            let registers = matches!(request, ManagerRequest::Register(_));
            let answer = self.ask(request, contact).await?;
            match self.controller.on_answer(&mut self.follow, answer) {
                Ok(()) => {}
                Err(ControllerError::Halt(halt)) => return Err(contact.halted(halt)),
                Err(reason) => return Err(RegistrationEnd::node(reason)),
            }
            if self.follow.is_refusing() {
                continue;
            }
            if registers && contact.registered() {
                let RegisterComputeNode { name, cn_id, .. } = self.follow.node();
                let regions = self.controller.listing().regions().len();
                tracing::info!(url = %contact.client().url(), %name, cn = %cn_id, regions, "registered with the manager");
            }
            let event = self.follow.after_event();
            if told_event.replace(event) != Some(event) {
                self.controller.followed(event);
            }
            self.destroy_abandoned(contact).await?;
        }
    }

    /// Sends a request to the manager, and returns the answer. Reports of workers are sent while a long poll
    /// waits.
    async fn ask(
        &mut self,
        request: ManagerRequest,
        contact: &mut Contact,
    ) -> Result<ManagerAnswer, RegistrationEnd> {
        let client = contact.client();
        match request {
            ManagerRequest::Register(node) => {
                let registered = contact.register(client.register_compute_node(&node)).await?;
                Ok(registered
                    .map_or(ManagerAnswer::Stale, |answer| ManagerAnswer::Registered(Box::new(answer))))
            }
            ManagerRequest::NotFollowed(body) => {
                contact.not_followed(&body).await.map(|()| ManagerAnswer::Done)
            }
            ManagerRequest::Sync(sync) => {
                let synced = contact.ask(client.sync_compute_node(self.follow.node().cn_id, &sync));
                let mut synced = pin!(synced);
                loop {
                    // A write to a mirrored region may wait for the answer to a report, so the long poll must
                    // not delay reports.
                    let report = async {
                        match &mut self.reports {
                            Some(legs) => legs.reports.recv().await,
                            None => None,
                        }
                    };
                    tokio::select! {
                        synced = &mut synced => {
                            if let Err(RegistrationEnd::Stopped(_)) = synced {
                                self.settle(&client, ComputeNodeSync { settled: true, wait_ms: 1, ..sync.clone() }).await;
                            }
                            return Ok(ManagerAnswer::Synced(Box::new(synced?)));
                        }
                        Some(report) = report => self.report_leg(report, &client).await,
                    }
                }
            }
        }
    }

    /// Reports to the manager, just before this node ends, that all of its writes are complete on all copies of their
    /// regions. Sends nothing if they are not complete.
    async fn settle(&self, client: &Client, last: ComputeNodeSync) {
        let settled = self.reports.as_ref().is_some_and(LegReports::are_settled);
        if settled
            && let Err(error) =
                timeout(REPORT_TIMEOUT, client.sync_compute_node(self.follow.node().cn_id, &last)).await
        {
            tracing::debug!(%error, "the manager has not taken this node's last report");
        }
    }

    /// Reports a leg (a copy on one memory node) of a mirrored region to the manager, and applies the answer.
    async fn report_leg(&mut self, report: LegReport, client: &Client) {
        let LegReport { hpa, mac, epoch, filled } = report;
        let Some(name) = self.controller.region_at(hpa) else { return };
        let (registration, mac) = (self.follow.registration(), Mac(mac.0));
        let asked = async {
            match filled {
                None => client.legs_stale(&name, &LegsStale { registration, mac, epoch }).await,
                Some(cmem_base) => {
                    client.legs_filled(&name, &LegsFilled { registration, mac, cmem_base, epoch }).await
                }
            }
        };
        let answer = match timeout(REPORT_TIMEOUT, asked).await {
            // The legs of the region have changed since the report was made, so the region's present description is
            // requested and applied.
            Ok(Err(error)) if error.code() == Some(ErrorCode::StaleEpoch) => client.region(&name).await,
            Ok(answer) => answer,
            Err(_) => return,
        };
        let refusal = match answer {
            Ok(region) => {
                self.warned_legs.remove(&name);
                self.controller.follow_region(&region).err().map(|error| error.to_string())
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = refusal
            && self.warned_legs.insert(name.clone())
        {
            tracing::warn!(
                region = %name, memory_node = %mac, why,
                "the manager has not decided about a leg of a mirrored region: writes wait for it"
            );
        }
    }

    /// Destroys leased (temporary) regions whose programs have ended, as soon as no process maps these regions.
    async fn destroy_abandoned(&mut self, contact: &Contact) -> Result<(), RegistrationEnd> {
        for name in self.controller.abandoned() {
            // The wait also ends when the link is stopped: a worker that has ended does not answer.
            if contact.stop().or(self.controller.is_mapped(&name)).await? {
                continue;
            }
            match self.destroy_own(contact, &name).await {
                Ok(()) => {}
                // The refusal is final: it is logged once. The region is tried again after the next change of regions.
                Err(RegistrationEnd::Client(error)) if error.code().is_some() && !error.is_passing() => {
                    if self.warned.insert(name.clone()) {
                        tracing::warn!(region = %name, %error, "a program's region cannot be destroyed after it");
                    }
                    continue;
                }
                Err(reason) => return Err(reason),
            }
            self.warned.remove(&name);
            self.controller.lease_over(&name)?;
        }
        Ok(())
    }

    /// Destroys the region `name` if it belongs to this node.
    async fn destroy_own(&self, contact: &Contact, name: &Name) -> Result<(), RegistrationEnd> {
        let client = contact.client();
        let none = |error: &ClientError| error.code() == Some(ErrorCode::NotFound);
        let created_ms = match contact.ask(client.region(name)).await {
            Ok(region) if region.owner != self.follow.node().cn_id => return Ok(()),
            Ok(region) => region.created_ms,
            Err(RegistrationEnd::Client(error)) if none(&error) => return Ok(()),
            Err(reason) => return Err(reason),
        };
        // Another region may have taken the name meanwhile. The request therefore contains the time of creation of the
        // leased region or, if that is unknown, of the region read above.
        let created_ms = self.controller.created_ms(name).unwrap_or(created_ms);
        let now = DestroyRegion { force: true, wait_ms: 0, created_ms: Some(created_ms) };
        match contact.ask(client.destroy_region(name, now)).await {
            Ok(_) => {
                tracing::info!(region = %name, "destroyed the region of a program that has not done so itself")
            }
            Err(RegistrationEnd::Client(error)) if none(&error) => {}
            Err(reason) => return Err(reason),
        }
        Ok(())
    }
}
