//! One term of leadership of this process: the manager with its loaded store, its routes, and the services
//! that only a leader runs. A process with its own store leads from start to end. With etcd, it campaigns,
//! leads while it can renew its lease, steps down, and campaigns again.
//!
//! ```text
//!   campaign --won--> load, take over --> lead ... lease lost, store failed, or stop set --> end --> campaign
//! ```

use std::time::Duration;

use axum::Router;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::candidacy::{Candidacy, LOOK_PAUSE, Setback};
use super::clock::Clock;
use super::config::Config;
use super::core::{Core, CoreThread};
use super::fm::{GuardedFm, ManagerFm};
use super::identify::Authenticator;
use super::leader_election::LeaderElection;
use super::{ServerError, routes};
use crate::store::etcd::{Attempt, Campaign, Leadership};
use crate::store::{EtcdPlace, Store, StoreError, boot_ms};
use cxloe_fm::authenticator::Open;
use cxloe_fm::listener::{FmConfig, FmListener};
use cxloe_gmm_core::manager::{Manager, Options};

/// Interval of checks whether the core's thread has ended by itself.
const CORE_PAUSE: Duration = Duration::from_millis(100);

/// A leading manager. Dropping it without [`LeaderTerm::end`] aborts everything.
pub struct LeaderTerm {
    core: Core,
    thread: CoreThread,
    /// Services that only a leader runs; they are aborted when the term ends.
    services: JoinSet<()>,
}

impl LeaderTerm {
    /// Loads the store and takes over its state. Blocks the thread.
    ///
    /// # Errors
    /// [`ServerError::Store`] and [`ServerError::Thread`].
    pub fn begin(mut store: Box<dyn Store>, config: &Config) -> Result<Self, ServerError> {
        let state = store.load()?;
        // The store's last event may be later than this machine's wall clock, if another machine's clock
        // stamped it: times in the log must not go back.
        let clock = Clock::start().not_before(state.events.back().map_or(0, |event| event.time_ms));
        let options = Options {
            node_timeout_ms: u64::try_from(config.node_timeout.as_millis()).unwrap_or(u64::MAX),
            rebuild_after_ms: u64::try_from(config.rebuild_after.as_millis()).unwrap_or(u64::MAX),
            initialisation: config.initialisation,
            declared: config.declared.clone(),
            new_fabric: rand::random_range(1..=u64::MAX),
            run: rand::random_range(1..=u64::MAX),
            anew: config.new_fabric,
            record_bytes_max: store.record_bytes_max(),
        };
        let place = config.store.to_string();
        let (manager, outcome) = Manager::take_over(state, options, clock.now_ms())
            .map_err(|source| StoreError::Contradiction { place, source })?;
        store.commit(&outcome.changes)?;
        tracing::info!(
            store = %config.store, term = manager.watermark().term, regions = manager.state().regions.len(),
            "took over the store"
        );
        let (core, thread) = Core::start(manager, store, clock).map_err(ServerError::Thread)?;
        Ok(Self { core, thread, services: JoinSet::new() })
    }

    /// Starts the services that only a leader runs besides the REST interface. Each is a task of `services`;
    /// the end of the term aborts it and closes everything that it has opened.
    ///
    /// # Errors
    /// [`ServerError`] if a service cannot be started.
    pub async fn serve(&mut self, config: &Config, authenticator: &Authenticator) -> Result<(), ServerError> {
        if let Some(fm) = &config.fm {
            let fabric = self.core.view(|manager| manager.state().meta.fabric).await.unwrap_or_default();
            let fm = FmConfig { fabric, ..fm.clone() };
            let answers = ManagerFm::new(self.core.clone());
            let listener = match authenticator.tls().filter(|_| !config.fm_insecure) {
                Some(tls) => FmListener::start(fm, GuardedFm::new(tls.clone(), answers)).await?,
                None => {
                    tracing::warn!(
                        "the FM API is served without rights: whoever reaches it may do everything"
                    );
                    FmListener::start(fm, Open(answers)).await?
                }
            };
            for (switch, address) in listener.addresses().iter().enumerate() {
                tracing::info!(switch, %address, "FM API of switch {switch} on {address}");
            }
            self.services.spawn(listener.serve());
        }
        Ok(())
    }

    /// The core, for metrics and health checks.
    pub fn core(&self) -> Core {
        self.core.clone()
    }

    /// The routes of the REST interface; `url` is the address at which clients reach this process.
    pub fn router(&self, url: &str, authenticator: Authenticator) -> Router {
        routes::router(self.core.clone(), url, authenticator)
    }

    /// Returns when the core has ended by itself because the store failed.
    pub async fn failed(&self) {
        while !self.thread.is_finished() {
            tokio::time::sleep(CORE_PAUSE).await;
        }
    }

