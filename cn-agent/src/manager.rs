//! What this node does when it is in touch with the manager: it registers, waits for changes to its regions, and has
//! the worker attach them, let go of them and detach them. What the manager wants back is acknowledged as soon as the
//! worker has let go of it; until then this node asks in short intervals instead of waiting for news. Trying again
//! when the manager is away is [`cxloe_daemon::ManagerLink`]'s; what is attached goes on being served meanwhile, from the
//! start, for as long as it likes. A manager whose store lacks what told of these regions counts as away.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use cxloe_daemon::{Backoff, Break, Connection, Contact, NodeIdentity};
use cxloe_fabric::api::{ComputeNodeSync, DestroyRegion, ErrorCode, NotFollowed, Party, RegisterComputeNode};
use cxloe_fabric::client::ClientError;
use cxloe_fabric::model::{CnId, Name, PublicKey, lineage};

use crate::region_controller::RegionController;

/// How long to wait for news while the worker is letting go of something that the manager waits for, in milliseconds.
const ACKNOWLEDGE_MS_MIN: u64 = 5;
const ACKNOWLEDGE_MS_MAX: u64 = 200;

/// Where the manager is and what it is to know of this node.
#[derive(Clone, Debug)]
pub struct ManagerLinkOptions {
    /// `https://HOST:PORT` or `unix:/path/to/socket`.
    pub url: String,
    /// What this node shows the manager, if it has joined.
    pub identity: Option<Arc<NodeIdentity>>,
    /// This node's name.
    pub name: Name,
    /// Its identity: the address of its link.
    pub cn: CnId,
    /// Where its frames come from over the `udp` link, if it uses it.
    pub udp: Option<SocketAddr>,
    /// This node's public key, if it has one.
    pub key: Option<PublicKey>,
    /// This process's instance id, the same as in its sessions.
    pub instance: u64,
    /// The pauses between two tries.
    pub backoff: Backoff,
}

impl ManagerLinkOptions {
    /// The usual pauses.
    pub fn new(url: impl Into<String>, name: Name, cn: CnId, instance: u64) -> Self {
        let backoff = Backoff::default();
        ManagerLinkOptions {
            url: url.into(),
            identity: None,
            name,
            cn,
            udp: None,
            key: None,
            instance,
            backoff,
        }
    }
}

/// A running link to the manager; ends when dropped.
#[derive(Debug)]
pub struct ManagerLink {
    link: cxloe_daemon::ManagerLink<Shell>,
}

impl ManagerLink {
    /// Starts the link, which comes to `controller` with the manager's news. Returns at once; the manager need not be there.
    ///
    /// # Errors
    /// [`cxloe_daemon::ManagerLinkError`]: the URL cannot be one, or there is no thread.
    pub fn start(
        options: ManagerLinkOptions,
        controller: RegionController,
    ) -> Result<Self, cxloe_daemon::ManagerLinkError> {
        let (url, backoff) = (options.url.clone(), options.backoff.clone());
        let link = cxloe_daemon::ManagerLink::start(
            &url,
            options.identity.clone(),
            backoff,
            Shell { controller, options, told: BTreeSet::new() },
            Shell::registration,
        )?;
        Ok(ManagerLink { link })
    }

    /// How things stand.
    pub fn connection(&self) -> Connection {
        self.link.connection()
    }
}

struct Shell {
    controller: RegionController,
    options: ManagerLinkOptions,
    /// Regions of which it was said that they cannot be destroyed.
    told: BTreeSet<Name>,
}