    /// Ends the services and the core's thread, and closes the store.
    ///
    /// # Errors
    /// [`StoreError`] if the store had already failed.
    pub async fn end(mut self) -> Result<(), StoreError> {
        self.services.shutdown().await;
        drop(self.core);
        let thread = self.thread;
        match tokio::task::spawn_blocking(|| thread.end()).await {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

/// Leads with a store that only this process uses, until `stop` is set.
///
/// # Errors
/// [`ServerError::Store`] if the store failed.
pub async fn lead_alone(
    term: LeaderTerm,
    election: LeaderElection,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServerError> {
    tokio::select! {
        () = told_to_end(&mut stop) => {}
        () = term.failed() => {}
    }
    // Clients get this reason while the store is being closed.
    election.wait("it is ending");
    Ok(term.end().await?)
}

/// Takes part in the election of the managers that share `place`, and leads or follows, until `stop` is set.
///
/// # Errors
/// [`ServerError`] if the options for etcd cannot be used.
pub async fn lead_among(
    config: Config,
    place: EtcdPlace,
    election: LeaderElection,
    url: String,
    mut stop: watch::Receiver<bool>,
    authenticator: Authenticator,
) -> Result<(), ServerError> {
    let unusable = |source| StoreError::Etcd { place: place.to_string(), source };
    let campaign = Campaign::new(&place, &url, config.lease_ttl_s).map_err(unusable)?;
    let mut candidacy = Candidacy::default();
    loop {
        let attempt = tokio::select! {
            attempt = campaign.attempt() => attempt,
            () = told_to_end(&mut stop) => return Ok(()),
        };
        let setback = match attempt {
            Ok(Attempt::Won(leadership)) => {
                candidacy.succeed();
                let ended =
                    lead(&config, &place, &leadership, &election, (&url, &authenticator), &mut stop).await;
                let (setback, reason) = ended.unwrap_or_else(|failed| failed.setback());
                election.wait(&reason);
                if let Err(reason) = leadership.resign().await {
                    tracing::info!(%reason, "the leadership cannot be resigned; it ends with its lease");
                }
                Some((setback, reason))
            }
            Ok(Attempt::Led(leader)) => {
                if election.follow(&leader) {
                    tracing::info!(%leader, "another manager leads");
                }
                None
            }
            Ok(Attempt::Expiring(reason)) => {
                election.wait(&reason);
                None
            }
            Ok(Attempt::Blocked(reason)) => Some((Setback::Refused, reason)),
            Err(error) => {
                let setback = if error.is_passing() { Setback::Away } else { Setback::Refused };
                Some((setback, unusable(error).to_string()))
            }
        };
        let pause = match setback {
            Some((setback, reason)) => {
                let step = candidacy.after(setback, boot_ms());
                election.wait(&reason);
                if step.log && !*stop.borrow() {
                    tracing::warn!(%reason, "cannot lead, and follows nobody; trying again");
                }
                step.pause
            }
            None => {
                if candidacy.succeed() {
                    tracing::info!(store = %place, "the election goes on");
                }
                LOOK_PAUSE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told_to_end(&mut stop) => return Ok(()),
        }
    }
}

/// Reason for which a term could not begin, or ended by itself.
enum TermFailed {
    Store(StoreError),
    /// A service that only a leader runs could not be started.
    Service(ServerError),
}

impl TermFailed {
    /// Returns the kind of setback, and the reason as text.
    fn setback(self) -> (Setback, String) {
        match self {
            Self::Store(error) => {
                let setback = match &error {
                    StoreError::Etcd { source, .. } if source.is_passing() => Setback::Away,
                    StoreError::Deposed { .. } => Setback::Deposed,
                    _ => Setback::Failed,
                };
                (setback, error.to_string())
            }
            Self::Service(error) => (Setback::Failed, error.to_string()),
        }
    }
}

impl From<ServerError> for TermFailed {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Store(error) => Self::Store(error),
            error => Self::Service(error),
        }
    }
}

/// Leads until the lead is lost, the store fails, or `stop` is set. When the function returns, nothing of the
/// term runs any more. Returns the kind of setback, and the reason that clients are given until another
/// manager leads.
async fn lead(
    config: &Config,
    place: &EtcdPlace,
    leadership: &Leadership,
    election: &LeaderElection,
    (url, authenticator): (&str, &Authenticator),
    stop: &mut watch::Receiver<bool>,
) -> Result<(Setback, String), TermFailed> {
    let lease = leadership.token().lease().clone();
    let over = async {
        tokio::select! {
            reason = leadership.keep() => format!("this manager has lost the lead: {reason}"),
            () = told_to_end(stop) => "this manager has just resigned the leadership".to_owned(),
        }
    };
    tokio::pin!(over);
    let mut begun = {
        let (config, store) = (config.clone(), leadership.store(place).map_err(TermFailed::Store)?);
        tokio::task::spawn_blocking(move || LeaderTerm::begin(Box::new(store), &config))
    };
    let mut ended = None;
    let term = tokio::select! {
        begun = &mut begun => begun,
        reason = &mut over => {
            // Once the lease has ended, requests to the store fail, which stops its loading.
            lease.end();
            ended = Some(reason);
            begun.await
        }
    };
    let mut term = term.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    if lease.holds() && ended.is_none() {
        if let Err(error) = term.serve(config, authenticator).await {
            drop(term.end().await);
            return Err(error.into());
        }
        election.lead(term.router(url, authenticator.clone()), lease.clone());
        election.show(term.core());
        tracing::info!("this manager leads");
        tokio::select! {
            reason = &mut over => ended = Some(reason),
            () = term.failed() => {}
        }
        election.wait(ended.as_deref().unwrap_or("this manager has just lost the lead"));
    }
    match (term.end().await, ended) {
        // After the end of the lease, writes fail for that reason, so the store's own error adds nothing.
        (_, Some(reason)) => Ok((Setback::Deposed, reason)),
        (Err(error), None) => Err(TermFailed::Store(error)),
        (Ok(()), None) => Ok((Setback::Deposed, "this manager has lost the lead".to_owned())),
    }
}

/// Returns once `stop` is set, or its sender is dropped.
async fn told_to_end(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}