impl Shell {
    /// From a registration until something breaks it.
    async fn registration(&mut self, contact: &mut Contact) -> Result<Infallible, Break> {
        let ManagerLinkOptions { name, cn, udp, key, instance, .. } = self.options.clone();
        let client = contact.client();
        let seen = self.controller.seen();
        let request =
            RegisterComputeNode { cn_id: cn, name, udp, key, new_key: false, instance_id: instance, seen };
        let answered = contact.ask(client.register_compute_node(&request)).await;
        if answered.as_ref().is_err_and(is_stale) {
            self.say_not_followed(contact).await?;
        }
        let answer = answered?;
        if let Err(lacking) = lineage::check(&answer.lineage, answer.watermark, seen) {
            self.say_not_followed(contact).await?;
            return Err(Break::node(lacking));
        }
        let (regions, devices) = (&answer.regions, &answer.devices);
        self.controller.follow(regions, devices, answer.held, answer.watermark).map_err(Break::node)?;
        if contact.registered() {
            let (url, regions) = (client.url(), answer.regions.len());
            tracing::info!(%url, name = %request.name, %cn, regions, "registered with the manager");
        }
        let (mut heartbeat_ms, mut after_event) = (answer.heartbeat_ms, answer.after_event);
        self.controller.followed(after_event);
        let mut pause_ms = ACKNOWLEDGE_MS_MIN;
        loop {
            self.destroy_abandoned(contact).await?;
            self.controller.hear_worker();
            let draining = self.controller.is_draining();
            pause_ms = if draining { (pause_ms * 2).min(ACKNOWLEDGE_MS_MAX) } else { ACKNOWLEDGE_MS_MIN };
            let wait_ms = if draining { pause_ms } else { heartbeat_ms };
            let sync = ComputeNodeSync {
                registration: answer.registration,
                after_event,
                released: self.controller.released(),
                quiet: self.controller.quiet(),
                wait_ms: wait_ms.clamp(1, heartbeat_ms.max(1)),
            };
            let synced = contact.ask(client.sync_compute_node(cn, &sync)).await?;
            if synced.watermark.run != answer.watermark.run {
                return Err(Break::Anew);
            }
            if let Some(regions) = &synced.regions {
                let (devices, held) = (&synced.devices, synced.held);
                self.controller.follow(regions, devices, held, synced.watermark).map_err(Break::node)?;
            }
            for error in &synced.errors {
                self.controller.hear_error(error);
            }
            heartbeat_ms = synced.heartbeat_ms;
            if after_event != synced.after_event {
                after_event = synced.after_event;
                self.controller.followed(after_event);
            }
        }
    }

    /// Has the regions of programs destroyed that have not done so themselves, once nobody has them mapped any more.
    async fn destroy_abandoned(&mut self, contact: &Contact) -> Result<(), Break> {
        for name in self.controller.abandoned() {
            // A worker that ends meanwhile need not answer.
            if contact.stop().or(self.controller.is_mapped(&name)).await? {
                continue;
            }
            match self.destroy_own(contact, &name).await {
                Ok(()) => {}
                // Tried again with the next news.
                Err(Break::Client(error)) if error.code().is_some() && !error.is_passing() => {
                    if self.told.insert(name.clone()) {
                        tracing::warn!(region = %name, %error, "a program's region cannot be destroyed after it");
                    }
                    continue;
                }
                Err(reason) => return Err(reason),
            }
            self.told.remove(&name);
            self.controller.lease_over(&name)?;
        }
        Ok(())
    }

    /// Has a region destroyed if there is one, and it is this node's.
    async fn destroy_own(&self, contact: &Contact, name: &Name) -> Result<(), Break> {
        let client = contact.client();
        let none = |error: &ClientError| error.code() == Some(ErrorCode::NotFound);
        let created_ms = match contact.ask(client.region(name)).await {
            Ok(region) if region.owner != self.options.cn => return Ok(()),
            Ok(region) => region.created_ms,
            Err(Break::Client(error)) if none(&error) => return Ok(()),
            Err(reason) => return Err(reason),
        };
        // Of the one that was looked at, or none: meanwhile there may be another one of its name.
        let created_ms = self.controller.created_ms(name).unwrap_or(created_ms);
        let now = DestroyRegion { force: true, wait_ms: 0, created_ms: Some(created_ms) };
        match contact.ask(client.destroy_region(name, now)).await {
            Ok(_) => {
                tracing::info!(region = %name, "destroyed the region of a program that has not done so itself")
            }
            Err(Break::Client(error)) if none(&error) => {}
            Err(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Lets the manager show that this node does not follow, and what it holds. A manager that does not understand need not.
    async fn say_not_followed(&self, contact: &Contact) -> Result<(), Break> {
        let node = Party::ComputeNode(self.options.cn);
        let said = NotFollowed { node, seen: self.controller.seen(), holds: self.controller.holds() };
        let client = contact.client();
        if let Err(error) = contact.stop().or(client.not_followed(&said)).await? {
            tracing::debug!(%error, "the manager was not told that this node does not follow");
        }
        Ok(())
    }
}

fn is_stale(reason: &Break) -> bool {
    matches!(reason, Break::Client(error) if error.code() == Some(ErrorCode::StaleManager))
}
